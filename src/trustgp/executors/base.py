"""The interface of an executor, and where and how the work of a fit is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from .progress import Reporter


class Executor(Protocol):
    """Runs a function over tasks."""

    @property
    def workers(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Pairs of (position of the task, its result), as they come.

        Where workers are other processes, the function travels once with all that it holds, and the tasks
        one by one: the data belong in the function (`functools.partial(work, data)`, or a closure), row
        numbers in the tasks. A function must not write to what it holds: workers share its memory.

        An exception in a task is raised here, and the tasks not yet begun are dropped.

        Raises:
            WorkerLostError: When workers died more often than the executor tries again.
        """
        ...


class WorkerLostError(RuntimeError):
    """Workers died, and what they worked on was tried again as often as allowed.

    At `positions` are the tasks without a result, one of which took its worker down.
    """

    def __init__(self, message: str, positions: Sequence[int]) -> None:
        super().__init__(message)
        self.positions = tuple(positions)

    def __reduce__(self):
        return type(self), (self.args[0], self.positions)


class Inline:
    """One task after another, in the thread that asks for the results."""

    workers = 1

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        return ((position, function(task)) for position, task in enumerate(tasks))


def nearby(executor: Executor) -> Executor:
    """For work that is not worth sending: threads of this process, where the workers are elsewhere."""
    return getattr(executor, "nearby", executor)


def check_counts(*, retries: int = 0, **workers: int | None) -> None:
    """Refuse less than one worker, and a negative number of retries."""
    for name, count in workers.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}={count}; at least one worker is needed.")
    if retries < 0:
        raise ValueError(f"retries={retries}; 0 means that nothing is tried again.")


@dataclass(frozen=True)
class FitContext:
    """What holds for all stages of one fit."""

    device: torch.device
    seed: int  # of everything random
    executor: Executor
    report: Reporter
    store: Any = None  # keeps solved experts (`trustgp.fitting.checkpoint.Checkpoint`)

    def nearby(self) -> FitContext:
        """The same on this machine, for work that is not worth sending."""
        return replace(self, executor=nearby(self.executor))

    def inline(self) -> FitContext:
        """The same in this thread on a GPU, which one pass of a network fills: what cuDNN has planned for a
        shape, it knows only in the thread that it did so in."""
        here = self.device.type == "cuda" and nearby(self.executor) is self.executor
        return replace(self, executor=Inline()) if here else self

    def run(
        self,
        work: Callable[[Any], Any],
        tasks: Sequence[Any],
        *,
        stage: str = "",
        rows: Callable[[Any], int] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Pairs of (position of the task, its result) as they come, see `Executor.run`; a stage has a bar.

        `rows` tells how many rows a task stands for.
        """
        results = self.executor.run(work, tasks)
        if not stage:
            return results
        count = None if rows is None else lambda found: rows(tasks[found[0]])
        return self.report.track(results, stage=stage, total=len(tasks), rows=count)

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any], **shown: Any) -> list[Any]:
        """The results in the order of the tasks; see `run`."""
        found = dict(self.run(work, tasks, **shown))
        return [found[place] for place in range(len(tasks))]
