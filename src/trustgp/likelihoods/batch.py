"""Batches of rows: indexing, iteration, devices, arrays, and a short text."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from ..data.tables import html_table, text_table

SHOWN = 5  # rows in a text
ALLOWED = (
    "rows are chosen by an integer, a slice, a mask [n] of booleans or integers [k]; single outputs are "
    "chosen in the tensors: p.mean[3, 1]."
)


class Batch:
    """Base of frozen dataclasses of tensors with rows as first dimension; `p[3]` is the same as `p[3:4]`."""

    ARRAYS: ClassVar[tuple[str, ...]]  # names of the arrays of `numpy`
    FLOAT64: ClassVar[tuple[str, ...]] = ()  # fields that stay in float64

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Self:
        """A subset of rows: an integer, a slice, a mask [n] of booleans, or integers [k] in any order."""
        rows = row_index(index, len(self))

        def picked(_: str, value: Tensor) -> Tensor:
            place = rows.to(value.device) if isinstance(rows, Tensor) else rows
            if value.ndim == 2 and value.shape[1] > 1 and value.stride(1) == 0:  # stays an expanded view
                return value[:, :1][place].expand(-1, value.shape[1])
            return value[place]

        return self._changed(picked)

    def __iter__(self) -> Iterator[Self]:
        """Iterate over the rows, each a batch of one."""
        return (self[place] for place in range(len(self)))

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> Self:
        """The batch on another device, in another precision, or both; also `to(dtype)`.

        Only the mean is converted to half precision: variances would underflow.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype={dtype}; predictions are real numbers: pass a floating dtype.")

        def change(name: str, value: Tensor) -> Tensor:
            if dtype is None or not value.is_floating_point() or name in self.FLOAT64:
                return value.to(device)
            return value.to(device, dtype if name == "mean" else torch.promote_types(dtype, torch.float32))

        return self._changed(change)

    def cpu(self) -> Self:
        """The batch on the CPU."""
        return self.to("cpu")

    def numpy(self) -> dict[str, np.ndarray]:
        """Copies of the arrays, by name, without fields that are None."""
        values = {name: value.detach() for name in self.ARRAYS if (value := getattr(self, name)) is not None}
        wide = {k: v.float() if v.dtype == torch.bfloat16 else v for k, v in values.items()}  # as NumPy has
        return {name: value.cpu().numpy().copy() for name, value in wide.items()}

    def __dir__(self) -> list[str]:
        """Names of the attributes, without the constants of the class."""
        return [name for name in super().__dir__() if not name.isupper()]

    def __repr__(self) -> str:
        return text_table(self._title, self[:SHOWN].cpu()._lines(), self._more)

    def _repr_html_(self) -> str:
        header, *lines = self[:SHOWN].cpu()._lines()
        return html_table(self._title, header, lines, self._more)

    @property
    def _more(self) -> str:
        return f"... {len(self) - SHOWN:,} more" if len(self) > SHOWN else ""

    @property
    def _title(self) -> str:
        """One line with the kind and size of the batch."""
        raise NotImplementedError

    def _lines(self) -> list[list[str]]:
        """The header and all rows, each a list of cell texts."""
        raise NotImplementedError

    def _changed(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        """A copy with `change(name, tensor)` applied to every tensor, also to lazy ones."""
        return replace(self, **{f.name: self._one(f.name, change) for f in fields(self)})  # pyright: ignore

    def _one(self, name: str, change: Callable[[str, Tensor], Tensor]) -> Any:
        """Value of one field after `change`."""
        value = getattr(self, name)
        return change(name, value) if isinstance(value, Tensor) else value


def row_index(index: Any, n: int) -> slice | Tensor:
    """Rows that the index selects from n rows: a slice, or positions [k], int64."""
    if isinstance(index, slice):
        positions = range(n)[index]
        return index if positions.step > 0 else torch.tensor(positions, dtype=torch.int64)
    if isinstance(index, (tuple, str)):
        raise TypeError(f"index {index!r}; {ALLOWED}")
    rows = index if isinstance(index, Tensor) else torch.as_tensor(np.asarray(index))
    shape = tuple(rows.shape)
    if rows.dtype == torch.bool:
        if shape != (n,):
            raise IndexError(f"a mask of shape {shape} for {n} rows; it needs one entry for each.")
        return rows.nonzero().flatten()
    if not rows.numel():
        return torch.zeros(0, dtype=torch.int64)
    if rows.is_floating_point() or rows.is_complex() or rows.ndim > 1:
        raise TypeError(f"an index of shape {shape} and {rows.dtype}; {ALLOWED}")
    rows = rows.reshape(-1).long()
    least, most = int(rows.min()), int(rows.max())
    if least < -n or most >= n:
        raise IndexError(f"row {most if most >= n else least} of {n}; rows are counted from 0.")
    return rows


def columns(values: Tensor) -> Tensor:
    """Values [n] or [n, C] as a matrix [n, C], also for n = 0."""
    return values if values.ndim == 2 else values[:, None]


def above(score: Tensor, threshold: float | None) -> Tensor:
    """Whether each score lies above the threshold, bool; NaN counts as above."""
    if threshold is None:
        raise ValueError(
            "no novelty threshold is available without held-out rows; call model.threshold(rows) with "
            "in-distribution rows, then predict again."
        )
    return ~(score <= threshold)


def ranks_of(prediction: Any) -> tuple[str, list[str]]:
    """Column title and text of each row: its novelty rank and whether it is novel, or only its novelty."""
    if prediction._reference is None:
        return "novelty", [f"{value:.3f}" for value in prediction.novelty.tolist()]
    novel = [False] * len(prediction) if prediction._threshold is None else prediction.is_novel.tolist()
    each = zip(prediction.novelty_rank.tolist(), novel, strict=True)
    return "novelty rank", [f"{rank:.2f}" + ", novel" * flag for rank, flag in each]
