"""What the user hands over, read once into aligned rows.

`train`, `validation` and new rows may be a pair of tensors or arrays, a `Dataset`, a `DataLoader` or an
iterable of batches. Whatever it was, inputs and targets are read together in one pass, so a loader that
shuffles cannot misalign them. Memory-mapped arrays are used where they are and never copied whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from .chunking import byte_chunks, near_bytes
from .disk_buffer import RowBuffer
from .trees import Inputs, as_inputs, count, leaves, rebuilt, structure, take, to_device

"""A tensor, or a tuple or dict of tensors; every leaf has the rows as its first dimension."""

BATCH_ROWS = 128  # of a Dataset, read at a time
ALIKE = 0.05  # squared distance of neighbouring rows over that of random ones, in a time series


@dataclass(frozen=True)
class Rows:
    """Aligned inputs and targets.

    Args:
        inputs: Leaves of shape [n, ...].
        targets: Shape [n, C].
        ordered: Whether the rows stand in the order in which the user keeps them.
    """

    inputs: Inputs
    targets: Tensor
    ordered: bool = True

    def __len__(self) -> int:
        return self.targets.shape[0]

    def take(self, indices: Tensor) -> Inputs:
        """The inputs of the rows `indices`, leaves of shape [len(indices), ...]."""
        return take(self.inputs, indices)

    def near(self, device: torch.device) -> Rows:
        """The rows on a GPU where the work is done there, unless they are too many: they are read often."""
        if not near_bytes(len(self), self.inputs, device):
            return self
        return replace(self, inputs=to_device(self.inputs, device))


def finite_rows(inputs: Inputs) -> Tensor:
    """Which rows hold no NaN and no infinity, shape [n] bool."""
    tensors = leaves(inputs)
    finite = torch.ones(tensors[0].shape[0], dtype=torch.bool, device=tensors[0].device)
    for leaf in tensors:
        if leaf.is_floating_point():
            # a mask of all numbers at once would be a quarter of the data
            numbers = leaf[:1].numel()
            parts = [
                torch.isfinite(part).reshape(len(part), numbers).all(dim=1) for part in byte_chunks(leaf)
            ]
            finite &= torch.cat(parts).to(finite.device)
    return finite


def require_finite(tensors: Inputs, what: str) -> None:
    """Raise a ValueError with the count and the first row when anything is NaN or infinite."""
    bad = (~finite_rows(tensors)).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"{what} are NaN or infinite in {len(bad)} of {count(tensors)} rows, first in row "
            f"{int(bad[0])}; drop or repair these rows."
        )


def gather(batches: Iterable[tuple[Inputs, Inputs]], *, name: str) -> tuple[Inputs, Inputs]:
    """Batches of (inputs, targets) one after another, in one pass; many of them go to a mapped file.

    Args:
        batches: Leaves of shape [b, ...], alike but for b.
        name: What to call them in error messages.
    """
    buffer, first = RowBuffer(name), None
    for number, batch in enumerate(batches):
        pair = (as_inputs(batch[0]), as_inputs(batch[1]))
        tensors = leaves(pair)
        if count(pair[0]) != count(pair[1]):
            raise ValueError(
                f"batch {number} of {name} has {count(pair[0])} inputs but {count(pair[1])} targets."
            )
        first = pair if first is None else first
        if _kind(pair) != _kind(first):
            raise ValueError(
                f"batch {number} of {name} holds {_kind(pair)}, but the first batch {_kind(first)}; all "
                "batches must have the same structure, types and shapes, but for the number of rows."
            )
        buffer.add(tensors)
    if first is None:
        raise ValueError(f"{name} holds no rows.")
    return rebuilt(first, iter(buffer.finish()))


def _kind(pair: Inputs) -> str:
    """Structure, types and shapes without the rows, as text."""
    kinds = [f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape[1:])}" for leaf in leaves(pair)]
    return f"{structure(pair)} of {', '.join(kinds)}"


def read_rows(source: Any, *, name: str) -> Rows:
    """Read `source` once into aligned rows, and check that they are whole and finite.

    Args:
        source: `(inputs, targets)`, a `Dataset` of such pairs, or a `DataLoader` or any other iterable of
            batches of them.
        name: What to call it in error messages.
    """
    if isinstance(source, Rows):
        pairs, ordered = (source.inputs, source.targets), source.ordered
    elif isinstance(source, (DataLoader, Dataset)) or _is_stream(source):
        pairs, ordered = _read_batches(source, name)
    else:
        pairs, ordered = _as_pair(source, name), True
    inputs, targets = as_inputs(pairs[0]), as_inputs(pairs[1])
    if not isinstance(targets, Tensor) or targets.ndim not in (1, 2):
        found = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(f"{name} targets have shape {found}; [n] or [n, C] is needed.")
    if count(inputs) != targets.shape[0]:
        raise ValueError(f"{name} has {count(inputs)} inputs but {targets.shape[0]} targets.")
    if targets.shape[0] == 0:
        raise ValueError(f"{name} holds no rows.")
    require_finite(inputs, f"{name} inputs")
    require_finite(targets, f"{name} targets")
    return Rows(inputs, targets.reshape(targets.shape[0], -1), ordered)


def _is_stream(source: Any) -> bool:
    """Whether it gives batches one after another, and is not itself a batch."""
    held = (tuple, list, dict, str, bytes, Tensor, np.ndarray)
    return isinstance(source, Iterable) and not isinstance(source, held)


def _as_pair(source: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        raise TypeError(
            f"{name} is a {type(source).__name__}; pass (inputs, targets), a Dataset, a DataLoader or an "
            "iterable of batches (inputs, targets)."
        )
    return source[0], source[1]


def _read_batches(source: Any, name: str) -> tuple[tuple[Any, Any], bool]:
    """One pass over a loader or an iterable; says whether the rows came in the data's own order."""
    loader, ordered = source, True
    if isinstance(source, DataLoader):
        # with a batch sampler of the user's own, the order is decided there and not by `sampler`
        sampler = source.sampler if source.batch_sampler is None else source.batch_sampler
        sampler = getattr(sampler, "sampler", sampler)
        ordered = isinstance(sampler, SequentialSampler) or isinstance(source.dataset, IterableDataset)
    elif isinstance(source, Dataset):
        loader = DataLoader(source, batch_size=BATCH_ROWS)
    pairs = (_as_pair(batch, f"batch {number} of {name}") for number, batch in enumerate(loader))
    return gather(pairs, name=name), ordered


def looks_like_time_series(rows: Rows, generator: torch.Generator) -> bool:
    """Whether neighbouring rows are far more alike than random ones, inputs and targets both."""
    n = len(rows)
    if n < 50 or not rows.ordered:
        return False
    first = torch.randint(0, n - 1, (min(n, 2000),), generator=generator)
    other = torch.randint(0, n, first.shape, generator=generator)
    floats = [leaf for leaf in leaves(rows.inputs) if leaf.is_floating_point()]
    for tensor in [*floats, rows.targets]:
        here, beside, apart = (_beginnings(tensor, index) for index in (first, first + 1, other))
        spread = here.std(dim=0).clamp_min(1e-300)
        near, far = (((here - values) / spread).square().mean() for values in (beside, apart))
        if not near < ALIKE * far:
            return False
    return bool(floats)


def _beginnings(tensor: Tensor, index: Tensor) -> Tensor:
    """The first numbers of some rows, at most 256 of each, float64; rows may be long, so a few at a time."""
    parts = (tensor[part.to(tensor.device)].flatten(1)[:, :256] for part in index.split(64))
    return torch.cat([part.detach().cpu().double() for part in parts])
