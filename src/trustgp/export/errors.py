"""Errors of an export that name the layer at fault."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

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
    """A model that cannot be exported; the message names the layer.

    Examples:
        >>> try:
        ...     path = trustgp.export_onnx(model, "arm.onnx", inputs[:2])
        ... except trustgp.ExportError as error:
        ...     print(error)
    """


def refuse_parameters(network: TangentNetwork, names: Sequence[str], reason: str) -> None:
    """Raise if the gradients of some parameters have no closed form in the graph."""
    if names:
        why = f" ({reason})" if reason else ""
        what = f"the gradients of '{names[0]}' in {_layer_of(network.differentiated, names[0])}"
        raise ExportError(f"{what} cannot be exported{why}; fit with Sketch(parameters=...) on others.")


def _layer_of(network: nn.Module, parameter: str) -> str:
    owner = parameter.rpartition(".")[0]
    return _title(owner, network.get_submodule(owner))


def _title(name: str, module: nn.Module) -> str:
    return f"layer '{name}' ({type(module).__name__})" if name else f"the {type(module).__name__} itself"


def refuse_network(network: nn.Module) -> None:
    """Raise if a layer is in half precision: it rounds more than a graph may differ from `predict`."""
    for name, value in network.named_parameters():
        if value.dtype in HALF:
            layer = f"{_layer_of(network, name)} is in half precision ({value.dtype})"
            raise ExportError(f"{layer}, which cannot be exported; fit a float32 copy of the network.")


def require_packages(*packages: str) -> None:
    """Raise unless these optional packages are installed."""
    for name in packages:
        optional_package(name, f'{name} is not installed; pip install "trustgp[export]".')


def layer_with(network: nn.Module, inputs: Inputs, operation: Any = None) -> str:
    """Name of the innermost layer that uses an operation of aten in its forward or else its backward pass,
    or, for None, that cannot be traced; empty if there is none."""
    calls: dict[str, tuple] = {}  # the first call of each layer, in the order in which calls end

    def note(layer: str, *call: Any) -> None:
        calls.setdefault(layer, call[:3])  # module, positional and keyword arguments

    with torch.no_grad(), Unfused(PLAIN), ExitStack() as hooks:
        for name, module in network.named_modules():
            noted = partial(note, _title(name, module))
            hooks.enter_context(module.register_forward_hook(noted, with_kwargs=True))
        call(network, copied(inputs))
    for backward in (False, True):
        for layer, arguments in calls.items():
            try:
                used = {node.target for node in _layer_graph(*arguments, backward=backward).graph.nodes}
            except Exception:  # of any class: user code runs on fake tensors
                used = {None}
            if operation in used:
                return layer
    return ""


def _layer_graph(module: nn.Module, args: tuple, kwargs: dict, *, backward: bool) -> GraphModule:
    """Graph of a layer's operations for these arguments; with `backward`, of its backward pass too."""
    flat, spec = tree_flatten((args, kwargs))

    def run(*tensors: Tensor) -> Any:
        sources = [x.requires_grad_(backward and x.is_floating_point()) for x in tensors]
        copies = iter([x.clone() for x in sources])  # a layer may work in place
        args, kwargs = tree_unflatten([next(copies) if isinstance(x, Tensor) else x for x in flat], spec)
        with torch.set_grad_enabled(backward), Unfused(PLAIN):
            outputs = [x for x in tensors_in(module(*args, **kwargs)) if x.requires_grad or not backward]
            ends, ones = [x for x in sources if x.requires_grad], [torch.ones_like(x) for x in outputs]
            if not (outputs and ends):
                return outputs
            return torch.autograd.grad(outputs, ends, ones, allow_unused=True)

    return aten_graph(run, [x.detach().clone() for x in flat if isinstance(x, Tensor)])
