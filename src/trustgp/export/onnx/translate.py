"""From a graph of aten operations to an ONNX model."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from ..errors import ExportError
from ..module.experts import CHOICES, Chosen
from ..trace.decompositions import table
from ..trace.trace import simplify
from .operators import OPERATORS
from .writer import TYPES, Translation, Writer, dtype_of, shape_of

OPSETS = range(20, 23)  # 20 is the first with Gelu
IR_VERSION = 10
MOST_BYTES = 2**31 - 2**20  # of one file: the format has no place for more
TABLE: dict[Any, Translation] = {
    operator.attrgetter(name if "." in name else f"{name}.default")(torch.ops.aten): translate
    for names, translate in OPERATORS.items()
    for name in names.split()
} | {
    torch.ops.prims.convert_element_type.default: lambda w, n: w.tensor(n.args[0], n.args[1]),
    operator.getitem: lambda w, n: w.values[n.args[0]][n.args[1]],
    operator.mul: lambda w, n: w.op("Mul", w.values[n.args[0]], w.integers([n.args[1]])),
}


class UntranslatedError(ExportError):
    """An operation `target` of aten that has no place in the file, for a `reason` that is special here."""

    def __init__(self, target: Any, reason: str = "") -> None:
        super().__init__(f"{target}, which has no translation to ONNX{reason}")
        self.target = target


def to_onnx(module: GraphModule, names: Sequence[str], *, opset: int = OPSETS[0]) -> Any:
    """The ONNX model of a graph as `traced` gives it, its inputs by name; standard operations only."""
    writer, rows = Writer(), module.meta["rows"]
    helper = writer.helper
    places = module.graph.find_nodes(op="placeholder")
    writer.values |= zip(places, names, strict=True)
    answers = _fill(writer, module)
    found = next(iter(module.graph.find_nodes(op="output"))).args[0]
    for name, value in answers.items():
        writer.nodes.append(helper.make_node("Identity", [value], [name]))
    inputs = [_described(helper, name, node, rows) for name, node in zip(names, places, strict=True)]
    outputs = [_described(helper, name, node, rows) for name, node in found.items()]
    size = sum(array.nbytes for array in writer.constants.values())
    if size > MOST_BYTES:
        raise ExportError(
            f"the graph holds {size / 2**30:.1f} GiB, and one ONNX file at most 2 GiB; fit a smaller model "
            'with budget="500 MiB", for example, or outputs="pseudo".'
        )
    constants = [writer.from_array(array, name) for name, array in writer.constants.items()]
    graph = helper.make_graph(writer.nodes, "trustgp", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def _fill(writer: Writer, module: GraphModule) -> Any:
    """Write the operations of a module whose inputs are already named; the names of its answers."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            writer.values[node] = writer.constant(getattr(module, node.target))
        elif node.op == "call_function":
            writer.values[node] = _translated(writer, node)
    output = next(iter(module.graph.find_nodes(op="output")))
    return map_arg(output.args[0], lambda node: writer.values[node])


def _translated(writer: Writer, node: Any) -> Any:
    if node.target is torch.ops.trustgp.choose.default:
        return _chosen(writer, node)
    translate = TABLE.get(node.target)
    if translate is None:
        raise UntranslatedError(node.target)
    try:
        return translate(writer, node)
    except NotImplementedError as error:
        raise UntranslatedError(node.target, " with these arguments") from error
    except KeyError as error:
        raise UntranslatedError(node.target, f": there is no type {error} in the file") from error


def _described(helper: Any, name: str, node: Any, rows: int) -> Any:
    """Name, type and shape of an input or output."""
    value = node.meta["val"]
    if value.dtype not in TYPES:
        raise ExportError(
            f"'{name}' is {value.dtype}, which the file has no place for; fit a float32 copy of the network."
        )
    shape = ["n" if size == rows else size for size in value.shape]
    return helper.make_tensor_value_info(name, TYPES[value.dtype], shape)


def _chosen(w: Writer, n: Any) -> tuple[str, ...]:
    """`trustgp::choose`: a Scan over the rows, and in it the numbers of one expert, cut out of all."""
    labels, vectors, key = n.args
    choice, body, helper = CHOICES[key], Writer(f"{w.prefix}choice{key}_"), w.helper
    label, names = f"{body.prefix}label", [f"{body.prefix}vector_{i}" for i in range(len(vectors))]
    inputs = [helper.make_tensor_value_info(label, TYPES[torch.int64], [])]
    for name, vector in zip(names, vectors, strict=True):
        inputs.append(helper.make_tensor_value_info(name, TYPES[dtype_of(vector)], shape_of(vector)[1:]))
    module, buffers = _traced(choice), [dict(expert.named_buffers()) for expert in choice.experts]
    tables = [_cut(body, label, [lot[name] for lot in buffers]) for name in buffers[0]]
    body.values |= zip(module.graph.find_nodes(op="placeholder"), [*tables, *names], strict=True)
    answers, outputs = _fill(body, module), []
    for i, (answer, (shape, dtype)) in enumerate(zip(answers, choice.kinds, strict=True)):
        # a name of the graph's own for each: it may be an outer value, or the same twice
        body.nodes.append(helper.make_node("Identity", [answer], [f"{body.prefix}answer_{i}"]))
        outputs.append(helper.make_tensor_value_info(f"{body.prefix}answer_{i}", TYPES[dtype], list(shape)))
    w.constants |= body.constants  # graphs are copied whole: their numbers stand in the outer one
    graph = helper.make_graph(body.nodes, f"{body.prefix}body", inputs, outputs)
    given = [w.tensor(labels), *(w.tensor(vector) for vector in vectors)]
    found = w.op("Scan", *given, outputs=len(outputs), body=graph, num_scan_inputs=len(given))
    return (found,) if len(outputs) == 1 else tuple(found)


def _cut(w: Writer, label: str, tables: list[torch.Tensor]) -> str:
    """The one with the number `label`, of tensors that may differ in size: they lie end to end."""
    shapes = torch.tensor([table.shape for table in tables])
    if bool((shapes == shapes[0]).all()):
        return w.op("Gather", w.constant(torch.stack(tables)), label)
    ends = shapes.prod(dim=1, keepdim=True).cumsum(dim=0)
    starts = ends - shapes.prod(dim=1, keepdim=True)
    first, last, shape = (w.op("Gather", w.constant(one), label) for one in (starts, ends, shapes))
    flat = w.constant(torch.cat([table.flatten() for table in tables]))
    return w.op("Reshape", w.op("Slice", flat, first, last), shape)


def _traced(choice: Chosen) -> GraphModule:
    """The first expert's operations; its buffers keep their names, and others' can be put in their place."""
    expert = choice.experts[0]

    def run(tables: dict[str, torch.Tensor], vectors: list[torch.Tensor]) -> Any:
        return functional_call(expert, tables, tuple(vectors))

    tables = dict(expert.named_buffers())
    return simplify(make_fx(run, table(), tracing_mode="fake")(tables, choice.example))
