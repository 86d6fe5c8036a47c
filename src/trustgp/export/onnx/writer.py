"""An ONNX graph under construction: operations are added one by one, constants once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

TYPES = {  # torch types and their numbers in ONNX
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int16: 5, torch.int32: 6, torch.int64: 7,
    torch.bool: 9, torch.float16: 10, torch.float64: 11,
}  # fmt: skip
Translation = Callable[..., Any]  # of a writer, a node and its arguments: a name of its result, or names
MAX_SHARED_SIZE = 64  # size of constants up to which equal ones are stored once


class Writer:
    """Nodes, constants, and the name of each traced value; a prefix separates names from an outer graph's."""

    def __init__(self, prefix: str = "") -> None:
        from onnx import helper, numpy_helper

        self.helper, self.from_array, self.prefix = helper, numpy_helper.from_array, prefix
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[Node, Any] = {}  # a name, or a tuple of names, or a number of rows
        self._shared: dict[tuple, str] = {}
        self._done: dict[tuple, str | list[str]] = {}

    def op(self, kind: str, *given: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add an operation and return the name of its result, or a list of names if there are several."""
        key = (kind, given, outputs, repr(sorted(attributes.items())))
        if key not in self._done:
            names = [f"{self.prefix}{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
            self.nodes.append(self.helper.make_node(kind, list(given), names, **attributes))
            self._done[key] = names[0] if outputs == 1 else names
        return self._done[key]

    def constant(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """Name of a constant, which is added; small equal constants are stored once."""
        tensor = torch.as_tensor(value, dtype=dtype).detach().cpu()
        array = tensor.contiguous().numpy()
        name, first = f"{self.prefix}constant_{len(self.constants)}", None
        if tensor.numel() <= MAX_SHARED_SIZE:
            first = self._shared.setdefault((str(tensor.dtype), tuple(tensor.shape), array.tobytes()), name)
        if first in (None, name):
            self.constants[name] = array
        return first or name

    def integers(self, values: Sequence[int]) -> str:
        """Name of a constant list of integers, for shapes and axes."""
        return self.constant(list(values), torch.int64)

    def tensor(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """The name of an argument, a node or a number, cast to this type."""
        if not isinstance(value, Node):
            return self.constant(value, dtype)
        name = self.values[value]
        return name if dtype is None or dtype == dtype_of(value) else self.cast(name, dtype)

    def cast(self, name: str, dtype: torch.dtype) -> str:
        """Name of these values in another type."""
        return self.op("Cast", name, to=TYPES[dtype])

    def shape(self, sizes: Sequence[Any]) -> str:
        """Name of a vector of sizes; those that depend on the batch are nodes."""
        if not any(isinstance(size, Node) for size in sizes):
            return self.integers(sizes)
        parts = [self.values[size] if isinstance(size, Node) else self.integers([size]) for size in sizes]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)


def shape_of(node: Any) -> list[int]:
    """Shape as traced, with `batch_prime` for the number of rows."""
    return list(node.meta["val"].shape)


def dtype_of(value: Any) -> torch.dtype:
    """Type of a node's tensor."""
    return value.meta["val"].dtype


def arguments(node: Any) -> Sequence[Any]:
    """All arguments of an operation in order, with the defaults of aten."""
    if not hasattr(node.target, "_schema"):
        return node.args
    declared = enumerate(node.target._schema.arguments)
    args, kwargs = node.args, node.kwargs
    return [args[i] if i < len(args) else kwargs.get(a.name, a.default_value) for i, a in declared]


def require_supported(condition: bool) -> None:
    """Raise NotImplementedError unless ONNX has the operation for these arguments."""
    if not condition:
        raise NotImplementedError
