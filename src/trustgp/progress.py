"""Progress bars, and the few lines that `fit` says before long work."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")
LOGGER = logging.getLogger("trustgp")


class Reporter:
    """Shows bars in a terminal; elsewhere, and when switched off, it is quiet."""

    def __init__(self, console: Console, *, enabled: bool) -> None:
        self._console = console
        self._enabled = enabled and console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self._enabled,
        )

    def say(self, text: str) -> None:
        """A line for the user; always in the log, on the screen only where there are bars."""
        LOGGER.info(text)
        if self._enabled:
            self._console.print(text, highlight=False)

    def begin(self, stage: str) -> None:
        """Say in the log, at DEBUG, that a stage of the work begins; its name is the record's `stage`."""
        LOGGER.debug("%s", stage, extra={"stage": stage})

    def track(self, items: Iterable[Item], *, stage: str, total: int) -> Iterator[Item]:
        """`items`, with a bar for the stage."""
        self.begin(stage)
        task = self._progress.add_task(stage, total=total)
        for done, item in enumerate(items, start=1):
            yield item
            self._progress.advance(task)
            if 10 * done // total > 10 * (done - 1) // total:
                LOGGER.debug("%s: %d of %d", stage, done, total)


@contextmanager
def reporting(*, enabled: bool) -> Iterator[Reporter]:
    """A reporter whose bars live for the duration of the block."""
    reporter = Reporter(Console(stderr=True), enabled=enabled)
    with reporter._progress:
        yield reporter
