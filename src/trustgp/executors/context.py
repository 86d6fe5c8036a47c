"""Where and how the work of a fit is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .base import Executor, nearby
from .progress import Reporter


@dataclass(frozen=True)
class FitContext:
    """What holds for all stages of one fit.

    Args:
        device: Where to compute.
        seed: Of everything random.
        executor: Runs tasks side by side.
        report: Shows how far a stage is.
        store: Keeps solved experts (`trustgp.fitting.checkpoint.Checkpoint`); None: they are not kept.
    """

    device: torch.device
    seed: int
    executor: Executor
    report: Reporter
    store: Any = None

    def nearby(self) -> FitContext:
        """The same on this machine, for work that is not worth sending."""
        return replace(self, executor=nearby(self.executor))

    def run(
        self,
        work: Callable[[Any], Any],
        tasks: Sequence[Any],
        *,
        stage: str,
        rows: Callable[[Any], int] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Pairs of (position of the task, its result) as they come, with a bar.

        Args:
            work: Done with each task; see `Executor.run`.
            tasks: What is to be done.
            stage: Its name; empty: no bar.
            rows: How many rows a task stands for; None: rows are not counted.
        """
        results = self.executor.run(work, tasks)
        if not stage:
            return results
        count = None if rows is None else lambda found: rows(tasks[found[0]])
        return self.report.track(results, stage=stage, total=len(tasks), rows=count)

    def map(
        self,
        work: Callable[[Any], Any],
        tasks: Sequence[Any],
        *,
        stage: str = "",
        rows: Callable[[Any], int] | None = None,
    ) -> list[Any]:
        """The results in the order of the tasks; see `run`."""
        found = dict(self.run(work, tasks, stage=stage, rows=rows))
        return [found[place] for place in range(len(tasks))]
