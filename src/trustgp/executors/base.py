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

    Args:
        message: What happened, and what to do.
        positions: Tasks without a result, one of which took its worker down.
    """

    def __init__(self, message: str, positions: Sequence[int]) -> None:
        super().__init__(message)
        self.positions = tuple(positions)

    def __reduce__(self):
        return type(self), (self.args[0], self.positions)


def nearby(executor: Executor) -> Executor:
    """For work that is not worth sending: threads of this process, where the workers are elsewhere."""
    return getattr(executor, "nearby", executor)


def check_counts(*, retries: int, **workers: int | None) -> None:
    """Refuse less than one worker, and a negative number of retries."""
    for name, count in workers.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}={count}; at least one worker is needed.")
    if retries < 0:
        raise ValueError(f"retries={retries}; 0 means that nothing is tried again.")
