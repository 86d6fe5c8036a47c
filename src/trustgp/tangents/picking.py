"""Networks that return more than one tensor: which one counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .checking import check_kind
from .copying import bare, duplicate

Output = Callable[[Any], Tensor]
"""Picks a tensor [n] or [n, C] from what a network returns."""


class Picker:
    """Takes the tensor that counts out of what a network returns; a forward hook of the private copy."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, module: nn.Module, args: Any, result: Any) -> Tensor:
        picked = self.output(result)
        if not isinstance(picked, Tensor):
            raise ValueError(
                f"output= gave a {type(picked).__name__} for the network's {type(result).__name__}; it must "
                "pick a tensor of shape [n] or [n, C]."
            )
        return picked

    def __deepcopy__(self, memo: dict) -> Picker:
        return self


def with_output(network: nn.Module, output: Output | None) -> nn.Module:
    """A copy of the network, out of its wrappers, that returns `output(network(...))`.

    Args:
        network: The user's, which stays as it is.
        output: None: the copy returns what the network does.
    """
    network = bare(network)
    check_kind(network)
    if output is not None and not callable(output):
        raise TypeError(
            f"output is a {type(output).__name__}; a function of what the network returns is needed."
        )
    network = duplicate(network)
    if output is not None:
        network.register_forward_hook(Picker(output))
    return network


def is_picked(network: nn.Module) -> bool:
    """Whether the network's output passes through a function of the user's."""
    return any(isinstance(hook, Picker) for hook in network._forward_hooks.values())
