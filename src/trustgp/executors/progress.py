"""Progress bars, and the lines that `fit` logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich import progress as bars
from rich.console import Console

T = TypeVar("T")
LOGGER = logging.getLogger("trustgp")


class Reporter:
    """Shows bars in a terminal; elsewhere, and when switched off, it is quiet."""

    def __init__(self, console: Console, *, enabled: bool) -> None:
        self._console, self._enabled = console, enabled and console.is_terminal
        self._open: dict[int, Any] = {}  # the items of each open bar
        self.position = ""  # the current stage, and how far it is; empty between two
        self._progress = bars.Progress(
            bars.TextColumn("{task.description:<22}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            disable=not self._enabled,
        )

    def log(self, text: str) -> None:
        """A line for the user; always in the log, on the screen only where there are bars."""
        LOGGER.info(text)
        if self._enabled:
            self._console.print(text, highlight=False)

    def begin(self, stage: str) -> None:
        """Log, at DEBUG, that a stage of the work begins; its name is the record's `stage`."""
        LOGGER.debug("%s", stage, extra={"stage": stage})

    def track(self, items: Iterable[T], *, stage: str, total: int | None, done: int = 0) -> Iterator[T]:
        """`items`, with a bar for the stage; of the `total` (None: unknown), `done` were finished before and
        do not come. When the work ends early, their `close` is called."""
        self.begin(stage)
        task, began = self._progress.add_task(stage, total=total, completed=done), time.perf_counter()
        self._open[task] = items
        many = "many" if total is None else str(total)
        self.position = f"{stage} ({done} of {many})"
        for number, item in enumerate(items, start=done + 1):
            yield item
            self._progress.update(task, advance=1)
            self.position = f"{stage} ({number} of {many})"
            if total and 10 * number // total > 10 * (number - 1) // total:
                left = (time.perf_counter() - began) * (total - number) / (number - done)
                LOGGER.debug("%s: %d of %d, about %.0f s left", stage, number, total, left)
        del self._open[task]
        self.position = ""

    def close(self) -> None:
        """End what is still being tracked: tasks that have not begun are dropped, and threads end.

        Where the work was interrupted, the exception keeps the generators alive, and with them their workers.
        """
        while self._open:
            items = self._open.popitem()[1]
            if hasattr(items, "close"):
                items.close()


def rate_text(rate: float) -> str:
    """Three digits: 0.123, 12.3, 1,230,000."""
    return f"{rate:.3g}" if rate < 100 else f"{float(f'{rate:.3g}'):,.0f}"


@contextmanager
def reporting(*, enabled: bool) -> Iterator[Reporter]:
    """A reporter for the duration of the block; what it tracks is closed at its end."""
    reporter = Reporter(Console(stderr=True), enabled=enabled)
    with reporter._progress:
        try:
            yield reporter
        finally:
            reporter.close()
