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
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

VERSION = 2
READERS = {1: "0.1"}  # releases that read files of versions before
LONGEST_HEADER = 2**19  # bytes; a kernel has a few dozen tensors however many experts it has
PART = ".part"  # ends the name of a file that is being written
_ZEROS = "0" * 64
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.bool: "BOOL",
}


class ArtifactError(ValueError):
    """A file that is damaged, foreign, or made for something else."""


def write(path: Path, *, kind: str, text: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file whole or not at all: a temporary file beside it, fsync, rename."""
    path = Path(path)
    plain = _ordered({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    header = _make_header(kind, text, plain)
    if len(header) > LONGEST_HEADER:
        raise ValueError(
            f"{path}: {len(tensors)} tensors need a header of {len(header)} bytes, more than the "
            f"{LONGEST_HEADER} that are read back; outputs='shared' or 'pseudo' need fewer tensors."
        )
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    with temporary_beside(path) as temporary:
        with open(temporary, "r+b") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for value in plain.values():
                block = value.reshape(-1).view(torch.uint8).numpy().data
                digest.update(block)
                file.write(block)
            file.seek(8 + header.index(_ZEROS.encode()))
            file.write(digest.hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must be durable
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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


def kind_of(path: Path) -> str:
    """What a file says it holds; nothing else is checked."""
    with open(path, "rb") as file:
        return _read_header(file, path)[1]["format"]


def inside(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, by the rest of their names."""
    return {name[len(prefix) :]: tensors[name] for name in tensors if name.startswith(prefix)}


def read(path: Path, *, kind: str) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Text and tensors of a file, after every check that needs no knowledge of what they mean."""
    path = Path(path)
    with open(path, "rb") as file:
        header, metadata = _read_header(file, path)
        found, version, expected = metadata["format"], int(metadata["version"]), metadata["sha256"]
        if found != kind:
            raise ArtifactError(f"{path}: holds a '{found}', not a '{kind}'.")
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
        if not re.fullmatch("[0-9a-f]{64}", expected) or header.count(expected.encode()) != 1:
            raise ArtifactError(f"{path}: the checksum is missing or stands twice.")
        blank = header.replace(expected.encode(), _ZEROS.encode())
        digest = hashlib.sha256(len(blank).to_bytes(8, "little") + blank)  # then the rest of the file
        if hashlib.file_digest(file, lambda: digest).hexdigest() != expected:
            raise ArtifactError(f"{path}: the checksum does not match; the file is damaged.")
    try:
        text = json.loads(metadata["text"], object_pairs_hook=_unique)
        tensors = _Stored(path)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: {error}") from error
    if not isinstance(text, dict):
        raise ArtifactError(f"{path}: its text is not a table.")
    return text, tensors


class _Stored(Mapping[str, Tensor]):
    """The tensors of a file, each read when it is asked for: forged ones by the thousand cost nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: Any = safe_open(path, "pt")
        self._names = dict.fromkeys(self._opened.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        try:
            # a copy: what safetensors gives is the file itself, and changes when that is overwritten
            return self._opened.get_tensor(name).clone()
        except SafetensorError as error:
            raise ArtifactError(f"{self._path}: tensor '{name}' cannot be read: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Reader:
    """Takes tensors out of a table one by one, and checks each; what is left over is an error."""

    def __init__(self, tensors: Mapping[str, Tensor], *, where: str) -> None:
        self._tensors = tensors
        self._left = set(tensors)
        self._where = where

    def take(self, name: str, dtype: torch.dtype | None, *shape: int | None) -> Tensor:
        """The tensor `name`, of this dtype (None: floating) and shape (None: any size)."""
        self.require(name in self._left, name, "is missing")
        self._left.remove(name)
        value = self._tensors[name]
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


def _read_header(file: BufferedReader, path: Path) -> tuple[bytes, dict[str, str]]:
    """The header's bytes, and the metadata in it; refused before anything large is read or parsed."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length < 2 or 8 + length > size:
        raise ArtifactError(f"{path}: not a trustgp file, or cut short.")
    if length > LONGEST_HEADER:
        raise ArtifactError(f"{path}: a header of {length} bytes; not a trustgp file.")
    header = file.read(length)
    try:
        metadata = json.loads(header, object_pairs_hook=_unique)["__metadata__"]
        int(metadata["version"])
        if not all(isinstance(metadata[key], str) for key in ("format", "sha256", "text")):
            raise KeyError("sha256")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{path}: not a trustgp file, or damaged ({error}).") from error
    return header, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The table of some JSON pairs; a key that stands twice is an error, not the last one wins."""
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"key '{name}' stands twice")
        table[name] = value
    return table


@contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """An empty temporary file in the same folder, gone afterwards whatever happens."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}{PART}"
    try:
        # not `tempfile`, whose files nobody but the owner may read
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise explained(error, f"cannot write in the folder of {path}") from error
    try:
        yield temporary
    except OSError as error:
        raise explained(error, f"{path} was not written; what stood there before is intact") from error
    finally:
        temporary.unlink(missing_ok=True)


def explained(error: OSError, what: str) -> OSError:
    """An error of the same kind (`PermissionError` and so on) that says what it means."""
    reason = error.strerror or str(error)
    return OSError(error.errno, f"{what}: {reason}") if error.errno else OSError(f"{what}: {reason}")
