"""Work on rows chunk by chunk; a chunk that a GPU has no room for is halved and tried again."""

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from .trees import Inputs, leaves

CHUNK_ROWS = 1024
CHUNK_BYTES = 2**22  # of rows that are looked at at a time
INPUT_BYTES = 2**23  # of rows that are given to a network at a time on a CPU
GPU_ROWS, GPU_BYTES = 64, 2**31  # fill a GPU: more at a time only take more memory

Part = TypeVar("Part")
LOGGER = logging.getLogger("trustgp")


def map_chunks(work: Callable[[Tensor], Part], index: Tensor, size: int) -> list[Part]:
    """What `work` gives for chunks of the row numbers `index`, in order, of at most `size` rows; of fewer,
    down to a single one, after each `torch.OutOfMemoryError`."""
    parts, start = [], 0
    while start < len(index) or not parts:
        chunk, part = index[start : start + size], None
        try:
            part = (work(chunk),)
        except torch.OutOfMemoryError:
            if size <= 1 or len(chunk) <= 1:
                raise
        if part is None:  # outside of the handler: a caught exception holds on to what was made
            size = max(1, min(size, len(index) - start) // 2)
            LOGGER.info("out of GPU memory: trying again with %d rows at a time", size)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            continue
        parts.append(part[0])
        start += size
    return parts


def chunks(n: int, size: int = CHUNK_ROWS) -> Iterator[Tensor]:
    """Index ranges that cover 0..n-1 in order, at most `size` long."""
    for start in range(0, n, size):
        yield torch.arange(start, min(start + size, n))


def byte_chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Views of a tensor, shape [b, ...] each, that cover its rows in order: few bytes at a time."""
    row = tensor.element_size() * tensor[:1].numel()
    most = 64 * CHUNK_BYTES if tensor.is_cuda else CHUNK_BYTES  # a GPU takes each in a step
    yield from tensor.split(max(1, most // max(1, row)))


def rows_at_once(inputs: Inputs, device: torch.device) -> int:
    """How many rows like these are given to a network at a time, for their own sake: fewer long ones."""
    return max(1, (1 if device.type == "cpu" else 32) * INPUT_BYTES // max(1, row_bytes(inputs)))


def row_bytes(inputs: Inputs) -> int:
    """Memory of one row."""
    return sum(leaf.element_size() * leaf[:1].numel() for leaf in leaves(inputs))


def near_bytes(n: int, inputs: Inputs, device: torch.device) -> int:
    """What n rows like these take on a GPU where they are kept during a fit; 0: they are not."""
    size = n * row_bytes(inputs)
    return size if device.type == "cuda" and size <= gpu_share(device) else 0


def evenly(count: int, most: int) -> Tensor:
    """At most `most` of 0 .. count - 1, evenly spread."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def at_once(space: int, device: torch.device) -> int:
    """Bytes of one step of work where a CPU takes `space`: a GPU waits for each step, so its are larger."""
    return 4 * space if device.type == "cuda" else space


def working_set(device: torch.device, row: int = 0) -> int:
    """Bytes that the rows of one chunk may take on the way, where each takes so much."""
    if device.type == "cuda":
        return max(2**30, min(max(GPU_ROWS * row, GPU_BYTES), gpu_share(device)))
    # a CPU convolves a handful of rows at a time nearly twice as fast as one: it packs its weights each time
    return 256 * 2**20


def gpu_share(device: torch.device) -> int:
    """Bytes of a GPU that one thing may take."""
    return max(2**30, torch.cuda.get_device_properties(device).total_memory // 8)


def most_rows(device: torch.device) -> int:
    """Rows of a chunk, at most: on a GPU a chunk costs as many kernels whatever its size."""
    return 16384 if device.type == "cuda" else CHUNK_ROWS
