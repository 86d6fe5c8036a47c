"""From a graph of aten operations to an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import map_arg

from ..errors import ExportError
from .ops_choose import branches
from .ops_elementwise import ELEMENTWISE
from .ops_layers import LAYERS
from .ops_shape import SHAPING
from .writer import TYPES, Writer

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
        module: As `traced` gives it.
        names: Of the inputs.
        opset: Version of the standard operations.
    """
    from onnx import helper, numpy_helper

    writer, rows = Writer(), module.meta["rows"]
    places = module.graph.find_nodes(op="placeholder")
    writer.values |= zip(places, names, strict=True)
    answers = fill(writer, module)
    found = next(iter(module.graph.find_nodes(op="output"))).args[0]
    for name, value in answers.items():
        writer.nodes.append(helper.make_node("Identity", [value], [name]))
    inputs = [_described(name, node, rows) for name, node in zip(names, places, strict=True)]
    outputs = [_described(name, node, rows) for name, node in found.items()]
    size = sum(array.nbytes for array in writer.constants.values())
    if size > MOST_BYTES:
        raise ExportError(
            f"the graph holds {size / 2**30:.1f} GiB, and one ONNX file at most 2 GiB; fit a smaller model "
            'with budget="500 MiB", for example, or outputs="pseudo".'
        )
    constants = [numpy_helper.from_array(array, name) for name, array in writer.constants.items()]
    graph = helper.make_graph(writer.nodes, "trustgp", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def fill(writer: Writer, module: GraphModule) -> Any:
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
        return branches(writer, node, fill)
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
