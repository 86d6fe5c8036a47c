"""Translation of a graph of aten operations to an ONNX model."""

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from ...experts.stack import padded
from ..errors import ExportError
from ..module.experts import CHOICES
from ..trace.decompositions import table
from ..trace.trace import simplify
from .operators import OPERATORS
from .writer import TYPES, Translation, Writer, arguments

OPSET = 20  # the first with Gelu
MAX_PADDING = 1.1  # of the experts' tensors, over what they hold: indexing a stack is faster than a slice
IR_VERSION = 10
MAX_FILE_BYTES = 2**31 - 2**20  # the limit of the format
TABLE: dict[Any, Translation] = {
    operator.attrgetter(name if "." in name else f"{name}.default")(torch.ops.aten): translate
    for names, translate in OPERATORS.items()
    for name in names.split()
} | {
    torch.ops.prims.convert_element_type.default: lambda w, n, x, dtype: w.tensor(x, dtype),
    operator.getitem: lambda w, n, x, place: w.values[x][place],
    operator.mul: lambda w, n, x, times: w.op("Mul", w.values[x], w.integers([times])),
}


class UntranslatedError(ExportError):
    """An operation `target` of aten without a translation, for a particular `reason`."""

    def __init__(self, target: Any, reason: str = "") -> None:
        super().__init__(f"{target}, which has no translation to ONNX{reason}")
        self.target = target


def to_onnx(module: GraphModule, names: Sequence[str]) -> Any:
    """The ONNX model of a graph of `traced`, with named inputs and standard operations only."""
    writer, rows = Writer(), module.meta["rows"]
    helper = writer.helper
    placeholders = module.graph.find_nodes(op="placeholder")
    writer.values |= zip(placeholders, names, strict=True)
    results = next(iter(module.graph.find_nodes(op="output"))).args[0]
    for name, value in _fill(writer, module).items():
        writer.nodes.append(helper.make_node("Identity", [value], [name]))
    inputs = [_value_info(helper, name, node, rows) for name, node in zip(names, placeholders, strict=True)]
    outputs = [_value_info(helper, name, node, rows) for name, node in results.items()]
    if (size := sum(array.nbytes for array in writer.constants.values())) > MAX_FILE_BYTES:
        advice = 'fit a smaller model with budget="500 MiB", for example, or outputs="pseudo"'
        raise ExportError(f"the graph holds {size / 2**30:.1f} GiB, one ONNX file at most 2 GiB; {advice}.")
    nodes, used = _needed(writer.nodes, set(results))
    constants = [writer.from_array(array, name) for name, array in writer.constants.items() if name in used]
    graph = helper.make_graph(nodes, "trustgp", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _needed(nodes: Sequence[Any], names: set[str]) -> tuple[list[Any], set[str]]:
    """The operations on which values with these names depend, in their order, and all names that they use."""
    used, needed = set(names), []
    for node in reversed(nodes):
        if not used.isdisjoint(node.output):
            needed.append(node)
            inner = (one for attribute in node.attribute for one in attribute.g.node)  # of a loop
            used.update(node.input, *(one.input for one in inner))
    return needed[::-1], used


def _fill(writer: Writer, module: GraphModule) -> Any:
    """Write the operations of a module whose inputs are already named; return the names of its outputs."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            writer.values[node] = writer.constant(getattr(module, node.target))
        elif node.op == "call_function":
            writer.values[node] = _translate(writer, node)
    return map_arg(next(iter(module.graph.find_nodes(op="output"))).args[0], lambda node: writer.values[node])


def _translate(writer: Writer, node: Any) -> Any:
    if node.target is torch.ops.trustgp.choose.default:
        return _choose(writer, node)
    if (translate := TABLE.get(node.target)) is None:
        raise UntranslatedError(node.target)
    try:
        return translate(writer, node, *arguments(node))
    except NotImplementedError as error:
        raise UntranslatedError(node.target, " with these arguments") from error
    except KeyError as error:
        raise UntranslatedError(node.target, f": ONNX files have no type {error}") from error


def _value_info(helper: Any, name: str, node: Any, rows: int) -> Any:
    """Name, type and shape of an input or output."""
    value = node.meta["val"]
    if value.dtype not in TYPES:
        raise ExportError(f"'{name}' is {value.dtype}, which ONNX lacks; fit a float32 copy of the network.")
    shape = ["n" if size == rows else size for size in value.shape]
    return helper.make_tensor_value_info(name, TYPES[value.dtype], shape)


def _choose(w: Writer, n: Any) -> tuple[str, ...]:
    """`trustgp::choose`: a Loop over the distinct labels, in which an expert predicts all its rows."""
    labels, vectors, key = n.args
    choice, body, helper = CHOICES[key], Writer(f"{w.prefix}choice{key}_"), w.helper
    buffers = [dict(expert.named_buffers()) for expert in choice.experts]
    trace = make_fx(partial(functional_call, choice.experts[0]), table(), tracing_mode="fake")
    module = simplify(trace(buffers[0], tuple(choice.example)))  # a function of its buffers and the vectors
    distinct = w.op("Unique", w.tensor(labels))
    number, ahead, further = (f"{body.prefix}{name}" for name in ("number", "ahead", "further"))
    inputs = [helper.make_tensor_value_info(number, TYPES[torch.int64], [])]
    inputs.append(helper.make_tensor_value_info(ahead, TYPES[torch.bool], []))
    outputs = [helper.make_tensor_value_info(further, TYPES[torch.bool], [])]
    body.nodes.append(helper.make_node("Identity", [ahead], [further]))
    label = body.op("Gather", distinct, number)
    own = body.op("Equal", w.tensor(labels), label)
    rows = body.op("Transpose", body.op("NonZero", own))  # [k, 1]
    parts = [body.op("Compress", w.tensor(vector), own, axis=0) for vector in vectors]
    tables = _select(body, label, [[each[name] for each in buffers] for name in buffers[0]])
    body.values |= zip(module.graph.find_nodes(op="placeholder"), [*tables, *parts], strict=True)
    empty, sizes = [], w.op("Shape", w.tensor(labels))
    for i, (answer, (shape, dtype)) in enumerate(zip(_fill(body, module), choice.kinds, strict=True)):
        before, after = f"{body.prefix}before_{i}", f"{body.prefix}after_{i}"
        body.nodes.append(helper.make_node("ScatterND", [before, rows, answer], [after]))
        inputs.append(helper.make_tensor_value_info(before, TYPES[dtype], ["n", *shape]))
        outputs.append(helper.make_tensor_value_info(after, TYPES[dtype], ["n", *shape]))
        whole = w.op("Concat", sizes, w.integers(shape), axis=0) if shape else sizes
        empty.append(w.op("Expand", w.constant(0, dtype), whole))
    w.constants |= body.constants  # in the outer graph, as inner ones are copied
    graph = helper.make_graph(body.nodes, f"{body.prefix}body", inputs, outputs)
    result = w.op("Loop", w.op("Size", distinct), "", *empty, outputs=len(empty), body=graph)
    return (result,) if len(empty) == 1 else tuple(result)


def _select(w: Writer, label: str, tables: list[list[torch.Tensor]]) -> list[str]:
    """Tensor number `label` of each table: of a stack where its padding with zeros is small, else of all
    tensors in one vector."""
    shapes = [torch.tensor([one.shape for one in table]) for table in tables]
    numbers = sum(int(shape.prod(dim=1).sum()) for shape in shapes)
    if sum(len(shape) * int(shape.amax(dim=0).prod()) for shape in shapes) <= MAX_PADDING * numbers:
        return [w.op("Gather", w.constant(padded(table)), label) for table in tables]
    return [_slice(w, label, *one) for one in zip(tables, shapes, strict=True)]


def _slice(w: Writer, label: str, table: list[torch.Tensor], shapes: torch.Tensor) -> str:
    ends = shapes.prod(dim=1, keepdim=True).cumsum(dim=0)
    starts = ends - shapes.prod(dim=1, keepdim=True)
    first, last, shape = (w.op("Gather", w.constant(one), label) for one in (starts, ends, shapes))
    flat = w.constant(torch.cat([one.flatten() for one in table]))
    return w.op("Reshape", w.op("Slice", flat, first, last), shape)
