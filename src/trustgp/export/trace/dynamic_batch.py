"""A graph that was traced for one number of rows, made to serve any.

Code that asks for the number of rows gets a prime that divides no other size in sight. What is a multiple
of it in the graph was made from the number of rows, and from nothing else. This holds for all code, also
where torch's symbolic sizes give up (the rules of vmap, sizes in sets and as keys).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097)
ENDLESS = 2**63 - 1  # the end of a slice that has none


def stand_in(module: nn.Module, inputs: Sequence[Tensor]) -> int:
    """A number of rows that divides no size of these tensors."""
    tensors = [*module.parameters(), *module.buffers(), *(leaf[0] for leaf in inputs)]
    sizes = {size for tensor in tensors for size in (*tensor.shape, tensor.numel())}
    return next(p for p in PRIMES if all(size == 0 or size % p for size in sizes))


def any_batch(module: GraphModule, rows: int) -> None:
    """Replace this number of rows, and multiples of it, by what the first input has; in place."""
    graph = module.graph
    first = next(iter(graph.find_nodes(op="placeholder")))
    with graph.inserting_after(list(graph.find_nodes(op="placeholder"))[-1]):
        size = graph.call_function(torch.ops.aten.sym_size.int, (first, 0))
    made: dict[int, Node] = {1: size}
    after = size

    def replaced(value: Any) -> Any:
        nonlocal after
        if isinstance(value, (list, tuple)):
            return type(value)(replaced(v) for v in value)
        if type(value) is not int or value == 0 or value == ENDLESS or value % rows:
            return value
        times = value // rows
        if times not in made:
            with graph.inserting_after(after):
                after = made[times] = graph.call_function(operator.mul, (size, times))
        return made[times]

    for node in list(graph.nodes):
        if node.op == "call_function" and node not in made.values():
            node.args = replaced(node.args)
            node.kwargs = {name: replaced(value) for name, value in node.kwargs.items()}
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()
