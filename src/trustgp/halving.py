"""Work on rows chunk by chunk; a chunk that a GPU has no room for is halved and tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from .progress import LOGGER

Part = TypeVar("Part")


def in_chunks(work: Callable[[Tensor], Part], index: Tensor, size: int) -> list[Part]:
    """What `work` gives for chunks of `index`, in order; smaller ones from where memory ran out.

    Args:
        work: Of some rows; it is called again with fewer when it raises `torch.OutOfMemoryError`.
        index: Of the rows, shape [n].
        size: Rows of a chunk, at most.

    Raises:
        torch.OutOfMemoryError: When not even a single row fits.
    """
    parts: list[Part] = []
    start = 0
    while start < len(index) or not parts:
        part = _attempt(work, index[start : start + size], last=size <= 1)
        if part is None:  # outside of the handler: a caught exception holds on to what was made
            size = max(1, min(size, len(index) - start) // 2)
            LOGGER.info("out of GPU memory: trying again with %d rows at a time", size)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            continue
        parts.append(part[0])
        start += size
    return parts


def _attempt(work: Callable[[Tensor], Part], index: Tensor, *, last: bool) -> tuple[Part] | None:
    """The result, or None where memory ran out and fewer rows can be tried."""
    try:
        return (work(index),)
    except torch.OutOfMemoryError:
        if last or len(index) <= 1:
            raise
        return None
