"""Processing of rows in chunks; a chunk that does not fit in GPU memory is halved and tried again."""

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from .trees import Inputs, leaves

CHUNK_ROWS = 1024
CHUNK_BYTES = 2**22  # of rows that are scanned at a time
INPUT_BYTES = 2**23  # of rows in one pass of a network on a CPU
GPU_ROWS, GPU_BYTES = 64, 2**31  # enough to fill a GPU: more only take more memory

Part = TypeVar("Part")
LOGGER = logging.getLogger("trustgp")


def map_chunks(work: Callable[[Tensor], Part], index: Tensor, size: int) -> list[Part]:
    """Results of `work` for consecutive chunks of the row numbers `index`, of at most `size` rows each. The
    size is halved, down to a single row, after each `torch.OutOfMemoryError`."""
    parts, start = [], 0
    while start < len(index) or not parts:
        chunk, part = index[start : start + size], None
        try:
            part = (work(chunk),)
        except torch.OutOfMemoryError:
            if size <= 1 or len(chunk) <= 1:
                raise
        if part is None:  # outside of the handler: a caught exception keeps its tensors alive
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
    """Views [b, ...] of a tensor that cover its rows in order, each of a limited number of bytes."""
    row = tensor.element_size() * tensor[:1].numel()
    most = 64 * CHUNK_BYTES if tensor.is_cuda else CHUNK_BYTES  # fewer and larger steps on a GPU
    yield from tensor.split(max(1, most // max(1, row)))


def rows_at_once(inputs: Inputs, device: torch.device) -> int:
    """Number of such rows in one pass of a network, by their own size alone: fewer if rows are long."""
    return max(1, (1 if device.type == "cpu" else 32) * INPUT_BYTES // max(1, row_bytes(inputs)))


def row_bytes(inputs: Inputs) -> int:
    """Bytes of one row."""
    return sum(leaf.element_size() * leaf[:1].numel() for leaf in leaves(inputs))


def near_bytes(n: int, inputs: Inputs, device: torch.device) -> int:
    """Bytes that n such rows take on a GPU if they are kept there during a fit; 0 if they are not."""
    size = n * row_bytes(inputs)
    return size if device.type == "cuda" and size <= gpu_share(device) else 0


def evenly(count: int, most: int) -> Tensor:
    """Indices of 0 .. count - 1, evenly spaced, at most `most` of them."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def at_once(space: int, device: torch.device) -> int:
    """Bytes of one step of work: `space` on a CPU, more on a GPU, where every step has a fixed cost."""
    return 4 * space if device.type == "cuda" else space


def working_set(device: torch.device, row: int = 0) -> int:
    """Bytes of intermediate results that one chunk may take, if each row takes `row` bytes."""
    if device.type == "cuda":
        return max(2**30, min(max(GPU_ROWS * row, GPU_BYTES), gpu_share(device)))
    # a CPU convolves a few rows at a time nearly twice as fast as one: it packs the weights for each call
    return 256 * 2**20


def gpu_share(device: torch.device) -> int:
    """Bytes that one tensor or cache may take on a GPU: an eighth of its memory, at least 1 GiB."""
    return max(2**30, torch.cuda.get_device_properties(device).total_memory // 8)


def most_rows(device: torch.device) -> int:
    """Maximum number of rows in a chunk: on a GPU the number of kernels does not depend on its size."""
    return 16384 if device.type == "cuda" else CHUNK_ROWS
