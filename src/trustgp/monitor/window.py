"""What do the last frames look like? Sums and maxima over a sliding window, in constant time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rolling:
    """Statistics of the last frames; numbers are those of valid frames, None where there is none.

    Args:
        frames: How many frames they are about, at most the window.
        shares: Of each status among them.
        score_mean, score_max: Of the novelty score.
        std_mean, std_max: Of the standard deviation, float64, shape [C].
    """

    frames: int
    shares: Mapping[str, float]
    score_mean: float | None
    score_max: float | None
    std_mean: Tensor | None
    std_max: Tensor | None


class SlidingWindow:
    r"""Sums and maxima of the last `size` rows of numbers.

    The rows lie in a ring, which is written lap after lap. At place p the window is what this lap has
    written, 0 .. p, and what is left of the lap before, p + 1 .. size - 1:

    .. math:: \sum = \mathrm{head}_p + \mathrm{tail}_{p+1}, \quad \max = \max(\ldots)

    Heads grow by one row a frame; tails are made once a lap. Nothing is ever subtracted, so nothing drifts
    and a large number leaves no trace behind, as it would in a running sum.

    Args:
        size: Rows in the window.
        width: Numbers in a row.
    """

    def __init__(self, size: int, width: int) -> None:
        self._ring = np.zeros((size, width))
        self._tops = np.full((size, width), -np.inf)
        self._tail = np.zeros((size + 1, width))  # sums of places p .. size - 1 of the lap before
        self._tail_top = np.full((size + 1, width), -np.inf)
        self._head, self._head_top = np.zeros(width), np.full(width, -np.inf)
        self._place = 0
        self.width = width

    def push(self, values: np.ndarray, *, counts: np.ndarray) -> None:
        """Add a row [width]; numbers for which `counts` [width] is False are left out."""
        if self._place == len(self._ring):
            self._turn()
        row = self._ring[self._place]
        row[:] = np.where(counts, values, 0.0)
        top = self._tops[self._place]
        top[:] = np.where(counts, values, -np.inf)
        self._head += row
        np.maximum(self._head_top, top, out=self._head_top)
        self._place += 1

    @property
    def sums(self) -> np.ndarray:
        """Shape [width]."""
        return self._head + self._tail[self._place]

    @property
    def maxima(self) -> np.ndarray:
        """Shape [width]; minus infinity where nothing counted."""
        return np.maximum(self._head_top, self._tail_top[self._place])

    def _turn(self) -> None:
        """A lap is full: its tails, and empty heads."""
        self._tail[:-1] = np.cumsum(self._ring[::-1], axis=0)[::-1]
        self._tail_top[:-1] = np.maximum.accumulate(self._tops[::-1], axis=0)[::-1]
        self._head[:] = 0.0
        self._head_top[:] = -np.inf
        self._place = 0


class FrameHistory:
    """Counts of all frames, and statistics of the last ones.

    Args:
        size: Frames in the window.
        statuses: That a frame may have; the last one is that of an invalid frame.
    """

    def __init__(self, size: int, statuses: Sequence[str]) -> None:
        self._size, self._statuses = size, tuple(statuses)
        self._window: SlidingWindow | None = None  # until a valid frame tells how many outputs there are
        self.frames = 0
        self.counts = dict.fromkeys(self._statuses, 0)
        self.episodes = dict.fromkeys(self._statuses, 0)  # runs of frames of one status
        self.last = ""
        self.largest_score: float | None = None

    def add(self, status: str, numbers: np.ndarray | None) -> None:
        """One frame: its status, and score and std of each output [1 + C]; None: it is invalid."""
        if self._window is None and numbers is not None:
            self._window = SlidingWindow(self._size, len(numbers) + len(self._statuses))
            for _ in range(min(self.frames, self._size)):  # what came before was all invalid
                self._push(self._window, self._statuses[-1], None)
        if self._window is not None:
            self._push(self._window, status, numbers)
        if numbers is not None:
            score = float(numbers[0])
            self.largest_score = score if self.largest_score is None else max(self.largest_score, score)
        self.frames += 1
        self.counts[status] += 1
        self.episodes[status] += status != self.last
        self.last = status

    def _push(self, window: SlidingWindow, status: str, numbers: np.ndarray | None) -> None:
        """One row: the score, the std of each output, then a one for the status."""
        states = len(self._statuses)
        row, counts = np.zeros(window.width), np.ones(window.width, dtype=bool)
        row[window.width - states + self._statuses.index(status)] = 1.0
        if numbers is None:
            counts[:-states] = False
        else:
            row[:-states] = numbers
        window.push(row, counts=counts)

    def statistics(self) -> Rolling:
        """Of the last frames."""
        frames, states = min(self.frames, self._size), len(self._statuses)
        if self._window is None:
            shares = dict.fromkeys(self._statuses, 0.0) | {self._statuses[-1]: float(frames > 0)}
            return Rolling(frames, MappingProxyType(shares), None, None, None, None)
        sums, maxima = self._window.sums, self._window.maxima
        found = [round(float(value)) for value in sums[-states:]]
        shares = {name: value / frames for name, value in zip(self._statuses, found, strict=True)}
        valid = frames - found[-1]
        if not valid:
            return Rolling(frames, MappingProxyType(shares), None, None, None, None)
        mean, top = (torch.from_numpy(part[:-states].copy()) for part in (sums / valid, maxima))
        return Rolling(frames, MappingProxyType(shares), float(mean[0]), float(top[0]), mean[1:], top[1:])
