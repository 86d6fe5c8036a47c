"""How long the experts of a fit take on an executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from trustgp.executors import Executor, Processes, Ray, Threads, nearby

KINDS: dict[str, Callable[[int], Executor]] = {
    "threads": Threads,
    "processes": Processes,
    "ray": lambda workers: Ray(workers=workers),
}
STREAMS = (1, 2, 4)  # threads on a GPU, each with a stream


class Stopwatch:
    """An executor that takes the time of each of its runs.

    Args:
        executor: Does the work.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor, self.workers, self.nearby = executor, executor.workers, nearby(executor)
        self.runs: list[tuple[int, float]] = []  # tasks, and seconds

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """As of the executor."""
        began = time.perf_counter()
        yield from self.executor.run(function, tasks)
        self.runs.append((len(tasks), time.perf_counter() - began))

    def experts_seconds(self, num_experts: int) -> float:
        """Of the last run that had a task for each expert: the experts are solved last."""
        return [seconds for tasks, seconds in self.runs if tasks == num_experts][-1]


def settings(device: str, most: int) -> list[tuple[str, int]]:
    """Which executors with how many workers: 1, 2, 4, ... up to `most`, two at least; streams on a GPU."""
    if device.startswith("cuda"):
        return [("threads", streams) for streams in STREAMS]
    counts = [2**power for power in range(16) if 2**power <= max(2, most)]
    kinds = [kind for kind in KINDS if kind != "ray" or find_spec("ray")]
    return [(kind, workers) for kind in kinds for workers in counts]


def started(kind: str, workers: int) -> tuple[Executor, float]:
    """An executor whose workers are up, and how many seconds that took."""
    executor, began = KINDS[kind](workers), time.perf_counter()
    for _ in executor.run(_nap, range(2 * workers)):
        pass
    return executor, time.perf_counter() - began


def _nap(task: int) -> int:
    time.sleep(0.02)  # long enough that no worker does the work of all
    return task
