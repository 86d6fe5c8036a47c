"""Threads of this process: LAPACK and BLAS release the interpreter, so experts run side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch

from .cuda_streams import in_streams

GPU_WORKERS = 2  # one expert's small steps fill the gaps that another's leave


@dataclass(frozen=True)
class Threads:
    """A pool of threads, each with a single BLAS thread of its own.

    One BLAS thread per worker keeps the machine from being oversubscribed, and makes the result of a task
    the same to the bit however many workers there are. On a GPU, several workers have a CUDA stream each, so
    that several tasks are in flight.

    Args:
        count: Workers; None: one per core that this process may use.
    """

    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"count={self.count}; at least one worker is needed.")

    @property
    def workers(self) -> int:
        return self.count or len(os.sched_getaffinity(0))

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        before = torch.get_num_threads()
        if self.workers > 1 and torch.cuda.is_initialized():
            function = in_streams(function)
        pool = ThreadPoolExecutor(min(self.workers, max(1, len(tasks))), initializer=_single_blas_thread)
        try:
            futures = {pool.submit(function, task): i for i, task in enumerate(tasks)}
            # The number of threads is each thread's own, except for the default that threads started
            # later begin with: give that back at once.
            torch.set_num_threads(before)
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)


def _single_blas_thread() -> None:
    torch.get_num_threads()  # a thread takes up the process's number at its first call: before, not after
    torch.set_num_threads(1)


def usual_threads(device: torch.device) -> Threads:
    """As many as suit a device: one per core, a few on a GPU."""
    return Threads(GPU_WORKERS if device.type == "cuda" else None)
