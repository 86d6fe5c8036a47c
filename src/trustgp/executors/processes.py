"""Processes of this machine, by joblib's loky: for networks whose Python code would keep threads waiting."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from .base import Threads, Work, WorkerLostError, check_counts
from .pickling import held, pack, work

IDLE = 120  # seconds after which a worker that has nothing to do ends; it is started again when needed
ALIGNED = 64  # bytes at which each tensor begins in the file
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


@dataclass(frozen=True)
class Processes:
    """Worker processes, each with a single BLAS thread.

    What the tasks share is written once to a temporary file that all workers map into their memory. A single
    task is run here. A killed worker, of which the operating system makes many when memory runs out, breaks
    the pool: it is started again with the tasks that are not done.

    Args:
        count: Workers; None: one per core that this process may use.
        retries: How often, in one run, workers are started again after some were killed.
    """

    count: int | None = None
    retries: int = 3
    _pool: _Pool = field(default_factory=lambda: _Pool(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_counts(count=self.count, retries=self.retries)

    @property
    def workers(self) -> int:
        return self.nearby.workers

    @property
    def nearby(self) -> Threads:
        """For work that is not worth sending."""
        return Threads(self.count)

    def run(self, function: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        if len(tasks) < 2:
            yield from self.nearby.run(function, tasks)
            return
        lost = None
        with tempfile.TemporaryDirectory(prefix="trustgp-") as folder:
            path = Path(folder) / "shared"
            solve = partial(_solve, str(path), _write(pack(function).parts, path))
            waiting = dict(enumerate(tasks))
            for _ in range(1 + self.retries):
                try:
                    yield from self._attempt(solve, waiting)
                    return
                except BrokenProcessPool as error:
                    lost = error
        raise WorkerLostError(
            f"worker processes were killed {1 + self.retries} times, and retries={self.retries} allows no "
            f"more; {len(waiting)} of {len(tasks)} tasks are without a result. If the memory ran out, use "
            "fewer workers or smaller experts.",
            sorted(waiting),
        ) from lost

    def _attempt(self, solve: Any, waiting: dict[int, Any]) -> Iterator[tuple[int, Any]]:
        """Results of the waiting tasks, which then wait no more; a killed worker is a BrokenProcessPool."""
        pool, upcoming = self._pool.of(self.workers), iter(list(waiting.items()))
        flying: dict[Any, int] = {}

        def launch() -> None:
            for position, task in islice(upcoming, 2 * self.workers - len(flying)):
                flying[pool.submit(solve, task)] = position

        try:
            launch()
            while flying:
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    result, position = future.result(), flying.pop(future)
                    launch()  # first, for the caller may take its time
                    del waiting[position]
                    yield position, result
        finally:
            if waiting:
                self._pool.end(flying)


class _Pool:
    """The worker processes: started when they are first needed, and kept for the next run."""

    def __init__(self) -> None:
        self._running: Any = None

    def of(self, workers: int) -> Any:
        """A pool with so many workers."""
        if self._running is None:
            from joblib.externals.loky import ProcessPoolExecutor

            self._running = ProcessPoolExecutor(
                workers, timeout=IDLE, env=ONE_THREAD, initializer=_end_with, initargs=(os.getpid(),)
            )
        return self._running

    def end(self, futures: Iterable[Future]) -> None:
        """Stop the workers, whatever they are doing; while a task is on its way to them, loky cannot stop."""
        while not all(future.running() or future.done() for future in futures):
            time.sleep(0.001)
        self._running.shutdown(kill_workers=True)
        self._running = None

    def __reduce__(self):
        return _Pool, ()  # processes do not travel


def _write(parts: Sequence[memoryview], path: Path) -> list[int]:
    """Write a file of parts, one after another, each aligned; the size of each, in bytes."""
    sizes = [part.nbytes for part in parts]
    try:
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
                file.write(bytes(-part.nbytes % ALIGNED))
    except OSError as error:
        raise OSError(
            error.errno,
            f"what worker processes share ({sum(sizes)} bytes) could not be written to {path.parent}: "
            f"{error.strerror}. Let TMPDIR name a folder with more room, or use trustgp.Threads().",
        ) from error
    return sizes


def _end_with(parent: int) -> None:
    """Let this worker end when its parent does, even by `kill -9`; it would go on with what it was given."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _mapped(path: str, sizes: list[int]) -> list[memoryview]:
    """The parts, mapped into memory: as many workers as there are read the same pages."""
    with open(path, "rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    starts = accumulate((size + -size % ALIGNED for size in sizes), initial=0)
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def _solve(path: str, sizes: list[int], task: Any) -> Any:
    """In a worker."""
    return work(held(path, lambda: _mapped(path, sizes)), task)
