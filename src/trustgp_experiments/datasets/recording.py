"""What is a recording, and how are parts of one put together, each row once?"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Recording:
    """Rows of one arm (or toy), in the order of time where the source has one."""

    inputs: Tensor  # (q, dq, ddq)                         [n, 21]
    targets: Tensor  # torques                             [n, 7]
    name: str
    groups: Tensor | None = None  # run or trajectory of each row  [n] int64
    style: str | None = None  # of a simulated motion
    recorded_test: Tensor | None = None  # the source's own test rows  [n] bool
    motions: Tensor | None = None  # as groups, but runs of one motion share a number  [n] int64
    places: Tensor | None = None  # where on its motion a row stands; repeats share a place  [n] float64


def first_places(rows: np.ndarray) -> np.ndarray:
    """For each row [n, d] the place where an equal row stands first, shape [n]."""
    rows = np.ascontiguousarray(rows) + 0.0  # -0.0 becomes 0.0: equal rows have equal bytes
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), at) for at, row in enumerate(rows)], dtype=np.int64)


def merge_in_time(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put the rows of two overlapping or interleaved parts back in the order of time, each once.

    Both parts are thinned copies of one recording, each in time order. A row of the test part
    that is also a training row tells where the test part stands; a row between two such rows gets
    the place between theirs, linearly. Without common rows the test part is taken to be every
    (n/m + 1)-th row, beginning with the first. Measured: both rules give back a constant time
    step on the recordings they are used for (see the tests).

    Args:
        train: Training rows, inputs and targets side by side, shape [n, d].
        test: Test rows, shape [m, d].

    Returns:
        The distinct rows [k, d], and which of them are in the test part only [k].
    """
    rows = np.concatenate([train, test]) + 0.0
    first = first_places(rows)
    stamps = np.concatenate([np.arange(len(train)), _test_stamps(first[len(train) :], len(train))])
    distinct = np.flatnonzero(first == np.arange(len(rows)))
    order = distinct[np.argsort(stamps[distinct], kind="stable")]
    return rows[order], order >= len(train)


def without_duplicates(rows: np.ndarray) -> np.ndarray:
    """The rows [n, d] in their order, each once."""
    rows = rows + 0.0
    return rows[first_places(rows) == np.arange(len(rows))]


def stands_in(rows: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Which of the rows [n, d] are also rows of the part [m, d], shape [n]."""
    return first_places(np.concatenate([part, rows]))[len(part) :] < len(part)


def _test_stamps(first: np.ndarray, n: int) -> np.ndarray:
    """Places of the test rows on the axis of training row numbers, shape [m]."""
    number = np.arange(len(first))
    known = np.flatnonzero(first < n)
    if len(known) < 2:
        return number * (n / max(len(first), 1)) - 0.5
    low, high = known[0], known[-1]
    step = (first[high] - first[low]) / (high - low)
    beyond = np.minimum(number - low, 0) + np.maximum(number - high, 0)  # np.interp holds its ends
    return np.interp(number, known, first[known]) + step * beyond
