"""Progress bars, and the lines that `fit` logs."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich import progress as bars
from rich.console import Console
from rich.text import Text

T = TypeVar("T")
Count = Callable[[Any], int]  # the rows of an item, or of a task
LOGGER = logging.getLogger("trustgp")


class RowsColumn(bars.ProgressColumn):
    """Rows per second since a stage began; empty for stages that do not count rows."""

    def render(self, task: bars.Task) -> Text:
        rows, seconds = task.fields.get("rows", 0), task.elapsed or 0.0
        return Text(f"{rate_text(rows / seconds)} rows/s" if rows and seconds else "", style="cyan")


class Reporter:
    """Shows bars in a terminal; elsewhere, and when switched off, it is quiet."""

    def __init__(self, console: Console, *, enabled: bool) -> None:
        self._console, self._enabled = console, enabled and console.is_terminal
        self._open: dict[int, Any] = {}  # the items of each open bar
        self.position = ""  # the current stage, and how far it is; empty between two
        columns = bars.TextColumn("{task.description:<22}"), bars.BarColumn(), bars.MofNCompleteColumn()
        times = RowsColumn(), bars.TimeElapsedColumn(), bars.TimeRemainingColumn()
        self._progress = bars.Progress(*columns, *times, console=console, disable=not self._enabled)

    def log(self, text: str) -> None:
        """A line for the user; always in the log, on the screen only where there are bars."""
        LOGGER.info(text)
        if self._enabled:
            self._console.print(text, highlight=False)

    def begin(self, stage: str) -> None:
        """Log, at DEBUG, that a stage of the work begins; its name is the record's `stage`."""
        LOGGER.debug("%s", stage, extra={"stage": stage})

    def track(
        self, items: Iterable[T], *, stage: str, total: int | None, done: int = 0, rows: Count | None = None
    ) -> Iterator[T]:
        """`items`, with a bar for the stage; of the `total` (None: unknown), `done` were finished before and
        do not come. `rows` counts the rows of an item. When the work ends early, their `close` is called."""
        self.begin(stage)
        task = self._progress.add_task(stage, total=total, completed=done, rows=0)
        self._open[task], counted = items, 0
        many = "many" if total is None else str(total)
        self.position = f"{stage} ({done} of {many})"
        for number, item in enumerate(items, start=done + 1):
            yield item
            counted += 0 if rows is None else rows(item)
            self._progress.update(task, advance=1, rows=counted)
            self.position = f"{stage} ({number} of {many})"
            if total and 10 * number // total > 10 * (number - 1) // total:  # each tenth
                LOGGER.debug("%s", self.position)
        del self._open[task]
        self.position = ""

    def close(self) -> None:
        """End what is still being tracked, since the exception of an interrupted work keeps generators alive:
        tasks that have not begun are dropped, and threads end."""
        while self._open:
            getattr(self._open.popitem()[1], "close", lambda: None)()


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
