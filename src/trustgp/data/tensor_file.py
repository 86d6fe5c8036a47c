"""One file format for models and checkpoints: safetensors, whole or absent, with a checksum.

The file is a plain safetensors file. Its metadata hold the format, a version, a JSON text, and a SHA-256
over every byte of the file (with the checksum's own digits taken as zeros). The checksum finds damage, not
attackers: whoever can write the file can write a matching checksum.

The header is written here and not by `safetensors.save_file`, which puts the metadata in another order each
time: the same state must give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from io import BufferedReader
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .atomic_file import atomic_file
from .escapes import printable
from .trees import raw_bytes

VERSION = 2
READERS = {1: "0.1"}  # releases that read files of versions before
LONGEST_HEADER, MOST_TENSORS = 2**20, 2**13  # bytes; a kernel has a few dozen, whatever its experts
LARGE = 2**12  # bytes from which a tensor that is read has memory of its own
CHUNK = 2**20  # bytes that are read at once where they are not kept
MOST_DIMENSIONS = 8  # of a tensor
_ZEROS = "0" * 64
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.bool: "BOOL",
}
_TYPES = {code: dtype for dtype, code in _CODES.items()}


class ArtifactError(ValueError):
    """A file that is damaged, foreign, or made for something else."""

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message))  # it may quote the file, or a name that somebody else has given


class TensorFile(NamedTuple):
    """What a file holds."""

    kind: str
    text: dict[str, Any]
    tensors: Mapping[str, Tensor]
    nbytes: int  # of the file


def write(path: Path, *, kind: str, text: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file whole or not at all, see `atomic_file`."""
    path = Path(path)
    plain = _ordered({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    header = _make_header(kind, text, plain)
    if len(header) > LONGEST_HEADER or len(tensors) > MOST_TENSORS:
        raise ValueError(
            f"{path}: {len(tensors)} tensors, and a header of {len(header)} bytes; {MOST_TENSORS} tensors "
            f"and {LONGEST_HEADER} bytes are read back at most; outputs='shared' or 'pseudo' need fewer."
        )
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    with atomic_file(path) as temporary, open(temporary, "r+b") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for value in plain.values():
            block = raw_bytes(value).data
            digest.update(block)
            file.write(block)
        file.seek(8 + header.index(_ZEROS.encode()))
        file.write(digest.hexdigest().encode())


def written_bytes(*, kind: str, text: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """How long the file would be that `write` writes."""
    payload = sum(value.nbytes for value in tensors.values())
    return 8 + len(_make_header(kind, text, _ordered(tensors))) + payload


def _ordered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Wide numbers first, so that each tensor is aligned to its own element size."""
    return dict(sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])))


def _make_header(kind: str, text: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors header, a checksum of zeros in it; `tensors` in the order in which they lie."""
    metadata = {
        "sha256": _ZEROS,  # first: `write` looks for the zeros
        "format": kind,
        "version": str(VERSION),
        "text": json.dumps(text, sort_keys=True),
    }
    table: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, value in tensors.items():
        start, end = end, end + value.nbytes
        shape, offsets = list(value.shape), [start, end]
        table[name] = {"dtype": _CODES[value.dtype], "shape": shape, "data_offsets": offsets}
    header = json.dumps(table, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)


def inside(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, by the rest of their names."""
    return {name[len(prefix) :]: tensors[name] for name in tensors if name.startswith(prefix)}


def read(path: Path, *, kind: str) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Text and tensors of a file of this kind, after all checks that need no knowledge of what they mean."""
    found = read_file(path, (kind,))
    return found.text, found.tensors


def read_file(
    path: Path, kinds: Collection[str], *, keep: Callable[[str], bool] = lambda name: True
) -> TensorFile:
    """A file of one of these kinds, after the same checks.

    Every byte is read once: what is hashed is what is parsed, so that another process which replaces, cuts or
    overwrites the file meanwhile gives one whole file or an `ArtifactError`. Tensors that are not to `keep`
    are hashed and let go; they come on the device "meta", with their type and shape alone.
    """
    path = Path(path)
    require_plain(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header, table = _read_header(file, size, path)
        metadata = table.pop("__metadata__")
        _check_metadata(metadata, kinds, path)
        expected = metadata["sha256"]
        if not re.fullmatch("[0-9a-f]{64}", expected) or header.count(expected.encode()) != 1:
            raise ArtifactError(f"{path}: the checksum is missing or stands twice.")
        places = _places(table, size - 8 - len(header), path)
        blank = header.replace(expected.encode(), _ZEROS.encode())
        digest = hashlib.sha256(len(blank).to_bytes(8, "little") + blank)  # then the rest of the file
        tensors = _read_tensors(file, places, keep, digest, path)
    if digest.hexdigest() != expected:
        raise ArtifactError(f"{path}: the checksum does not match; the file is damaged.")
    try:
        text = json.loads(metadata["text"], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: {error}") from error
    if not isinstance(text, dict):
        raise ArtifactError(f"{path}: its text is not a table.")
    return TensorFile(metadata["format"], text, tensors, size)


def _check_metadata(metadata: dict[str, str], kinds: Collection[str], path: Path) -> None:
    """Raise unless the file is of one of these kinds, and of a version that is read here."""
    found, version = metadata["format"], int(metadata["version"])
    if found not in kinds:
        wanted = "' or '".join(kinds)
        raise ArtifactError(f"{path}: holds a '{found}', not a '{wanted}'.")
    if version < 1:
        raise ArtifactError(f"{path}: file version {version}; not a trustgp file, or damaged.")
    if version in READERS:
        raise ArtifactError(
            f"{path}: written by trustgp {READERS[version]}, whose models were many times as large; that "
            f"release reads it (pip install 'trustgp=={READERS[version]}.*'), or fit again with this one."
        )
    if version > VERSION:
        raise ArtifactError(
            f"{path}: written by a newer trustgp (file version {version}, this one reads {VERSION}); "
            "upgrade trustgp."
        )


class _Place(NamedTuple):
    """Where a tensor lies in the payload, in bytes, and what it is."""

    start: int
    end: int
    name: str
    dtype: torch.dtype
    shape: list[int]


def _places(table: dict[str, Any], size: int, path: Path) -> list[_Place]:
    """The tensors of a header in the order in which they lie; they must fill a payload of `size` bytes."""
    places, last = [], 0
    for name, entry in table.items():
        try:
            (start, end), shape, dtype = entry["data_offsets"], entry["shape"], _TYPES[entry["dtype"]]
            whole = type(start) is type(end) is int and type(shape) is list and len(shape) <= MOST_DIMENSIONS
            length = dtype.itemsize
            for n in shape:
                whole, length = whole and type(n) is int and n >= 0, length * n
            if not whole or end - start != length or len(entry) != 3:
                raise ValueError("its shape does not fit its bytes")
        except (KeyError, TypeError, ValueError) as error:
            said = error if isinstance(error, ValueError) else "its type, shape or offsets are unknown"
            raise ArtifactError(f"{path}: tensor '{name}' cannot be read: {said}.") from error
        places.append(_Place(start, end, name, dtype, shape))
    places.sort()
    for place in places:
        if place.start != last:
            raise ArtifactError(f"{path}: tensor '{place.name}' does not begin where the one before it ends.")
        last = place.end
    if last != size:
        raise ArtifactError(f"{path}: {size} bytes of tensors, not {last}; cut short, or damaged.")
    return places


def _read_tensors(
    file: BufferedReader, places: list[_Place], keep: Callable[[str], bool], digest: Any, path: Path
) -> _Stored:
    """Read and hash the payload. A large tensor has memory of its own; small ones share some, for there may
    be thousands of forged ones."""
    stored: dict[str, tuple[_Place, Tensor | None, int]] = {}  # its memory, and where that begins
    for large, lot in groupby(places, key=lambda place: place.end - place.start >= LARGE):
        for run in [[place] for place in lot] if large else [list(lot)]:
            start, end = run[0].start, run[-1].end
            kept = not large or keep(run[0].name)
            try:
                block = torch.empty(end - start if kept else CHUNK, dtype=torch.uint8)
            except RuntimeError as error:
                raise ArtifactError(f"{path}: holds {end - start} bytes, more than can be had.") from error
            memory = block.numpy().data
            for done in range(start, end, max(len(memory), 1)):
                part = memory[: end - done]
                if file.readinto(part) != len(part):
                    raise ArtifactError(f"{path}: cut short while it was read.")
                digest.update(part)
            stored |= {place.name: (place, block if kept else None, start) for place in run}
    return _Stored(stored)


class _Stored(Mapping[str, Tensor]):
    """The tensors of a file, each made when it is asked for."""

    def __init__(self, stored: dict[str, tuple[_Place, Tensor | None, int]]) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> Tensor:
        place, block, first = self._stored[name]
        if block is None:
            return torch.empty(place.shape, dtype=place.dtype, device="meta")
        if len(block) != place.end - place.start:  # a view would hold, and send, what lies beside it
            block = block[place.start - first : place.end - first].clone()
        return block.view(place.dtype).reshape(place.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class Reader:
    """Takes tensors out of a table one by one, and checks each; what is left over is an error."""

    def __init__(self, tensors: Mapping[str, Tensor], *, where: str) -> None:
        self._tensors = tensors
        self._left = set(tensors)
        self._where = where
        self.recast: dict[torch.dtype, torch.dtype] = {}  # what is taken, by what is asked for, and made that

    def take(self, name: str, dtype: torch.dtype | None, *shape: int | None) -> Tensor:
        """The tensor `name`, of this dtype (None: floating) and shape (None: any size)."""
        self.require(name in self._left, name, "is missing")
        self._left.remove(name)
        value = self._tensors[name]
        if dtype is not None and self.recast.get(dtype) == value.dtype:
            value = value.to(dtype)
        right = value.is_floating_point() if dtype is None else value.dtype == dtype
        self.require(right, name, f"is {value.dtype}, not {dtype or 'float'}")
        sizes = zip(shape, value.shape, strict=False)
        fits = value.ndim == len(shape) and all(want in (None, have) for want, have in sizes)
        self.require(fits, name, f"has shape {tuple(value.shape)}, not {shape}")
        finite = not value.is_floating_point() or torch.isfinite(value)
        self.require(finite, name, "holds NaN or infinity")
        return value

    def matching(self, prefix: str) -> list[str]:
        """Names not yet taken that begin with `prefix`, without it."""
        return sorted(name[len(prefix) :] for name in self._left if name.startswith(prefix))

    def positive(self, name: str, *shape: int | None, zero: bool = False) -> Tensor:
        """The float64 tensor `name`, whose entries must be positive; with `zero`, not negative."""
        value = self.take(name, torch.float64, *shape)
        holds = value >= 0 if zero else value > 0
        self.require(holds, name, "must not be negative" if zero else "must be positive")
        return value

    def require(self, holds: Tensor | bool, name: str, what: str) -> None:
        """Refuse the tensor `name` unless this holds, of all entries."""
        if not bool(torch.as_tensor(holds).all()):
            raise self.fail(name, what)

    def fail(self, name: str, what: str) -> ArtifactError:
        return ArtifactError(f"{self._where}: tensor '{name}' {what}.")

    def finish(self) -> None:
        """Raise if anything was not taken."""
        if self._left:
            raise ArtifactError(f"{self._where}: unknown tensors {sorted(self._left)[:3]}.")


def _read_header(file: BufferedReader, size: int, path: Path) -> tuple[bytes, dict[str, Any]]:
    """The header's bytes, and the table in it; refused before anything large is read or parsed."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length < 2 or 8 + length > size:
        raise ArtifactError(f"{path}: not a trustgp file, or cut short.")
    if length > LONGEST_HEADER:
        raise ArtifactError(f"{path}: a header of {length} bytes; not a trustgp file.")
    header = file.read(length)
    if (count := header.count(b'"data_offsets"')) > MOST_TENSORS:  # before they are parsed
        raise ArtifactError(f"{path}: {count} tensors, more than {MOST_TENSORS}; not a trustgp file.")
    try:
        table = json.loads(header, object_pairs_hook=_unique)
        metadata = table["__metadata__"]
        int(metadata["version"])
        if not all(isinstance(metadata[key], str) for key in ("format", "sha256", "text")):
            raise KeyError("sha256")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{path}: not a trustgp file, or damaged ({error}).") from error
    return header, table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The table of some JSON pairs; a key that stands twice is an error, not the last one wins."""
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"key '{name}' stands twice")
        table[name] = value
    return table


def require_plain(path: Path) -> None:
    """Refuse pipes and devices, at which a program would wait, or read without an end."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a folder has an OSError of its own
        raise ArtifactError(f"{path}: is a pipe or a device, not a file.")
