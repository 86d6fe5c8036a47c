"""What cannot be exported, said by the layer's name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..data.trees import Inputs, copied
from ..data.user_warnings import optional_package
from ..tangents.network import HALF, TangentNetwork, call


class ExportError(ValueError):
    """A model that cannot be exported; the message names the layer."""


def refuse_parameters(network: TangentNetwork, names: Sequence[str], reason: str) -> None:
    """Raise where some parameters' gradients have no closed form in the graph."""
    if names:
        why = f" ({reason})" if reason else ""
        raise ExportError(
            f"the gradients of '{names[0]}' in {_layer(network.module, names[0])} cannot be written as a "
            f"graph{why}; fit with tangents on other parameters: Sketch(parameters=...) or 'last'."
        )


def _layer(network: nn.Module, parameter: str) -> str:
    """Name and class of the layer that a parameter belongs to."""
    owner = parameter.rpartition(".")[0]
    return f"layer '{owner}' ({type(network.get_submodule(owner)).__name__})"


def refuse_network(network: nn.Module) -> None:
    """Raise where a layer is recurrent: its loop over time has no fixed length in a graph. And where one
    works in half precision: it rounds more than a graph may differ from `predict`."""
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise ExportError(
                f"layer '{name}' ({type(module).__name__}) is recurrent, and recurrent layers cannot be "
                "exported; use model.predict, or replace the layer by convolutions over time."
            )
    for name, value in network.named_parameters():
        if value.dtype in HALF:
            raise ExportError(
                f"{_layer(network, name)} is in half precision ({value.dtype}), which cannot be exported; "
                "fit a float32 copy of the network."
            )


def needs(*packages: str) -> None:
    """Raise unless these optional packages are there."""
    for name in packages:
        optional_package(name, f'{name} is not installed; pip install "trustgp[export]".')


def where_called(network: nn.Module, inputs: Inputs, operation: str) -> str:
    """The layer that calls an operation such as "aten.erfinv", or the one it is the backward pass of."""
    names, inside, found = {operation, operation.removesuffix("_backward")}, [], []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found.extend(inside[-1:] if str(func).rpartition(".")[0] in names else [])
            return func(*args, **(kwargs or {}))

    def leave(*_: Any) -> None:
        inside.pop()

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            said = f"'{name}' ({type(module).__name__})"
            enter = module.register_forward_pre_hook(lambda m, a, said=said: inside.append(said))
            for hook in (enter, module.register_forward_hook(leave, always_call=True)):
                hooks.enter_context(hook)
        with torch.no_grad(), Watch():
            call(network, copied(inputs))
    return next(iter(found), "")
