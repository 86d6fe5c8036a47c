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
    """Progress bars in a terminal; elsewhere, or if not `enabled`, nothing is shown."""

    def __init__(self, console: Console, *, enabled: bool) -> None:
        self._console, self._enabled = console, enabled and console.is_terminal
        self._open: dict[int, Any] = {}  # the items of each open bar
        self.position = ""  # the current stage and its progress; empty between stages
        columns = bars.TextColumn("{task.description:<22}"), bars.BarColumn(), bars.MofNCompleteColumn()
        times = RowsColumn(), bars.TimeElapsedColumn(), bars.TimeRemainingColumn()
        self._progress = bars.Progress(*columns, *times, console=console, disable=not self._enabled)

    def log(self, text: str) -> None:
        """Log a line for the user; print it as well where there are bars."""
        LOGGER.info(text)
        if self._enabled:
            self._console.print(text, highlight=False)

    def begin(self, stage: str) -> None:
        """Log, at DEBUG, that a stage of the work begins; its name is the record's `stage`."""
        LOGGER.debug("%s", stage, extra={"stage": stage})

    def track(
        self, items: Iterable[T], *, stage: str, total: int | None, done: int = 0, rows: Count | None = None
    ) -> Iterator[T]:
        """Yield `items`, with a bar for the stage; of the `total` (None: unknown), `done` are finished and
        not in `items`. `rows` counts the rows of an item. If the work ends early, `items.close` is called."""
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
        """Close the items that are still being tracked: tasks that have not begun are dropped, and threads
        end. The exception of an interrupted fit would keep their generators alive."""
        while self._open:
            getattr(self._open.popitem()[1], "close", lambda: None)()


def rate_text(rate: float) -> str:
    """Rate with three significant digits: 0.123, 12.3, 1,230,000."""
    return f"{rate:.3g}" if rate < 100 else f"{float(f'{rate:.3g}'):,.0f}"


@contextmanager
def reporting(*, enabled: bool) -> Iterator[Reporter]:
    """Reporter for the duration of the block; at its end, tracked items are closed."""
    reporter = Reporter(Console(stderr=True), enabled=enabled)
    with reporter._progress:
        try:
            yield reporter
        finally:
            reporter.close()
