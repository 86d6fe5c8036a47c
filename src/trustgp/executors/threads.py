"""Threads of this process: LAPACK and BLAS release the interpreter, so experts run side by side."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import check_counts

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
        check_counts(count=self.count)

    @property
    def workers(self) -> int:
        return self.count or len(os.sched_getaffinity(0))

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        before = torch.get_num_threads()
        if self.workers > 1 and torch.cuda.is_initialized():
            function = _in_streams(function)
        pool = ThreadPoolExecutor(min(self.workers, max(1, len(tasks))), initializer=_single_blas_thread)
        try:
            futures = {pool.submit(function, task): i for i, task in enumerate(tasks)}
            # The number of threads is each thread's own, except for the default that threads started
            # later begin with: give that back at once.
            torch.set_num_threads(before)
            for future in as_completed(futures):
                yield futures.pop(future), future.result()  # what was handed over is not held on to
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)


def _single_blas_thread() -> None:
    torch.get_num_threads()  # a thread takes up the process's number at its first call: before, not after
    torch.set_num_threads(1)


def usual_threads(device: torch.device) -> Threads:
    """As many as suit a device: one per core, a few on a GPU."""
    return Threads(GPU_WORKERS if device.type == "cuda" else None)


def _in_streams(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, with a CUDA stream of its own in each thread that calls it.

    A stream begins after all that was asked of the caller's stream so far. A result is handed over when it is
    there, and its memory is kept until the caller's stream, too, has done with it.
    """
    caller = torch.cuda.current_stream()
    begun = caller.record_event()
    mine, number = threading.local(), itertools.count()

    def work(task: Any) -> Any:
        if not hasattr(mine, "stream"):
            mine.stream = numbered_stream(caller.device, next(number))
            mine.stream.wait_event(begun)
        with torch.cuda.stream(mine.stream):
            result = function(task)
        mine.stream.synchronize()
        for tensor in tensors_in(result):
            if tensor.device == caller.device:
                tensor.record_stream(caller)
        return result

    return work


@functools.cache
def numbered_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """The same stream every time: torch keeps memory aside for each that was ever used."""
    return torch.cuda.Stream(device)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a value, in no order: in tuples, lists, mappings, and the attributes of objects."""
    seen, waiting = {}, [value]  # what was seen stays, so that its id remains its own
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, Mapping):
            waiting += thing.values()
        elif isinstance(thing, (tuple, list, set, frozenset)):
            waiting += thing
        elif hasattr(thing, "__dict__"):
            waiting += vars(thing).values()
