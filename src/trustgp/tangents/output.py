"""Networks that return more than one tensor: which one counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .checks import check_kind
from .modules import clone_module, unwrap

Output = Callable[[Any], Tensor]
"""Selects a tensor [n] or [n, C] from what a network returns."""


class OutputSelector:
    """Takes the tensor that counts out of what a network returns; a forward hook of the private copy."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, module: nn.Module, args: Any, result: Any) -> Tensor:
        selected = self.output(result)
        if not isinstance(selected, Tensor):
            raise ValueError(
                f"output= gave a {type(selected).__name__} for the network's {type(result).__name__}; it "
                "must select a tensor of shape [n] or [n, C]."
            )
        return selected

    def __deepcopy__(self, memo: dict) -> OutputSelector:
        return self


def with_output(network: nn.Module, output: Output | None) -> nn.Module:
    """A copy of the network, out of its wrappers, that returns `output(network(...))`.

    Args:
        network: The user's, which stays as it is.
        output: None: the copy returns what the network does.
    """
    network = unwrap(network)
    check_kind(network)
    if output is not None and not callable(output):
        raise TypeError(
            f"output is a {type(output).__name__}; a function of what the network returns is needed."
        )
    network = clone_module(network)
    if output is not None:
        network.register_forward_hook(OutputSelector(output))
    return network


def has_output_selector(network: nn.Module) -> bool:
    """Whether the network's output passes through a function of the user's."""
    return any(isinstance(hook, OutputSelector) for hook in network._forward_hooks.values())
