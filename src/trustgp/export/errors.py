"""What cannot be exported, said by the layer's name."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..data.trees import Inputs, copied
from ..tangents.network import TangentNetwork, call


class ExportError(ValueError):
    """A model that cannot be exported; the message names the layer."""


def refuse_parameters(network: TangentNetwork, names: Sequence[str], reason: str) -> None:
    """Raise where some parameters' gradients have no closed form in the graph."""
    if not names:
        return
    owner = names[0].rpartition(".")[0]
    kind = type(network.module.get_submodule(owner)).__name__
    why = f" ({reason})" if reason else ""
    raise ExportError(
        f"the gradients of '{names[0]}' in layer '{owner}' ({kind}) cannot be written as a graph{why}; fit "
        "with tangents on other parameters: Sketch(parameters=...) or 'last'."
    )


def refuse_recurrent(network: nn.Module) -> None:
    """Raise where the network holds a recurrent layer: its loop over time has no fixed length in a graph."""
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise ExportError(
                f"layer '{name}' ({type(module).__name__}) is recurrent, and recurrent layers cannot be "
                "exported; use model.predict, or replace the layer by convolutions over time."
            )


def refuse_half(network: nn.Module) -> None:
    """Raise where a layer works in half precision: it rounds more than a graph may differ from `predict`."""
    for name, value in network.named_parameters():
        if value.dtype in (torch.float16, torch.bfloat16):
            owner = name.rpartition(".")[0]
            raise ExportError(
                f"layer '{owner}' ({type(network.get_submodule(owner)).__name__}) is in half precision "
                f"({value.dtype}), which cannot be exported; fit a float32 copy of the network."
            )


def needs(*packages: str) -> None:
    """Raise unless these optional packages are there."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f'{missing[0]} is not installed; pip install "trustgp[export]".')


def where_called(network: nn.Module, inputs: Inputs, operation: str) -> str:
    """The layer in which an aten operation, or the one that it is the backward pass of, is called.

    Args:
        network: The network.
        inputs: A few rows.
        operation: Such as "aten.erfinv".
    """
    names = {operation, operation.removesuffix("_backward")}
    watch = _Watch(names)
    handles = []
    for name, module in network.named_modules():
        handles.append(module.register_forward_pre_hook(lambda m, a, name=name: watch.enter(name, m)))
        handles.append(module.register_forward_hook(lambda m, a, r: watch.leave(), always_call=True))
    try:
        with torch.no_grad(), watch:
            call(network, copied(inputs))
    finally:
        for handle in handles:
            handle.remove()
    return watch.found


class _Watch(TorchDispatchMode):
    """Notes the innermost module in which one of some operations is called first."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names, self.stack, self.found = names, [], ""

    def enter(self, name: str, module: nn.Module) -> None:
        self.stack.append(f"'{name}' ({type(module).__name__})")

    def leave(self) -> None:
        self.stack.pop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).rpartition(".")[0] in self.names and not self.found and self.stack:
            self.found = self.stack[-1]
        return func(*args, **(kwargs or {}))
