"""`trustgp::choose` in ONNX: a Scan over the rows, and in it a tree of branches down to one expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ..module.choose import Chosen, chosen
from ..trace.decompositions import table
from ..trace.simplify import simplify
from .writer import TYPES, Writer, dtype_of, shape_of

Fill = Callable[[Writer, GraphModule], Any]


def branches(w: Writer, n: Any, fill: Fill) -> tuple[str, ...]:
    """The answers of the chosen experts, by name.

    Args:
        w: Of the outer graph.
        n: The call of `choose`.
        fill: Translates a traced module into a writer in which its inputs are named.
    """
    from onnx import helper

    labels, vectors, key = n.args
    choice, prefix = chosen(key), f"{w.prefix}choice{key}_"
    module = _traced(choice)
    names = [f"{prefix}vector_{i}" for i in range(len(vectors))]
    label = f"{prefix}label"
    inputs = [helper.make_tensor_value_info(label, TYPES[torch.int64], [])]
    for name, vector in zip(names, vectors, strict=True):
        inputs.append(helper.make_tensor_value_info(name, TYPES[dtype_of(vector)], shape_of(vector)[1:]))
    tree = _Tree(w, choice, module, prefix, label, names, fill)
    nodes, found, constants = tree.between(0, len(choice.experts))
    body = helper.make_graph(nodes, f"{prefix}body", inputs, _described(choice, found), constants)
    given = [w.tensor(labels), *(w.tensor(vector) for vector in vectors)]
    answers = w.op("Scan", *given, outputs=len(found), body=body, num_scan_inputs=len(given))
    return (answers,) if len(found) == 1 else tuple(answers)


def _traced(choice: Chosen) -> GraphModule:
    """The first expert's operations; its buffers keep their names, and others' can be put in their place."""
    expert = choice.experts[0]
    buffers = dict(expert.named_buffers())

    def run(tables: dict[str, torch.Tensor], vectors: list[torch.Tensor]) -> Any:
        return torch.func.functional_call(expert, tables, tuple(vectors))

    return simplify(make_fx(run, table(), tracing_mode="fake")(buffers, choice.example))


@dataclass(frozen=True)
class _Tree:
    """Branches down to single experts; their numbers stand in the outer graph: graphs are copied whole."""

    outer: Writer
    choice: Chosen
    module: GraphModule
    prefix: str
    label: str
    vectors: list[str]
    fill: Fill

    def between(self, first: int, last: int) -> tuple[list[Any], list[str], list[Any]]:
        """Nodes, names of the answers and constants of a graph that serves the experts first .. last - 1."""
        from onnx import helper, numpy_helper

        if last - first == 1:
            return self._leaf(first)
        middle, mark = (first + last) // 2, f"{self.prefix}{first}_{last}_"
        limit = numpy_helper.from_array(torch.tensor(middle).numpy(), f"{mark}limit")
        sides = {}
        for side, (a, b) in {"then_branch": (first, middle), "else_branch": (middle, last)}.items():
            nodes, found, constants = self.between(a, b)
            outputs = _described(self.choice, found)
            sides[side] = helper.make_graph(nodes, f"{mark}{side}", [], outputs, constants)
        below = helper.make_node("Less", [self.label, f"{mark}limit"], [f"{mark}below"])
        found = [f"{mark}answer_{i}" for i in range(len(self.choice.kinds))]
        return [below, helper.make_node("If", [f"{mark}below"], found, **sides)], found, [limit]

    def _leaf(self, number: int) -> tuple[list[Any], list[str], list[Any]]:
        from onnx import helper

        writer = Writer(f"{self.prefix}{number}_")
        tables = dict(self.choice.experts[number].named_buffers())
        first = [
            name for name, _ in self.choice.experts[0].named_buffers()
        ]  # in the order of the traced inputs
        given = [*(writer.constant(tables[name]) for name in first), *self.vectors]
        writer.values |= zip(self.module.graph.find_nodes(op="placeholder"), given, strict=True)
        names = self.fill(writer, self.module)
        # a name of the graph's own for each answer: it may be an outer value, or the same twice
        found = [f"{writer.prefix}answer_{i}" for i in range(len(names))]
        writer.nodes += [helper.make_node("Identity", [a], [b]) for a, b in zip(names, found, strict=True)]
        self.outer.constants |= writer.constants
        return writer.nodes, found, []


def _described(choice: Chosen, names: list[str]) -> list[Any]:
    from onnx import helper

    kinds = zip(names, choice.kinds, strict=True)
    return [helper.make_tensor_value_info(name, TYPES[dtype], list(shape)) for name, (shape, dtype) in kinds]
