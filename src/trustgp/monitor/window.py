"""Statistics of the last frames, in constant memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rolling:
    """Statistics of the last frames; numbers are those of valid frames, None where there is none."""

    frames: int  # their number, at most the window
    shares: Mapping[str, float]  # of each status among them
    score_mean: float | None  # of the novelty score
    score_max: float | None
    std_mean: Tensor | None  # of the standard deviation, float64, [C]
    std_max: Tensor | None


class FrameHistory:
    """Counts of all frames, statistics of the last `size`; the last status is that of an invalid frame."""

    def __init__(self, size: int, statuses: Sequence[str]) -> None:
        self._size, self._statuses = size, tuple(statuses)
        # rings: the status of each of the last frames, and score and std of each output, [size, 1 + C]
        self._recent, self._numbers = np.zeros(size, dtype=np.int64), np.zeros((size, 0))
        self.frames, self.last = 0, ""
        self.counts = dict.fromkeys(self._statuses, 0)
        self.episodes = dict.fromkeys(self._statuses, 0)  # runs of frames of one status
        self.largest_score: float | None = None

    def add(self, status: str, numbers: np.ndarray | None) -> None:
        """One frame: its status, and score and std of each output [1 + C]; None: it is invalid."""
        place = self.frames % self._size
        self._recent[place] = self._statuses.index(status)
        if numbers is not None:
            if not self._numbers.shape[1]:  # the first valid frame defines the number of outputs
                self._numbers = np.zeros((self._size, len(numbers)))
            self._numbers[place] = numbers
            score = float(numbers[0])
            self.largest_score = score if self.largest_score is None else max(self.largest_score, score)
        self.frames += 1
        self.counts[status] += 1
        self.episodes[status] += status != self.last
        self.last = status

    def statistics(self) -> Rolling:
        """Of the last frames."""
        frames = min(self.frames, self._size)
        recent = self._recent[:frames]
        counts = np.bincount(recent, minlength=len(self._statuses)).tolist()
        shares = {name: n / max(frames, 1) for name, n in zip(self._statuses, counts, strict=True)}
        numbers = self._numbers[:frames][recent != len(self._statuses) - 1]
        if not len(numbers):
            return Rolling(frames, MappingProxyType(shares), None, None, None, None)
        mean, top = torch.from_numpy(numbers.mean(axis=0)), torch.from_numpy(numbers.max(axis=0))
        return Rolling(frames, MappingProxyType(shares), float(mean[0]), float(top[0]), mean[1:], top[1:])
