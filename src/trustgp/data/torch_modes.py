"""Modes of torch that a user may have switched on around a call, and in which gradients would be others."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from .trees import Inputs, leaves

_USERS_DEVICE: ContextVar[torch.device | None] = ContextVar("default device outside of `cpu_default`")


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Mixed precision switched off: an error bar is that of the network in the precision it has."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


@contextmanager
def plain_modes() -> Iterator[None]:
    """Neither mixed precision nor inference mode, in which no tensor that is made can have a gradient."""
    with torch.inference_mode(False), without_autocast("cpu"), without_autocast("cuda"), cpu_default():
        yield


@contextmanager
def cpu_default() -> Iterator[None]:
    """Tensors made without a device lie on the CPU, whatever `torch.set_default_device` was called with."""
    if (device := torch.empty(0).device).type == "cpu":
        yield
        return
    before = _USERS_DEVICE.set(device)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _USERS_DEVICE.reset(before)


def users_default() -> AbstractContextManager[object]:
    """Within `cpu_default` the device of before, on which the user's network may make tensors."""
    return _USERS_DEVICE.get(None) or nullcontext()


def refuse_transforms(inputs: Inputs) -> None:
    """Raise within a transform of torch.func: gradients through an error bar would be 0 without a word."""
    if any(is_functorch_wrapped_tensor(leaf) for leaf in leaves(inputs)):
        raise RuntimeError(
            "predict was called within torch.func (vmap, grad, jvp, ...), which it does not support; pass "
            "all rows at once, and differentiate the network itself."
        )


def readable(tensor: torch.Tensor) -> bool:
    """Whether a value may decide what is computed: not on a GPU, which would have to be waited for, nor in a
    trace."""
    return tensor.device.type == "cpu" and type(tensor) is torch.Tensor
