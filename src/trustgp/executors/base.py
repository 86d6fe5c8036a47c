"""The interface of an executor, threads of this process, and the context of a fit."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..data.trees import state_tensors
from .progress import Count, Reporter

GPU_WORKERS = 2  # one expert's small steps fill the gaps that another's leave
Work = Callable[[Any], Any]  # from a task to its result
Results = Iterator[tuple[int, Any]]  # of tasks, with their positions


def usable_cores() -> int:
    """Number of cores that this process may use; on macOS and Windows all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Executor(Protocol):
    """Runs a function over tasks."""

    @property
    def workers(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, function: Work, tasks: Sequence[Any]) -> Results:
        """Yield pairs (position of the task, its result) in the order of completion.

        If workers are other processes, the function is sent once with all that it refers to, and the tasks
        one by one: the data belong in the function (`functools.partial(work, data)`, or a closure), row
        numbers in the tasks. A function must not write to its data: workers share the memory.

        An exception in a task is raised here, and the tasks not yet begun are dropped; a `WorkerLostError` is
        raised if workers died more often than the executor retries.
        """
        ...


class WorkerLostError(RuntimeError):
    """Workers died more often than tasks are retried; `positions` lists tasks without a result.

    Examples:
        >>> try:
        ...     model = trustgp.fit(network, train, executor=trustgp.Threads(1), progress=False)
        ... except trustgp.executors.WorkerLostError as error:
        ...     print(error.positions)
    """

    def __init__(self, message: str, positions: Sequence[int]) -> None:
        super().__init__(message)
        self.positions = tuple(positions)


class Inline:
    """Executor that runs one task after another, in the thread that asks for the results."""

    workers = 1

    def run(self, function: Work, tasks: Sequence[Any]) -> Results:
        return ((position, function(task)) for position, task in enumerate(tasks))


def nearby(executor: Executor) -> Executor:
    """Executor for short work: threads of this process if the workers are elsewhere, else `executor`."""
    return getattr(executor, "nearby", executor)


@dataclass(frozen=True)
class Threads:
    """A pool of threads, each with a single BLAS thread of its own.

    LAPACK and BLAS release the interpreter, so experts run side by side. One BLAS thread per worker keeps the
    machine from being oversubscribed, and makes the result of a task the same to the bit for any number of
    workers. On a GPU, several workers have a CUDA stream each, so that several tasks are in flight.

    Args:
        count: Number of workers; None: one per core that this process may use.

    Examples:
        >>> model = trustgp.fit(network, train, executor=trustgp.Threads(1), progress=False)
    """

    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"count={self.count}; at least one worker is needed.")

    @property
    def workers(self) -> int:
        return self.count or usable_cores()

    def run(self, function: Work, tasks: Sequence[Any]) -> Results:
        before = torch.get_num_threads()
        if self.workers > 1 and torch.cuda.is_initialized():
            function = _in_streams(function)
        pool = ThreadPoolExecutor(min(self.workers, max(1, len(tasks))), initializer=_single_blas_thread)
        try:
            # in the caller's context, which has its default device
            futures = {pool.submit(copy_context().run, function, task): i for i, task in enumerate(tasks)}
            # each thread has a number of its own; this restores the default of threads started later
            torch.set_num_threads(before)
            for future in as_completed(futures):
                yield futures.pop(future), future.result()  # no reference to the result is kept
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)


def _single_blas_thread() -> None:
    torch.get_num_threads()  # a thread's first call resets its number to the process's, so it comes first
    torch.set_num_threads(1)


def usual_threads(device: torch.device) -> Threads:
    """Default threads for a device: one per core, `GPU_WORKERS` on a GPU."""
    return Threads(GPU_WORKERS if device.type == "cuda" else None)


def _in_streams(function: Work) -> Work:
    """Wrapper of `function` with a CUDA stream of its own in each thread that calls it.

    A stream begins after all work of the caller's stream so far. A result is complete when it is returned,
    and its memory is kept until the caller's stream, too, has used it.
    """
    caller = torch.cuda.current_stream()
    begun = caller.record_event()
    local, number = threading.local(), itertools.count()

    def work(task: Any) -> Any:
        if not hasattr(local, "stream"):
            local.stream = numbered_stream(caller.device, next(number))
            local.stream.wait_event(begun)
        with torch.cuda.stream(local.stream):
            result = function(task)
        local.stream.synchronize()
        for tensor in state_tensors(result):
            if tensor.device == caller.device:
                tensor.record_stream(caller)
        return result

    return work


@functools.cache
def numbered_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Stream `number` of a device, cached: torch reserves memory for each stream that was ever used."""
    return torch.cuda.Stream(device)


@dataclass(frozen=True)
class FitContext:
    """Device, seed, executor and reporter that all stages of one fit share."""

    device: torch.device
    seed: int  # of everything random
    executor: Executor
    report: Reporter
    store: Any = None  # keeps solved experts (`trustgp.fitting.checkpoint.Checkpoint`)

    def nearby(self) -> FitContext:
        """Context with workers in this process, for short work."""
        return replace(self, executor=nearby(self.executor))

    def inline(self) -> FitContext:
        """Context that works in this thread if it is local and on a GPU: one pass of a network fills a GPU,
        and cuDNN caches its plan of a shape for each thread."""
        here = self.device.type == "cuda" and nearby(self.executor) is self.executor
        return replace(self, executor=Inline()) if here else self

    def run(self, work: Work, tasks: Sequence[Any], *, stage: str = "", rows: Count | None = None) -> Results:
        """Pairs (position, result), see `Executor.run`; a stage has a bar; `rows` counts a task's rows."""
        results = self.executor.run(work, tasks)
        if not stage:
            return results
        count = None if rows is None else lambda pair: rows(tasks[pair[0]])
        return self.report.track(results, stage=stage, total=len(tasks), rows=count)

    def map(self, work: Work, tasks: Sequence[Any], **shown: Any) -> list[Any]:
        """The results in the order of the tasks; see `run`."""
        results = dict(self.run(work, tasks, **shown))
        return [results[position] for position in range(len(tasks))]
