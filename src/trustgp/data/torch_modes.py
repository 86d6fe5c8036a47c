"""Modes of torch that a user may have enabled around a call and that would change its gradients."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from .trees import Inputs, leaves

_USERS_DEVICE: ContextVar[torch.device | None] = ContextVar("default device outside of `cpu_default`")


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Disable mixed precision: an error bar belongs to the network in the precision that it has."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


@contextmanager
def plain_modes() -> Iterator[None]:
    """Disable mixed precision and inference mode (no gradients), and create new tensors on the CPU."""
    with torch.inference_mode(False), without_autocast("cpu"), without_autocast("cuda"), cpu_default():
        yield


@contextmanager
def cpu_default() -> Iterator[None]:
    """Create tensors without a device on the CPU, whatever the user passed to `set_default_device`."""
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
    """Restore the user's default device within `cpu_default`, for tensors that the network creates."""
    return _USERS_DEVICE.get(None) or nullcontext()


def refuse_transforms(inputs: Inputs) -> None:
    """Raise RuntimeError within a transform of torch.func: gradients would silently be 0."""
    if any(is_functorch_wrapped_tensor(leaf) for leaf in leaves(inputs)):
        raise RuntimeError(
            "predict was called within torch.func (vmap, grad, jvp, ...), which it does not support; pass "
            "all rows at once, and differentiate the network itself."
        )


def readable(tensor: torch.Tensor) -> bool:
    """Whether code may branch on a tensor's value: not on a GPU, which would have to be synchronised, nor in
    a trace."""
    return tensor.device.type == "cpu" and type(tensor) is torch.Tensor
