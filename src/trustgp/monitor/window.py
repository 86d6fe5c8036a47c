"""What do the last frames look like? Sums and maxima over a sliding window, in constant time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

OPERATIONS = (np.add, 0.0), (np.maximum, -np.inf)  # of a window, each with what counts for nothing


@dataclass(frozen=True)
class Rolling:
    """Statistics of the last frames; numbers are those of valid frames, None where there is none."""

    frames: int  # how many they are about, at most the window
    shares: Mapping[str, float]  # of each status among them
    score_mean: float | None  # of the novelty score
    score_max: float | None
    std_mean: Tensor | None  # of the standard deviation, float64, [C]
    std_max: Tensor | None


class SlidingWindow:
    r"""Sums and maxima of the last `size` rows of `width` numbers.

    The rows lie in a ring, which is written lap after lap. At place p the window is what this lap has
    written, 0 .. p, and what is left of the lap before, p + 1 .. size - 1:

    .. math:: \sum = \mathrm{head}_p + \mathrm{tail}_{p+1}, \quad \max = \max(\ldots)

    Heads grow by one row a frame; tails are made once a lap. Nothing is ever subtracted, so nothing drifts
    and a large number leaves no trace behind, as it would in a running sum.
    """

    def __init__(self, size: int, width: int, *, place: int = 0) -> None:
        shapes = (size, width), (size + 1, width), (width,)
        # of each operation: the rows, the tails (of places p .. size - 1 of the lap before), and the head
        self._parts = [[np.full(shape, empty) for shape in shapes] for _, empty in OPERATIONS]
        self._place, self._size = place, size

    def push(self, values: Any, *, counts: Any = True) -> None:
        """Add a row [width]; numbers for which `counts`, [width] or of all, is False are left out."""
        lap_ends = self._place == self._size
        self._place = 0 if lap_ends else self._place
        for (combine, empty), (ring, tail, head) in zip(OPERATIONS, self._parts, strict=True):
            if lap_ends:
                tail[:-1] = combine.accumulate(ring[::-1], axis=0)[::-1]
                head[:] = empty
            ring[self._place] = np.where(counts, values, empty)
            combine(head, ring[self._place], out=head)
        self._place += 1

    @property
    def totals(self) -> list[np.ndarray]:
        """Sums and maxima, [width] each; 0 and minus infinity where nothing counted."""
        parts = zip(OPERATIONS, self._parts, strict=True)
        return [combine(head, tail[self._place]) for (combine, _), (_, tail, head) in parts]


class FrameHistory:
    """Counts of all frames, statistics of the last `size`; the last status is that of an invalid frame."""

    def __init__(self, size: int, statuses: Sequence[str]) -> None:
        self._size, self._statuses = size, tuple(statuses)
        self._states = SlidingWindow(size, len(self._statuses))  # a one for the status of each frame
        self._numbers: SlidingWindow | None = None  # until a valid frame tells how many outputs there are
        self.frames = 0
        self.counts = dict.fromkeys(self._statuses, 0)
        self.episodes = dict.fromkeys(self._statuses, 0)  # runs of frames of one status
        self.last = ""
        self.largest_score: float | None = None

    def add(self, status: str, numbers: np.ndarray | None) -> None:
        """One frame: its status, and score and std of each output [1 + C]; None: it is invalid."""
        self._states.push([name == status for name in self._statuses])
        if numbers is not None:
            if self._numbers is None:
                place = min(self.frames, self._size)  # what came before was all invalid
                self._numbers = SlidingWindow(self._size, len(numbers), place=place)
            score = float(numbers[0])
            self.largest_score = score if self.largest_score is None else max(self.largest_score, score)
        if self._numbers is not None:
            self._numbers.push(0.0 if numbers is None else numbers, counts=numbers is not None)
        self.frames += 1
        self.counts[status] += 1
        self.episodes[status] += status != self.last
        self.last = status

    def statistics(self) -> Rolling:
        """Of the last frames."""
        frames, found = min(self.frames, self._size), [round(float(n)) for n in self._states.totals[0]]
        shares = {name: n / max(frames, 1) for name, n in zip(self._statuses, found, strict=True)}
        valid = frames - found[-1]
        if self._numbers is None or not valid:
            return Rolling(frames, MappingProxyType(shares), None, None, None, None)
        total, top = map(torch.from_numpy, self._numbers.totals)
        mean = total / valid
        return Rolling(frames, MappingProxyType(shares), float(mean[0]), float(top[0]), mean[1:], top[1:])
