"""Data frames and series of pandas, polars or other packages, recognised by their methods, not imported.

Rows keep their order; an index and the names of the columns are ignored.
"""

from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def is_frame(value: Any) -> bool:
    """Whether `value` is a frame or a series: an object with a method `to_numpy`."""
    return hasattr(value, "to_numpy") and not isinstance(value, type)


def frame_tensor(frame: Any, network: nn.Module | None = None) -> Tensor:
    """Values of a frame [n, columns] or of a series [n]; missing values are NaN.

    With a network, numbers take the precision of its parameters, except that integers become int64 if the
    network has an embedding, which looks them up. Without a network, numbers keep their type.
    """
    series = getattr(frame, "columns", None) is None
    values = _values(frame, f"series {getattr(frame, 'name', None)!r}") if series else _table(frame)
    tensor = torch.from_numpy(np.array(values, order="C"))  # a writable copy
    if network is None:
        return tensor
    embeds = any(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in network.modules())
    return tensor.long() if embeds and not tensor.is_floating_point() else tensor.to(precision_of(network))


def precision_of(network: nn.Module) -> torch.dtype:
    """Dtype of the first floating-point parameter; float64 if there is none."""
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float64)


def _table(frame: Any) -> np.ndarray:
    names, columns = list(frame.columns), []
    if not names:
        raise ValueError(f"the {type(frame).__name__} has no columns.")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"column {name!r} occurs twice in the {type(frame).__name__}; rename one.")
        values = _values(frame[name], f"column {name!r}")
        if values.ndim != 1:
            raise ValueError(f"column {name!r} holds lists; pass them as an array of their own.")
        columns.append(values)
    return np.stack(columns, axis=1)


def _values(column: Any, what: str) -> np.ndarray:
    """Numbers of a column; a ValueError names a column that holds anything else."""
    values = column.to_numpy()
    if values.dtype == object:  # numbers beside missing ones, or no numbers at all
        missing = np.asarray(column.is_null() if hasattr(column, "is_null") else column.isna(), dtype=bool)
        present = values[~missing]
        if all(isinstance(value, (Real, Decimal, np.bool_)) for value in present):
            numbers = np.full(values.shape, np.nan)
            numbers[~missing] = present.astype(np.float64)
            return numbers
    if values.dtype.kind not in "biuf":
        advice = "leave it out, or encode labels as numbers: numpy.unique(labels, return_inverse=True)[1]"
        raise ValueError(f"{what} is not numeric: it holds {column.dtype}. Numbers are needed: {advice}.")
    return values
