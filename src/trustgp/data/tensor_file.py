"""File format of models and checkpoints: safetensors, written atomically, with a checksum.

The metadata of the safetensors file have one key, "trustgp": a JSON table of format, version, description
and a SHA-256 over every byte of the file (with the checksum's own digits taken as zeros). safetensors writes
several keys in another order each time; with one key the same state gives the same bytes. The checksum finds
damage, not attackers: anyone who can write the file can write a matching checksum.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from .atomic_file import atomic_file
from .escapes import printable

VERSION = 3
MAX_HEADER_BYTES, MAX_TENSORS = 2**20, 2**13  # a kernel has a few dozen tensors, however many experts
METADATA_KEY = "trustgp"
FIELDS = {"sha256": str, "format": str, "version": int, "text": dict}  # of the metadata's JSON table
ZEROS = b"0" * 64


class ArtifactError(ValueError):
    """A file that is damaged, foreign, or made for something else.

    Examples:
        >>> try:
        ...     trustgp.load("notes.txt", network)
        ... except trustgp.ArtifactError:
        ...     print("not a model")
        not a model
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message))  # the message may quote untrusted text


class TensorFile(NamedTuple):
    """The contents of a file."""

    kind: str
    text: dict[str, Any]
    tensors: dict[str, Tensor]
    nbytes: int  # of the file


def write(path: Path, *, kind: str, text: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file whole or not at all, see `atomic_file`."""
    content = encode(kind=kind, text=text, tensors=tensors)
    length = int.from_bytes(content[:8], "little")
    if length > MAX_HEADER_BYTES or len(tensors) > MAX_TENSORS:
        raise ValueError(
            f"{path}: {len(tensors)} tensors, and a header of {length} bytes; at most {MAX_TENSORS} tensors "
            f"and {MAX_HEADER_BYTES} bytes can be read back; outputs='shared' or 'pseudo' need fewer."
        )
    place, digest = content.index(ZEROS), hashlib.sha256(content).hexdigest()
    with atomic_file(path) as temporary, open(temporary, "r+b") as file:
        file.writelines((content[:place], digest.encode(), memoryview(content)[place + len(ZEROS) :]))


def encode(*, kind: str, text: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Bytes of a file, with zeros in place of the checksum."""
    table = {"sha256": ZEROS.decode(), "format": kind, "version": VERSION, "text": text}
    # cloned: safetensors refuses tensors that share memory
    plain = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    return save(plain, {METADATA_KEY: json.dumps(table, sort_keys=True)})


def inside(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors whose names begin with `prefix`, keyed by the rest of their names."""
    return {name[len(prefix) :]: tensors[name] for name in tensors if name.startswith(prefix)}


def read(path: Path, *, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Text and tensors of a file of this kind, after all checks that do not depend on their meaning."""
    return read_file(path, (kind,))[1:3]


def read_file(path: Path, kinds: Collection[str]) -> TensorFile:
    """Contents of a file of one of these kinds, after the checks of `read`.

    Every byte is read once, and the hashed bytes are the parsed ones: if another process replaces, truncates
    or overwrites the file meanwhile, the result is one whole file or an `ArtifactError`.
    """
    require_plain(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length < 2 or 8 + length > size:
            raise ArtifactError(f"{path}: not a trustgp file, or cut short.")
        if length > MAX_HEADER_BYTES:
            raise ArtifactError(f"{path}: a header of {length} bytes; not a trustgp file.")
        header = file.read(length)
        metadata = _read_metadata(header, path)  # a large file of another kind is refused before it is read
        _check_kind(metadata, kinds, path)
        try:
            content = b"".join((start, header, file.read(size - 8 - length)))
        except MemoryError as error:
            raise ArtifactError(f"{path}: cannot allocate {size} bytes.") from error
    digits = metadata["sha256"].encode(errors="replace")
    if not re.fullmatch(rb"[0-9a-f]{64}", digits) or header.count(digits) != 1:
        raise ArtifactError(f"{path}: the checksum is missing or occurs twice.")
    digest = hashlib.sha256(start + header.replace(digits, ZEROS))
    digest.update(memoryview(content)[8 + length :])
    if digest.hexdigest() != metadata["sha256"]:
        raise ArtifactError(f"{path}: the checksum does not match; the file is damaged or cut short.")
    try:
        tensors = load(content)
    except Exception as error:  # whatever the error is, the header is wrong
        raise ArtifactError(f"{path}: its tensors cannot be read: {error}.") from error
    return TensorFile(metadata["format"], metadata["text"], tensors, size)


def _read_metadata(header: bytes, path: Path) -> dict[str, Any]:
    """Table in a header's metadata, see `FIELDS`, without duplicate keys, which safetensors accepts."""
    if (count := header.count(b'"data_offsets"')) > MAX_TENSORS:  # before they are parsed
        raise ArtifactError(f"{path}: {count} tensors, more than {MAX_TENSORS}; not a trustgp file.")
    try:
        metadata = parse_json(header)["__metadata__"]
        if METADATA_KEY not in metadata:
            raise ValueError("written by trustgp 0.1 or 0.2 (fit again), or by another program")
        (text,) = metadata.values()
        table = parse_json(text)
        wrong = [name for name, kind in FIELDS.items() if type(table[name]) is not kind]
        if wrong or len(table) != len(FIELDS):
            raise ValueError(f"unknown keys, or wrong values of {wrong}")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: not a trustgp file, or damaged ({error}).") from error
    return table


def _check_kind(metadata: dict[str, Any], kinds: Collection[str], path: Path) -> None:
    """Raise ArtifactError unless the file is of one of these kinds and of the supported version."""
    kind, version, wanted = metadata["format"], metadata["version"], "' or '".join(kinds)
    if kind not in kinds:
        raise ArtifactError(f"{path}: holds a '{kind}', not a '{wanted}'.")
    if version != VERSION:
        older = "trustgp 0.1 or 0.2 (fit again), or damaged"
        writer = "a newer trustgp: upgrade" if version > VERSION else older
        raise ArtifactError(f"{path}: file version {version}, not {VERSION}; written by {writer}.")


def parse_json(text: str | bytes) -> Any:
    """Parsed JSON; ValueError if a key occurs twice in an object."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(table := dict(pairs)) < len(pairs):  # a file has thousands of objects: counted only then
            twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
            raise ValueError(f"key '{twice}' occurs twice")
        return table

    return json.loads(text, object_pairs_hook=unique)


def require_plain(path: Path) -> None:
    """Raise ArtifactError for pipes and devices, on which a read may block or never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a folder has an OSError of its own
        raise ArtifactError(f"{path}: is a pipe or a device, not a file.")


class Reader:
    """Reader that takes tensors from a table by name and checks each; leftover tensors are an error."""

    def __init__(self, tensors: Mapping[str, Tensor], *, where: str) -> None:
        self._tensors, self._left, self._where = tensors, set(tensors), where
        self.recast: dict[torch.dtype, torch.dtype] = {}  # requested dtype: stored dtype to convert

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
        self.require(not value.is_floating_point() or torch.isfinite(value), name, "holds NaN or infinity")
        return value.clone()  # how BLAS libraries round depends on the alignment in memory

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
        """Raise ArtifactError about the tensor `name` unless `holds` is true for all entries."""
        if not bool(torch.as_tensor(holds).all()):
            raise self.fail(name, what)

    def fail(self, name: str, what: str) -> ArtifactError:
        return ArtifactError(f"{self._where}: tensor '{name}' {what}.")

    def finish(self) -> None:
        """Raise ArtifactError if any tensor was not taken."""
        if self._left:
            raise ArtifactError(f"{self._where}: unknown tensors {sorted(self._left)[:3]}.")
