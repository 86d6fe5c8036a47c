"""Processes of this machine, by joblib's loky: for networks whose Python code would keep threads waiting."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .base import WorkerLostError, check_counts
from .packing import held, pack, work
from .threads import Threads

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

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        if len(tasks) < 2:
            yield from self.nearby.run(function, tasks)
            return
        with tempfile.TemporaryDirectory(prefix="trustgp-") as folder:
            shared = _write(pack(function).parts, Path(folder) / "shared")
            waiting = dict(enumerate(tasks))
            for _ in range(1 + self.retries):
                yield from self._attempt(shared, waiting)
                if not waiting:
                    return
        raise WorkerLostError(
            f"worker processes were killed {1 + self.retries} times, and retries={self.retries} allows no "
            f"more; {len(waiting)} of {len(tasks)} tasks are without a result. If the memory ran out, use "
            "fewer workers or smaller experts.",
            sorted(waiting),
        )

    def _attempt(self, shared: _Shared, waiting: dict[int, Any]) -> Iterator[tuple[int, Any]]:
        """Results of the waiting tasks, which then wait no more; all of them, unless a worker is killed."""
        whole = False
        try:
            futures = {}
            for position, task in waiting.items():
                futures[self._pool.of(self.workers).submit(_solve, shared, task)] = position
            for future in as_completed(futures):
                position = futures.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    continue  # what the others have finished still comes
                del waiting[position]
                yield position, result
            whole = not waiting
        except BrokenProcessPool:
            pass  # while tasks were handed in
        finally:
            if not whole:
                self._pool.end()


class _Pool:
    """The worker processes: started when they are first needed, and kept for the next run."""

    def __init__(self) -> None:
        self._running: Any = None

    def of(self, workers: int) -> Any:
        """A pool with so many workers."""
        if self._running is None:
            from joblib.externals.loky import ProcessPoolExecutor

            self._running = ProcessPoolExecutor(workers, timeout=IDLE, env=ONE_THREAD)
        return self._running

    def end(self) -> None:
        """Stop the workers, whatever they are doing."""
        if self._running is not None:
            self._running.shutdown(kill_workers=True)
            self._running = None

    def __reduce__(self):
        return _Pool, ()  # processes do not travel


@dataclass(frozen=True)
class _Shared:
    """A file of parts, one after another.

    Args:
        path: The file.
        sizes: Of each part, in bytes.
    """

    path: str
    sizes: tuple[int, ...]

    def parts(self) -> list[memoryview]:
        """Views of the file, mapped into memory: as many workers as there are read the same pages."""
        with open(self.path, "rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        found, start = [], 0
        for size in self.sizes:
            found.append(whole[start : start + size])
            start += size + -size % ALIGNED
        return found


def _write(parts: Sequence[memoryview], path: Path) -> _Shared:
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
            file.write(bytes(-part.nbytes % ALIGNED))
    return _Shared(os.fspath(path), tuple(part.nbytes for part in parts))


def _solve(shared: _Shared, task: Any) -> Any:
    """In a worker."""
    return work(held(shared.path, shared.parts), task)
