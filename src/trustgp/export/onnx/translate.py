"""From a graph of aten operations to an ONNX model."""

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from ..errors import ExportError
from ..module.experts import CHOICES
from ..trace.decompositions import table
from ..trace.trace import simplify
from .operators import OPERATORS
from .writer import TYPES, Translation, Writer, arguments, dtype_of, shape_of

OPSET = 20  # the first with Gelu
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
    constants = [writer.from_array(array, name) for name, array in writer.constants.items()]
    graph = helper.make_graph(writer.nodes, "trustgp", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _fill(writer: Writer, module: GraphModule) -> Any:
    """Write the operations of a module whose inputs are already named; returns the names of its outputs."""
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
    """`trustgp::choose`: a Scan over the rows, which selects the numbers of one expert."""
    labels, vectors, key = n.args
    choice, body, helper = CHOICES[key], Writer(f"{w.prefix}choice{key}_"), w.helper
    label, names = f"{body.prefix}label", [f"{body.prefix}vector_{i}" for i in range(len(vectors))]
    inputs = [helper.make_tensor_value_info(label, TYPES[torch.int64], [])]
    for name, vector in zip(names, vectors, strict=True):
        inputs.append(helper.make_tensor_value_info(name, TYPES[dtype_of(vector)], shape_of(vector)[1:]))
    expert, buffers = choice.experts[0], [dict(expert.named_buffers()) for expert in choice.experts]
    trace = make_fx(partial(functional_call, expert), table(), tracing_mode="fake")
    module = simplify(trace(buffers[0], tuple(choice.example)))  # of its buffers and the vectors
    tables = [_select(body, label, [own[name] for own in buffers]) for name in buffers[0]]
    body.values |= zip(module.graph.find_nodes(op="placeholder"), [*tables, *names], strict=True)
    answers, outputs = _fill(body, module), []
    for i, (answer, (shape, dtype)) in enumerate(zip(answers, choice.kinds, strict=True)):
        # under a name of its own: it may be an outer value, or the same twice
        body.nodes.append(helper.make_node("Identity", [answer], [f"{body.prefix}answer_{i}"]))
        outputs.append(helper.make_tensor_value_info(f"{body.prefix}answer_{i}", TYPES[dtype], list(shape)))
    w.constants |= body.constants  # in the outer graph, as inner ones are copied
    graph = helper.make_graph(body.nodes, f"{body.prefix}body", inputs, outputs)
    scanned = [w.tensor(labels), *(w.tensor(vector) for vector in vectors)]
    result = w.op("Scan", *scanned, outputs=len(outputs), body=graph, num_scan_inputs=len(scanned))
    return (result,) if len(outputs) == 1 else tuple(result)


def _select(w: Writer, label: str, tables: list[torch.Tensor]) -> str:
    """Tensor number `label`; tensors of different sizes are stored in one vector."""
    shapes = torch.tensor([table.shape for table in tables])
    if bool((shapes == shapes[0]).all()):
        return w.op("Gather", w.constant(torch.stack(tables)), label)
    ends = shapes.prod(dim=1, keepdim=True).cumsum(dim=0)
    starts = ends - shapes.prod(dim=1, keepdim=True)
    first, last, shape = (w.op("Gather", w.constant(table), label) for table in (starts, ends, shapes))
    flat = w.constant(torch.cat([table.flatten() for table in tables]))
    return w.op("Reshape", w.op("Slice", flat, first, last), shape)
