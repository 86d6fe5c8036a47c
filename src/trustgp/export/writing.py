"""An ONNX graph in the making: operations are added one by one, constants once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

TYPES = {  # of torch and of ONNX
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
}
SHARED = 64  # numbers up to which equal constants are looked for


class Writer:
    """Collects nodes and constants, and knows by what name each value of the traced graph goes.

    Args:
        rows: The number that stands for the batch in the traced shapes.
        prefix: Of all names, which must not be those of an outer graph.
    """

    def __init__(self, rows: int, prefix: str = "") -> None:
        self.rows, self.prefix = rows, prefix
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[Node, Any] = {}  # a name, or a tuple of names, or a number of rows
        self._shared: dict[tuple, str] = {}
        self._done: dict[tuple, str | list[str]] = {}

    def op(self, kind: str, *given: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add an operation; the name of its result, or names where there are several."""
        from onnx import helper

        key = (kind, given, outputs, repr(sorted(attributes.items())))
        if key not in self._done:
            names = [f"{self.prefix}{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
            self.nodes.append(helper.make_node(kind, list(given), names, **attributes))
            self._done[key] = names[0] if outputs == 1 else names
        return self._done[key]

    def constant(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """The name of a constant; small equal ones are the same."""
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
        tensor = tensor if dtype is None else tensor.to(dtype)
        array = tensor.contiguous().numpy()
        key = (str(tensor.dtype), tuple(tensor.shape), array.tobytes()) if tensor.numel() <= SHARED else None
        if key is None or key not in self._shared:
            name = f"{self.prefix}constant_{len(self.constants)}"
            self.constants[name] = array
            if key is None:
                return name
            self._shared[key] = name
        return self._shared[key]

    def integers(self, values: Sequence[int]) -> str:
        """A list of whole numbers, as shapes and axes are given."""
        return self.constant(list(values), torch.int64)

    def tensor(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """The name of an argument, a node or a number, in this type."""
        if not isinstance(value, Node):
            return self.constant(value, dtype)
        name = self.values[value]
        have = value.meta["val"].dtype
        return name if dtype in (None, have) else self.cast(name, dtype)

    def cast(self, name: str, dtype: torch.dtype) -> str:
        """The same values in another type."""
        return self.op("Cast", name, to=TYPES[dtype])

    def size(self, value: Any) -> str | int:
        """A size: a whole number, or the name of one that depends on the batch, shape [1]."""
        return self.values[value] if isinstance(value, Node) else int(value)

    def shape(self, sizes: Sequence[Any]) -> str:
        """Sizes as one vector; those of the batch are put in."""
        found = [self.size(size) for size in sizes]
        if all(isinstance(size, int) for size in found):
            return self.integers([int(size) for size in found])
        parts = [size if isinstance(size, str) else self.integers([size]) for size in found]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def reshape(self, name: str, sizes: Sequence[Any]) -> str:
        """Reshaped; a single size that depends on the batch is left to be found."""
        found = [self.size(size) for size in sizes]
        open_sizes = [i for i, size in enumerate(found) if isinstance(size, str)]
        if len(open_sizes) == 1 and -1 not in found:
            found[open_sizes[0]] = -1
            return self.op("Reshape", name, self.integers([int(size) for size in found]))
        return self.op("Reshape", name, self.shape(sizes))


def shape_of(node: Any) -> list[int]:
    """As it was traced, the stand-in for the number of rows included."""
    return list(node.meta["val"].shape)


def dtype_of(value: Any) -> torch.dtype:
    """Of a node."""
    return value.meta["val"].dtype


def common(*values: Any) -> torch.dtype:
    """The type in which torch would combine nodes and numbers."""
    examples = [v.meta["val"] if isinstance(v, Node) else v for v in values]
    return torch.result_type(*examples) if len(examples) == 2 else dtype_of(values[0])
