"""Rows that come batch by batch: in memory while they are few, beyond that in files that are then mapped.

The files have no name from the start (or lose it on closing, where a system knows no files without), so a
killed process leaves nothing behind.
"""

from __future__ import annotations

import errno
import mmap
import shutil
import tempfile
from collections.abc import Sequence
from typing import IO

import torch
from torch import Tensor

KEPT_BYTES = 2**30  # of rows from a loader or an iterable that are kept in memory
CHECKED_BYTES = 2**26  # written between two looks at the disk's free space
SPARED_BYTES = 2**26  # of the disk that are left to others


class RowBuffer:
    """Collects tensors with the rows as their first dimension; each batch brings some rows of every tensor.

    Args:
        name: Of the data, in error messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: list[list[Tensor]] = []  # of each tensor, while they are in memory
        self._files: list[IO[bytes]] = []
        self._like: list[tuple[torch.dtype, tuple[int, ...]]] = []
        self._rows, self._held, self._unchecked = 0, 0, CHECKED_BYTES

    def add(self, tensors: Sequence[Tensor]) -> None:
        """One batch: the same tensors each time, of shape [b, ...], alike but for b."""
        if not self._like:
            self._like = [(tensor.dtype, tuple(tensor.shape[1:])) for tensor in tensors]
            self._parts = [[] for _ in tensors]
        self._rows += len(tensors[0])
        self._held += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self._files:
            self._write(tensors)
            return
        for part, tensor in zip(self._parts, tensors, strict=True):
            part.append(tensor.detach().clone())  # whoever makes the batches may use their memory again
        if self._held > KEPT_BYTES:
            self._begin_files()

    def finish(self) -> list[Tensor]:
        """The whole tensors, shape [n, ...]: in memory, or mapped files that are read as they are needed."""
        if self._files:
            return [self._mapped(file, *like) for file, like in zip(self._files, self._like, strict=True)]
        whole = []
        for part in self._parts:
            whole.append(part[0] if len(part) == 1 else torch.cat(part))
            part.clear()  # no longer twice there
        return whole

    def _begin_files(self) -> None:
        try:
            self._files = [tempfile.TemporaryFile(prefix="trustgp-") for _ in self._like]  # noqa: SIM115
        except OSError as error:
            raise self._full(error) from error
        for batch in zip(*self._parts, strict=True):
            self._write(batch)
        self._parts = []

    def _write(self, tensors: Sequence[Tensor]) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._unchecked += size
        if self._unchecked >= CHECKED_BYTES:
            self._unchecked = 0
            if shutil.disk_usage(tempfile.gettempdir()).free < size + CHECKED_BYTES + SPARED_BYTES:
                raise self._full(OSError(errno.ENOSPC, "no space left"))
        try:
            for file, tensor in zip(self._files, tensors, strict=True):
                if tensor.numel():
                    plain = tensor.detach().cpu().contiguous().reshape(-1)
                    file.write(plain.view(torch.uint8).numpy().data)
        except OSError as error:
            raise self._full(error) from error

    def _full(self, error: OSError) -> OSError:
        folder = tempfile.gettempdir()
        return OSError(
            error.errno or errno.EIO,
            f"{self._name}: {self._rows} rows ({self._held} bytes) and no end yet; what is more than "
            f"{KEPT_BYTES} bytes is kept in a file in {folder}, and that failed: {error.strerror or error}. "
            "Let TMPDIR name a folder with more room, or pass memory-mapped arrays: they are not copied.",
        )

    def _mapped(self, file: IO[bytes], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        try:
            file.flush()
        except OSError as error:
            raise self._full(error) from error
        size = file.tell()
        if size == 0:
            return torch.empty(self._rows, *shape, dtype=dtype)
        # copy on write: torch knows no read-only memory, and the mapping outlives the file's handle
        pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        file.close()
        return torch.frombuffer(pages, dtype=dtype).reshape(self._rows, *shape)
