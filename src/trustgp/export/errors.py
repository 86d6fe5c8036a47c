"""What cannot be exported, said by the layer's name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..data.trees import Inputs, copied
from ..data.user_warnings import optional_package
from ..tangents.decompose import PLAIN, Unfused
from ..tangents.modules import tensors_in
from ..tangents.network import HALF, TangentNetwork, call
from .trace.decompositions import aten_graph


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


def refuse_tangents(tangents: Any) -> NoReturn:
    """Raise for features of which nobody has said how they are written as a graph."""
    raise ExportError(
        f"features of {type(tangents).__name__} cannot be written as a graph; LayerFactors, JacobianRows and "
        "Sketch can, and what inherits from their maps."
    )


def _layer(network: nn.Module, parameter: str) -> str:
    """Name and class of the layer that a parameter belongs to."""
    owner = parameter.rpartition(".")[0]
    return _said(owner, network.get_submodule(owner))


def _said(name: str, module: nn.Module) -> str:
    return f"layer '{name}' ({type(module).__name__})" if name else f"the {type(module).__name__} itself"


def refuse_network(network: nn.Module) -> None:
    """Raise where a layer is in half precision: it rounds more than a graph may differ from `predict`."""
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


def layer_with(network: nn.Module, inputs: Inputs, operation: Any = None) -> str:
    """The innermost layer that uses an operation of aten, in its forward pass or else on the way back; None:
    the first that cannot be traced. Nothing: there is none."""
    calls: dict[str, tuple] = {}  # of each layer the first, in the order in which they end

    def note(said: str, *given: Any) -> None:
        calls.setdefault(said, given[:3])  # module, arguments, named ones

    with torch.no_grad(), Unfused(PLAIN), ExitStack() as hooks:
        for name, module in network.named_modules():
            hook = module.register_forward_hook(partial(note, _said(name, module)), with_kwargs=True)
            hooks.enter_context(hook)
        call(network, copied(inputs))
    for back in (False, True):
        for said, given in calls.items():
            try:
                used = {node.target for node in _layer_graph(*given, back=back).graph.nodes}
            except Exception:  # of torch, of any class: user code runs on what are no numbers
                used = {None}
            if operation in used:
                return said
    return ""


def _layer_graph(module: nn.Module, args: tuple, kwargs: dict, *, back: bool) -> GraphModule:
    """The operations of a layer for these arguments, and those that lead `back` to them."""
    flat, spec = tree_flatten((args, kwargs))

    def run(*tensors: Tensor) -> Any:
        free = [x.requires_grad_(back and x.is_floating_point()) for x in tensors]
        given = iter([x.clone() for x in free])  # a layer may work in place
        args, kwargs = tree_unflatten([next(given) if isinstance(x, Tensor) else x for x in flat], spec)
        with torch.set_grad_enabled(back), Unfused(PLAIN):
            found = [x for x in tensors_in(module(*args, **kwargs)) if x.requires_grad or not back]
            ends = [x for x in free if x.requires_grad]
            ones = [torch.ones_like(x) for x in found]
            return torch.autograd.grad(found, ends, ones, allow_unused=True) if found and ends else found

    return aten_graph(run, [x.detach().clone() for x in flat if isinstance(x, Tensor)])
