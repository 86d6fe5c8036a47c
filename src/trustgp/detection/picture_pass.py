"""One pass of pictures through a detector: sums of what was seen, and the rows of those that are held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

from .adapter import Detector
from .light import in_other_light
from .pictures import by_size
from .query_rows import Detection, QueryRows, known_rows
from .readout import SeenSums
from .scenes import Scene

LOT = 64  # pictures that are in memory at a time
CHANGED = 500  # held-out pictures that are also seen in another light, at most


@dataclass(frozen=True)
class HeldOut:
    """Which pictures are held out, to calibrate on: every so many-th, by their numbers."""

    every: int | None  # 1: all; None: none
    total: int | None = None  # how many pictures there are in all; None: not known
    most: int = CHANGED  # of them that are also seen in another light

    def __contains__(self, number: int) -> bool:
        return self.every is not None and number % self.every == self.every - 1

    def changed(self, number: int) -> bool:
        """Whether one that is held out is also seen in another light: some, all over."""
        every = self.every or 1
        step = 1 if self.total is None or not self.most else max(1, -(-self.total // (every * self.most)))
        return number // every % step == 0 and number // every // step < self.most


@dataclass
class PicturePass:
    """What is known after some pictures; `take` adds more of them."""

    detector: Detector
    settings: Detection
    held_out: HeldOut
    queries: SeenSums | None = None  # by queries that have found a thing, of each class
    pictures: SeenSums | None = None  # by all queries of a picture on average
    held: list[QueryRows] = field(default_factory=list)
    changed: list[QueryRows] = field(default_factory=list)  # of held-out pictures in another light
    done: int = 0  # pictures
    mixed: bool = False  # whether they had more than one size
    size: tuple[int, int] | None = None  # of the first

    def take(self, lot: Sequence[Scene]) -> None:
        """Some pictures, of any sizes."""
        height, width = lot[0].image.shape[-2:]
        self.size = self.size or (int(height), int(width))
        self.mixed |= any(tuple(one.image.shape[-2:]) != self.size for one in lot)
        for held in (False, True):
            some = [one for one in lot if (one.number in self.held_out) is held]
            for numbers in by_size([one.image for one in some]):
                batch = [some[i] for i in numbers]
                self._hold(batch) if held else self._learn(batch)
        self.done += len(lot)

    def _learn(self, batch: Sequence[Scene]) -> None:
        rows = self._rows(batch, torch.stack([one.image for one in batch]))
        if self.queries is None or self.pictures is None:
            width = rows.seen.shape[1]
            self.queries, self.pictures = (SeenSums.zero(n, width) for n in (self.detector.labels, 1))
        self.queries.include(rows.seen[rows.found], rows.kinds[rows.found])
        self.pictures.include(rows.pictures, torch.zeros(len(rows.pictures), dtype=torch.int64))

    def _hold(self, batch: Sequence[Scene]) -> None:
        self.held.append(
            self._rows(batch, torch.stack([one.image for one in batch]), first=_count(self.held))
        )
        chosen = [one for one in batch if self.held_out.changed(one.number)]
        for images in in_other_light(torch.stack([one.image for one in chosen])) if chosen else ():
            self.changed.append(self._rows(chosen, images, first=_count(self.changed)))

    def _rows(self, batch: Sequence[Scene], images: torch.Tensor, *, first: int = 0) -> QueryRows:
        things = [one.things for one in batch]
        return known_rows(self.detector, images, things, self.settings, first=first)


def _count(parts: Sequence[QueryRows]) -> int:
    return sum(len(part.pictures) for part in parts)


def lots(scenes: Iterator[Scene]) -> Iterator[list[Scene]]:
    """Of so many pictures each."""
    while lot := list(islice(scenes, LOT)):
        yield lot
