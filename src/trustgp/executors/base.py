"""The interface of an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol


class Executor(Protocol):
    """Runs a function over tasks."""

    @property
    def workers(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Pairs of (position of the task, its result), as they come.

        An exception in a task is raised here, and the tasks not yet begun are dropped.
        """
        ...
