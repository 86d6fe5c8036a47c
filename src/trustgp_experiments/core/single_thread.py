"""Work on one BLAS thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trustgp.executors import Threads

Found = TypeVar("Found")


def alone(work: Callable[[], Found]) -> Found:
    """The result of `work`, done on one BLAS thread; `fit` still solves experts side by side.

    Batches as small as the toy's gain nothing from a second thread, and lose tenfold on a busy machine.
    """
    ((_, result),) = Threads(1).run(lambda task: task(), [work])
    return result
