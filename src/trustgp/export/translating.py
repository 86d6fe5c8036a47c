"""From a graph of aten operations to an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from .branching import branches
from .elementwise import ELEMENTWISE
from .layers import LAYERS
from .refusing import ExportError
from .shaping import SHAPING
from .writing import TYPES, Writer

TABLE = {**ELEMENTWISE, **SHAPING, **LAYERS}
OPSETS = range(20, 23)  # 20 is the first with Gelu
IR_VERSION = 10
MOST_BYTES = 2**31 - 2**20  # of one file: the format has no place for more


class UntranslatedError(ExportError):
    """An operation that has no place in the file.

    Args:
        target: The aten operation.
        reason: What is special about it here.
    """

    def __init__(self, target: Any, reason: str = "") -> None:
        super().__init__(f"{target} cannot be translated to ONNX{reason}")
        self.target = target


def to_onnx(module: GraphModule, names: Sequence[str], *, opset: int = OPSETS[0]) -> Any:
    """The ONNX model of a traced graph, operations of the standard set only.

    Args:
        module: As `tracing.traced` gives it.
        names: Of the inputs.
        opset: Version of the standard operations.
    """
    from onnx import helper, numpy_helper

    writer = Writer(module.meta["rows"])
    inputs, outputs = [], []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            writer.values[node] = names[len(inputs)]
            inputs.append(_described(names[len(inputs)], node, writer.rows))
        elif node.op == "get_attr":
            writer.values[node] = writer.constant(getattr(module, node.target))
        elif node.op == "call_function":
            writer.values[node] = _translated(writer, node)
        elif node.op == "output":
            for name, value in node.args[0].items():
                writer.nodes.append(helper.make_node("Identity", [writer.values[value]], [name]))
                outputs.append(_described(name, value, writer.rows))
    size = sum(array.nbytes for array in writer.constants.values())
    if size > MOST_BYTES:
        raise ExportError(
            f"the graph holds {size / 2**30:.1f} GiB, and one ONNX file at most 2 GiB; fit a smaller model "
            'with budget="500 MiB", for example, or outputs="pseudo".'
        )
    constants = [numpy_helper.from_array(array, name) for name, array in writer.constants.items()]
    graph = helper.make_graph(writer.nodes, "trustgp", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def _fill(writer: Writer, module: GraphModule, tables: Any) -> list[str]:
    """The operations of an inner module, whose inputs are already named; the names of its answers."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            writer.values[node] = writer.constant(getattr(module, node.target))
        elif node.op == "call_function":
            writer.values[node] = _translated(writer, node)
    output = next(iter(module.graph.find_nodes(op="output")))
    return [writer.values[value] for value in output.args[0]]


def _translated(writer: Writer, node: Any) -> Any:
    if node.target is torch.ops.trustgp.choose.default:
        return branches(writer, node, _fill)
    translate = TABLE.get(node.target)
    if translate is None:
        raise UntranslatedError(node.target)
    try:
        return translate(writer, node)
    except NotImplementedError as error:
        raise UntranslatedError(node.target, " with these arguments") from error
    except KeyError as error:
        raise UntranslatedError(node.target, f": there is no type {error} in the file") from error


def _described(name: str, node: Any, rows: int) -> Any:
    """Name, type and shape of an input or output."""
    from onnx import helper

    value = node.meta["val"]
    if value.dtype not in TYPES:
        raise ExportError(
            f"'{name}' is {value.dtype}, which the file has no place for; fit a float32 copy of the network."
        )
    shape = ["n" if size == rows else size for size in value.shape]
    return helper.make_tensor_value_info(name, TYPES[value.dtype], shape)
