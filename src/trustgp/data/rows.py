"""The user's data, read once into aligned rows of inputs and targets.

`train`, `validation` and new rows may be a pair of tensors, arrays or data frames, a `Dataset`, a
`DataLoader` or an iterable of batches. Inputs and targets are always read together in one pass, so a loader
that shuffles cannot misalign them. Memory-mapped arrays are used in place and never copied as a whole.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import torch
from torch import Tensor, nn

from .batches import Unpack, as_pair, batches_of, equal_lengths, is_stream
from .chunking import byte_chunks, near_bytes, row_bytes
from .trees import Inputs, as_inputs, count, kinds, leaves, raw_bytes, rebuilt, structure, take, to_device

KEPT_BYTES = 2**30  # maximum size in memory of rows from a loader or an iterable
SPARED_BYTES = 2**26  # of disk space that stay free
BATCH_ROWS = 128  # rows of a Dataset that are read at a time
REPEATED, HASHED_BYTES = 1e-4, 2**24  # tolerance of duplicates over the spread; bytes read at a time
UNIQUE_SHARE = 0.9  # unique targets over distinct rows, from which equal rows are duplicates
MAX_TIME_SERIES_RATIO = 0.05  # squared distance of neighbouring rows, over that of random ones


@dataclass(frozen=True)
class Rows:
    """Aligned inputs, leaves of shape [n, ...], and targets [n, C].

    Examples:
        >>> model = trustgp.fit(network, trustgp.Rows(inputs, targets), progress=False)
    """

    inputs: Inputs
    targets: Tensor
    ordered: bool = True  # whether the rows are in the user's order
    weights: Tensor | None = None  # row weights over their mean, float64 [n]; None: all rows count once

    def __len__(self) -> int:
        return self.targets.shape[0]

    def take(self, indices: Tensor) -> Inputs:
        """The inputs of the rows `indices`, leaves of shape [len(indices), ...]."""
        return take(self.inputs, indices)

    def batch(self, indices: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs and targets of the rows `indices`."""
        return self.take(indices), self.targets[indices.to(self.targets.device)]

    def weights_at(self, indices: Tensor) -> Tensor | None:
        """The weights of the rows `indices`, on the CPU; None: all rows count once."""
        return None if self.weights is None else self.weights[indices.cpu()]

    @property
    def first(self) -> Inputs:
        """The inputs of the first row, as an example of their structure, shapes and types."""
        return self.take(torch.tensor([0]))

    def to_device(self, device: torch.device) -> Rows:
        """Rows with inputs on `device` if it is a GPU with room for them; else the rows as they are."""
        if not near_bytes(len(self), self.first, device):
            return self
        return replace(self, inputs=to_device(self.inputs, device))

    def subset(self, chosen: Tensor) -> Rows:
        """Rows that are True in `chosen` [n], or have these indices; their inputs are not copied."""
        return ChosenRows(self, torch.arange(len(self))[chosen])

    def every(self, stride: int) -> Rows:
        """Every `stride`-th row."""
        return self if stride == 1 else self.subset(torch.arange(len(self)) % stride == 0)

    def rebind(self, whole: Rows) -> Rows:
        """The same rows taken from `whole`, another copy of all rows, for example on another device."""
        return whole

    def parent_indices(self, indices: Tensor) -> Tensor:
        """Indices of the rows `indices` among all rows, of which these may be a subset."""
        return indices

    def looks_like_time_series(self, generator: torch.Generator) -> bool:
        """Whether neighbouring rows are far more similar than random ones, in both inputs and targets."""
        n = len(self)
        if n < 50 or not self.ordered:
            return False
        first = torch.randint(0, n - 1, (min(n, 2000),), generator=generator)
        other = torch.randint(0, n, first.shape, generator=generator)
        for start, *others in zip(*map(self._beginnings, (first, first + 1, other)), strict=True):
            spread = start.std(dim=0).clamp_min(1e-300)
            adjacent, random = (((start - values) / spread).square().mean() for values in others)
            if not adjacent < MAX_TIME_SERIES_RATIO * random:
                return False
        return any(leaf.is_floating_point() for leaf in leaves(self.first))

    def _beginnings(self, index: Tensor) -> list[Tensor]:
        """First numbers of some rows, at most 256 of each floating-point leaf and of the targets, float64."""
        lots = []
        for part in index.split(64):  # rows may be long
            inputs, targets = self.batch(part)
            reals = (*filter(Tensor.is_floating_point, leaves(inputs)), targets)
            lots.append([leaf.reshape(len(part), -1)[:, :256].detach().cpu().double() for leaf in reals])
        return [torch.cat(parts) for parts in zip(*lots, strict=True)]


class ChosenRows(Rows):
    """A subset of other rows that shares their memory; inputs are copied when they are read."""

    whole: Rows
    index: Tensor  # of these rows in `whole`, [n]

    def __init__(self, whole: Rows, index: Tensor) -> None:
        fields = {"whole": whole, "index": index, "ordered": whole.ordered}
        targets, weights = whole.targets[index.to(whole.targets.device)], whole.weights_at(index)
        vars(self).update(fields, targets=targets, weights=weights)

    @property
    def inputs(self) -> Inputs:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.whole.take(self.index)

    def take(self, indices: Tensor) -> Inputs:
        return self.whole.take(self.index[indices.to(self.index.device)])

    def subset(self, chosen: Tensor) -> Rows:
        return ChosenRows(self.whole, self.index[chosen])

    def to_device(self, device: torch.device) -> Rows:
        return ChosenRows(self.whole.to_device(device), self.index)

    def rebind(self, whole: Rows) -> Rows:
        return ChosenRows(whole, self.index)

    def parent_indices(self, indices: Tensor) -> Tensor:
        return self.index[indices]


class DenseOutputError(ValueError):
    """Outputs or targets have more than two dimensions; `rows` holds the rows that were read."""

    def __init__(self, message: str, rows: Any = None) -> None:
        super().__init__(message)
        self.rows = rows


def distinct_rows(rows: Rows) -> Tensor:
    """Mask of the rows that do not duplicate an earlier row, up to `REPEATED` of the spread, bool [n].

    Rounded inputs and targets are hashed; inputs are read only if targets repeat. If many rows share their
    targets, as in tables of categories, equal rows count as separate observations: all are True.
    """
    n, size = len(rows), HASHED_BYTES // max(1, row_bytes(rows.first)) + 1
    sample, targets = rows.batch(torch.arange(0, n, max(1, n // min(size, 1024))))
    device = leaves(sample)[0].device  # where inputs are on a GPU, millions of keys are sorted there
    keys, new = hashed(rows.targets.to(device), targets.to(device)), torch.ones(n, dtype=torch.bool)
    if (unique := len(keys.unique())) < n:
        lots = (map(hashed, leaves(rows.take(part)), leaves(sample)) for part in torch.arange(n).split(size))
        keys = keys + torch.cat([torch.stack([*lot]).sum(dim=0) for lot in lots])
    order = keys.argsort(stable=True)  # among equal keys the first row comes first
    new[order[1:].cpu()] = (keys[order].diff() != 0).cpu()
    return new if unique >= UNIQUE_SHARE * int(new.sum()) else torch.ones_like(new)


def hashed(values: Tensor, like: Tensor) -> Tensor:
    """Hash of each row, int64 [n], equal for equal rows; the spread is that of the rows `like`."""
    flat, like = values.reshape(len(values), -1), like.reshape(len(like), -1)
    if flat.is_floating_point():
        peak = like.double().abs().amax(dim=0)
        unit = torch.where((peak > 0) & torch.isfinite(peak), peak, 1.0)  # squares of huge numbers overflow
        step = (REPEATED * (like / unit).std(dim=0, correction=0)).nan_to_num(1.0).clamp_min(1e-12)
        flat = (flat.double() / unit / step).round().clamp(-(2.0**60), 2.0**60)
    weights = torch.randint(2**62, (flat.shape[1],), generator=torch.Generator().manual_seed(0))
    return (flat.long() * weights.to(flat.device)).sum(dim=1)  # it may overflow, always in the same way


def finite_rows(inputs: Inputs) -> Tensor:
    """Mask of the rows without NaN or infinity, bool [n]."""
    tensors = leaves(inputs)
    finite = torch.ones(tensors[0].shape[0], dtype=torch.bool, device=tensors[0].device)
    for leaf in tensors:
        if leaf.is_floating_point():
            # a mask of all numbers at once would be a quarter of the data
            masks = (torch.isfinite(part) for part in byte_chunks(leaf))
            parts = [mask.reshape(len(mask), leaf[:1].numel()).all(dim=1) for mask in masks]
            finite &= torch.cat(parts).to(finite.device)
    return finite


def require_all(finite: Tensor, what: str) -> None:
    """Raise a ValueError with the count and the first row unless all rows are finite, see `finite_rows`."""
    bad = (~finite).nonzero().flatten()
    if len(bad):
        count = f"{len(bad)} of {len(finite)} rows, first in row {int(bad[0])}"
        raise ValueError(f"{what} are NaN or infinite in {count}; drop or repair these rows.")


class RowBuffer:
    """Buffer of tensors with the rows as first dimension; each batch adds some rows to every tensor.

    Up to `KEPT_BYTES` are kept in memory; beyond that, rows are written to files, which are then mapped. The
    files have no name from the start (or are deleted on closing, on systems without unnamed files), so a
    killed process leaves nothing behind.
    """

    def __init__(self, name: str) -> None:
        self._name = name  # of the data, in error messages
        self._batches: list[list[Tensor]] = []  # in memory
        self._files: list[IO[bytes]] = []  # one for each tensor, once there are many rows
        self._like: list[Tensor] = []  # each tensor with zero rows: its dtype and shape
        self._rows, self._bytes = 0, 0

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add one batch: the same tensors [b, ...] each time; only b may differ."""
        self._rows += len(tensors[0])
        self._bytes += sum(tensor.nbytes for tensor in tensors)
        # copies: a loader may reuse the memory of its batches
        self._batches.append([tensor.detach().clone() for tensor in tensors])
        self._like = self._like or [tensor[:0] for tensor in self._batches[0]]
        if self._bytes > KEPT_BYTES:
            try:
                self._write()
            except OSError as error:
                raise self._full(error) from error

    def finish(self) -> list[Tensor]:
        """Complete tensors [n, ...], in memory or as mapped files that are read on demand."""
        if self._files:
            return [self._mapped(file, like) for file, like in zip(self._files, self._like, strict=True)]
        parts, whole = [[*part] for part in zip(*self._batches, strict=True)], []
        self._batches.clear()
        for part in parts:
            whole.append(part[0] if len(part) == 1 else torch.cat(part))
            part.clear()  # frees the batches
        return whole

    def _write(self) -> None:
        """Move the batches in memory to the files."""
        if not self._files:
            self._files = [tempfile.TemporaryFile(prefix="trustgp-") for _ in self._like]  # noqa: SIM115
        size = sum(tensor.nbytes for batch in self._batches for tensor in batch)
        if shutil.disk_usage(tempfile.gettempdir()).free < size + SPARED_BYTES:
            raise OSError(errno.ENOSPC, "no space left")
        for file, *parts in zip(self._files, *self._batches, strict=True):
            file.writelines(raw_bytes(part).data for part in parts)
            file.flush()
        self._batches.clear()

    def _full(self, error: OSError) -> OSError:
        folder = tempfile.gettempdir()
        return OSError(
            error.errno or errno.EIO,
            f"{self._name}: {self._rows} rows ({self._bytes} bytes) and no end yet; what is more than "
            f"{KEPT_BYTES} bytes is kept in a file in {folder}, and that failed: {error.strerror or error}. "
            "Let TMPDIR name a folder with more room, or pass memory-mapped arrays: they are not copied.",
        )

    def _mapped(self, file: IO[bytes], like: Tensor) -> Tensor:
        if (size := file.tell()) == 0:
            return like.new_empty(self._rows, *like.shape[1:])
        # copy on write: torch knows no read-only memory, and the mapping outlives the file's handle
        pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        file.close()
        return torch.frombuffer(pages, dtype=like.dtype).reshape(self._rows, *like.shape[1:])


def mapped_rows(n: int, like: Tensor) -> Tensor:
    """Tensor for n rows like those of `like`, in a mapped temporary file; OSError if the disk is full."""
    size = n * like[0].nbytes
    with tempfile.TemporaryFile(prefix="trustgp-") as file:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):  # else a full disk would only be noticed during the work
            os.posix_fallocate(file.fileno(), 0, size)
        pages = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(pages, dtype=like.dtype).reshape(n, *like.shape[1:])


def gather(batches: Iterable[tuple[Inputs, Inputs]], *, name: str) -> tuple[Inputs, Inputs]:
    """Concatenate batches of (inputs, targets), leaves [b, ...] that may differ in b only, in one pass; many
    rows go to a mapped file. `name` is used in error messages."""
    buffer, first = RowBuffer(name), None
    for number, pair in enumerate(batches):
        inputs, targets = map(count, pair)
        if inputs != targets:
            raise ValueError(f"batch {number} of {name} has {inputs} inputs but {targets} targets.")
        first = pair if first is None else first
        if _kind(pair) != _kind(first):
            what = f"batch {number} of {name} holds {_kind(pair)}, but the first batch {_kind(first)}"
            raise ValueError(f"{what}; all need one structure, and the same types and shapes of a row.")
        buffer.add(leaves(pair))
    if first is None:
        raise ValueError(f"{name} holds no rows.")
    return rebuilt(first, iter(buffer.finish()))


def _kind(pair: Inputs) -> str:
    """Structure, types and shapes of a row, as text."""
    return f"{structure(pair)} of {', '.join(kinds(pair))}"


def read_rows(
    source: Any,
    *,
    name: str,
    finite: bool = True,
    unpack: Unpack | None = None,
    network: nn.Module | None = None,
) -> Rows:
    """Read `source` once into aligned rows; check their shapes and, with `finite`, that they are finite.

    `source` is `(inputs, targets)`, a `Dataset` of such pairs, or a `DataLoader` or other iterable of
    batches: pairs, dicts with `labels`, or anything that `unpack` turns into pairs. `name` is used in error
    messages; arrays and data frames are converted to the types that `network` needs.
    """
    if isinstance(source, Rows):
        pair, ordered = (source.inputs, source.targets), source.ordered
    elif is_stream(source):
        loader, ordered = batches_of(source, BATCH_ROWS)
        named = ((batch, f"batch {number} of {name}") for number, batch in enumerate(loader))
        pairs = (_read_pair(as_pair(batch, what, unpack), network) for batch, what in named)
        pair = gather(equal_lengths(pairs, network), name=name)
    else:
        given = isinstance(source, (tuple, list)) and len(source) == 2  # a pair, which needs no unpacking
        pair, ordered = as_pair(source, name, None if given else unpack), True
    inputs, targets = _read_pair(pair, network)
    shape = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
    if not isinstance(targets, Tensor) or not targets.ndim:
        raise ValueError(f"{name} targets have shape {shape}; [n] or [n, C] is needed.")
    if count(inputs) != targets.shape[0]:
        raise ValueError(f"{name} has {count(inputs)} inputs but {targets.shape[0]} targets.")
    if targets.shape[0] == 0:
        raise ValueError(f"{name} holds no rows.")
    if targets.ndim > 2:
        what = f"{name} targets have shape {shape}; [n] or [n, C] is needed."
        raise DenseOutputError(what, Rows(inputs, targets, ordered))
    rows = Rows(inputs, targets.reshape(targets.shape[0], -1), ordered)
    if finite:
        require_finite_rows(rows, name)
    return rows


def require_finite_rows(rows: Rows, name: str) -> None:
    """Raise ValueError unless all inputs and targets are finite."""
    for what, values in (("inputs", rows.inputs), ("targets", rows.targets)):
        reals = (leaf for leaf in leaves(values) if leaf.is_floating_point())
        sums = (part.sum(dtype=torch.float64) for leaf in reals for part in byte_chunks(leaf))
        if not all(map(math.isfinite, sums)):  # a sum is only finite where all numbers are
            require_all(finite_rows(values), f"{name} {what}")


def _read_pair(pair: tuple[Any, Any], network: nn.Module | None) -> tuple[Inputs, Inputs]:
    return as_inputs(pair[0], network), as_inputs(pair[1])
