"""One file format for models and checkpoints: safetensors, whole or absent, with a checksum.

The file is a plain safetensors file. Its metadata hold the format, a version, a JSON text, and a SHA-256
over every byte of the file (with the checksum's own digits taken as zeros). The checksum finds damage, not
attackers: whoever can write the file can write a matching checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

VERSION = 1
LONGEST_HEADER = 2**20  # bytes; a model has a few dozen tensors however many experts it has
_ZEROS = "0" * 64


class ArtifactError(ValueError):
    """A file that is damaged, foreign, or made for something else."""


def write(path: Path, *, kind: str, text: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file whole or not at all: a temporary file beside it, fsync, rename."""
    path = Path(path)
    metadata = {
        "format": kind,
        "version": str(VERSION),
        "sha256": _ZEROS,
        "text": json.dumps(text, sort_keys=True),
    }
    # clones: safetensors refuses tensors that share memory, as small ones here often do
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with _temporary_beside(path) as temporary:
        save_file(plain, temporary, metadata)
        with open(temporary, "r+b") as file:
            header = _read_header(file, temporary)
            digest = _digest(file, header)
            file.seek(8 + header.index(_ZEROS.encode()))
            file.write(digest.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    _sync_folder(path.parent)


def read(path: Path, *, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Text and tensors of a file, after every check that needs no knowledge of what they mean."""
    path = Path(path)
    with open(path, "rb") as file:
        header = _read_header(file, path)
        metadata = _metadata(header, path, kind)
        expected = metadata["sha256"]
        if len(expected) != 64 or header.count(expected.encode()) != 1:
            raise ArtifactError(f"{path}: the checksum is missing or stands twice.")
        if _digest(file, header.replace(expected.encode(), _ZEROS.encode())) != expected:
            raise ArtifactError(f"{path}: the checksum does not match; the file is damaged.")
    try:
        text = json.loads(metadata["text"], object_pairs_hook=_unique)
        with safe_open(path, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: {error}") from error
    if not isinstance(text, dict):
        raise ArtifactError(f"{path}: its text is not a table.")
    return text, tensors


class Reader:
    """Takes tensors out of a table one by one, and checks each; what is left over is an error."""

    def __init__(self, tensors: dict[str, Tensor], *, where: str) -> None:
        self._tensors = dict(tensors)
        self._where = where

    def take(self, name: str, dtype: torch.dtype | None, *shape: int | None) -> Tensor:
        """The tensor `name`, of this dtype (None: floating) and shape (None: any size)."""
        if name not in self._tensors:
            raise ArtifactError(f"{self._where}: tensor '{name}' is missing.")
        value = self._tensors.pop(name)
        wrong = value.dtype != dtype if dtype is not None else not value.is_floating_point()
        if wrong:
            raise ArtifactError(f"{self._where}: tensor '{name}' is {value.dtype}, not {dtype or 'float'}.")
        fits = value.ndim == len(shape) and all(
            want is None or want == have for want, have in zip(shape, value.shape, strict=True)
        )
        if not fits:
            raise ArtifactError(
                f"{self._where}: tensor '{name}' has shape {tuple(value.shape)}, not {shape}."
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ArtifactError(f"{self._where}: tensor '{name}' holds NaN or infinity.")
        return value

    def matching(self, prefix: str) -> list[str]:
        """Names not yet taken that begin with `prefix`, without it."""
        return sorted(name[len(prefix) :] for name in self._tensors if name.startswith(prefix))

    def fail(self, name: str, what: str) -> ArtifactError:
        return ArtifactError(f"{self._where}: tensor '{name}' {what}.")

    def finish(self) -> None:
        """Raise if anything was not taken."""
        if self._tensors:
            raise ArtifactError(f"{self._where}: unknown tensors {sorted(self._tensors)[:3]}.")


def _read_header(file: BinaryIO, path: Path) -> bytes:
    """The header's bytes; refused before anything large is read or parsed."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length < 2 or 8 + length > size:
        raise ArtifactError(f"{path}: not a trustgp file, or cut short.")
    if length > LONGEST_HEADER:
        raise ArtifactError(f"{path}: a header of {length} bytes; not a trustgp file.")
    return file.read(length)


def _metadata(header: bytes, path: Path, kind: str) -> dict[str, str]:
    try:
        table = json.loads(header, object_pairs_hook=_unique)
        metadata = table["__metadata__"]
        found, version = metadata["format"], int(metadata["version"])
        if not all(isinstance(metadata[key], str) for key in ("sha256", "text")):
            raise KeyError("sha256")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{path}: not a trustgp file, or damaged ({error}).") from error
    if found != kind:
        raise ArtifactError(f"{path}: holds a '{found}', not a '{kind}'.")
    if version > VERSION:
        raise ArtifactError(
            f"{path}: written by a newer trustgp (file version {version}, this one reads {VERSION}); "
            "upgrade trustgp."
        )
    return metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key '{next(n for n in names if names.count(n) > 1)}' stands twice")
    return table


def _digest(file: BinaryIO, header: bytes) -> str:
    """SHA-256 over the file, with `header` in place of its own header."""
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    file.seek(8 + len(header))
    while block := file.read(2**20):
        digest.update(block)
    return digest.hexdigest()


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder, gone afterwards whatever happens."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise OSError(f"cannot write in the folder of {path}: {error}") from error
    os.close(handle)
    try:
        yield Path(name)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{path} was not written ({error}); what stood there before is intact.") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
