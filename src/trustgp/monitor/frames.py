"""One frame of sensor values as a row of a model's inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.trees import Inputs, leaves, map_tensors, rebuilt, structure


class FrameError(ValueError):
    """A frame that cannot be converted to a row."""


@dataclass(frozen=True)
class Form:
    """Structure, shapes and types of a model's frames, without the batch dimension."""

    structure: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    def row(self, frame: Inputs) -> Inputs:
        """The frame as inputs of one row, all finite; leaves may have the batch dimension or not."""
        if structure(frame) != self.structure:
            raise FrameError(f"the structure is {structure(frame)}, not {self.structure}")
        fitted = []
        for leaf, shape, dtype in zip(leaves(frame), self.shapes, self.dtypes, strict=True):
            if tuple(leaf.shape) not in (shape, (1, *shape)):
                raise FrameError(f"the shape is {tuple(leaf.shape)}, not {shape}")
            fitted.append(leaf.reshape(1, *shape).to(dtype))
            if not bool(torch.isfinite(fitted[-1]).all()):
                raise FrameError("values are NaN or infinite")
        return rebuilt(frame, iter(fitted))


def read_frame(frame: Any, wanted: str | None) -> Inputs:
    """A frame of arrays, lists or numbers with every leaf a tensor; the wanted structure may be unknown."""
    if isinstance(frame, dict):
        return {key: read_frame(value, None) for key, value in frame.items()}
    nested = isinstance(frame, (tuple, list)) and wanted != "tensor"
    if nested and ((wanted or "").startswith("(") or not all(isinstance(value, Real) for value in frame)):
        return tuple(read_frame(value, None) for value in frame)
    if isinstance(frame, Tensor):
        if frame.is_complex():
            raise FrameError(f"values are {frame.dtype}, not real numbers")
        return frame.detach()
    try:
        array = np.asarray(frame)
    except ValueError as error:  # rows of unequal length
        raise FrameError(f"values are no array: {error}") from error
    if array.dtype.kind not in "fiub":
        raise FrameError(f"values are {array.dtype}, not real numbers")
    extended = array.dtype.kind == "f" and array.dtype.itemsize > 8
    return torch.tensor(array.astype(np.float64 if extended else array.dtype.newbyteorder("=")))


def first_form(frame: Inputs, ask: Callable[[Inputs], Any], dtype: torch.dtype | None) -> tuple[Form, Any]:
    """The form and prediction of the first reading of a frame that the model answers with one row; NaN and
    infinities count as zeros."""
    first: Exception | None = None
    for row in _candidate_rows(map_tensors(torch.nan_to_num, frame), dtype):
        try:
            answer = ask(row)
            if len(answer.mean) != 1:
                raise ValueError(f"the model returns {len(answer.mean)} rows instead of one.")
        except Exception as error:
            first = first or error
            continue
        shapes, dtypes = zip(*((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves(row)), strict=True)
        return Form(structure(row), shapes, dtypes), answer
    shapes = [tuple(leaf.shape) for leaf in leaves(frame)]
    what = f"the model accepts no frame with the structure {structure(frame)} and the shapes {shapes}"
    raise ValueError(f"{what}: {first} Pass one row, with or without the batch dimension.") from first


def _candidate_rows(frame: Inputs, dtype: torch.dtype | None) -> Iterator[Inputs]:
    """Readings of a frame as one row, the likeliest first: with the batch dimension, or without."""
    tensors = leaves(frame)
    batched = all(leaf.ndim > 0 and leaf.shape[0] == 1 for leaf in tensors)
    flat = all(leaf.ndim < 2 for leaf in tensors)  # [1] is a row of one number
    orders = ([False, True] if flat else [True, False]) if batched else [False]
    for keeps in orders:
        row = frame if keeps else map_tensors(lambda leaf: leaf[None], frame)
        yield map_tensors(lambda x: x.to(dtype or x.dtype) if x.is_floating_point() else x, row)
        yield map_tensors(lambda x: x.to(dtype or torch.float32), row)
