"""From a model to a graph of aten operations with a dynamic batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ...data.trees import Inputs, as_inputs, leaves, rebuilt
from ..module.graph import Graph
from .decompositions import table
from .dynamic_batch import any_batch, stand_in
from .simplify import simplify

if TYPE_CHECKING:
    from ...model import UncertaintyModel


def traced(model: UncertaintyModel, example_inputs: Inputs, *, plain: bool = True) -> GraphModule:
    """The model as a graph of aten operations; it takes the leaves of the inputs, in their order.

    It holds the network, its gradients, gate, experts, witness and calibration, and gives what
    `Graph.forward` gives, for any number of rows. The model's own code is what is traced.

    Args:
        model: The fitted model; it is not changed.
        example_inputs: At least one row, as the network takes them.
        plain: Whether there are aten operations only; else experts are behind `trustgp::choose`.

    Returns:
        A module: called with the leaves of some inputs (`data.trees.leaves`) it returns a dict of tensors.
    """
    inputs = as_inputs(example_inputs)
    graph = Graph(model, inputs, plain=plain)

    def run(*tensors: Tensor) -> dict[str, Tensor]:
        return graph(rebuilt(inputs, iter(tensors)))

    stands = stand_in(graph, leaves(inputs))
    flat = [leaf[:1].expand(stands, *leaf.shape[1:]).clone() for leaf in leaves(inputs)]
    found = _trace(run, flat)
    if any(_changes(node) for node in found.graph.nodes):
        found = _trace(functionalize(found, remove="mutations"), flat)
    found.meta["graph"] = graph  # keeps alive what is chosen from
    found.meta["rows"] = stands
    any_batch(found, stands)
    return simplify(found)


def _trace(function: Callable[..., Any], flat: list[Tensor]) -> GraphModule:
    return make_fx(function, table(), tracing_mode="fake", _allow_non_fake_inputs=True)(*flat)


def _changes(node: torch.fx.Node) -> bool:
    """Whether an operation works in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
