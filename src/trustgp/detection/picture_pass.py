"""A pass of pictures through a detector: moments of its features, and rows of held-out pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .adapter import Detection, Detector, QueryRows, labelled_rows
from .class_gaussians import ClassMoments
from .pictures import by_size
from .scenes import Scene

MAX_VARIED = 500  # held-out pictures that have photometric variants
BRIGHTNESS = (-0.75, 0.75)  # shifts, in standard deviations of the picture
CONTRAST = (0.5, 1.5)  # factors
VARIANTS = len(BRIGHTNESS) + len(CONTRAST)
MAX_SAMPLED = 16_384  # boxes of training pictures whose errors are kept


@dataclass(frozen=True)
class HeldOut:
    """Which pictures are held out for calibration: one of every so many, by their indices."""

    every: int | None  # 1: all; None: none
    total: int | None = None  # pictures in all; None: unknown
    max_varied: int = MAX_VARIED  # of them that have variants

    def __contains__(self, index: int) -> bool:
        return self.every is not None and index % self.every == self.every - 1

    def varied(self, index: int) -> bool:
        """Whether one that is held out has variants: some of them, evenly spread."""
        every, step = self.every or 1, 1
        if self.total is not None and self.max_varied:
            step = max(1, -(-self.total // (every * self.max_varied)))
        return index // every % step == 0 and index // every // step < self.max_varied


@dataclass(frozen=True)
class BoxSample:
    """Boxes of training pictures and their errors: those of every 2^k-th picture, so that they are few."""

    features: Tensor  # of the query, [m, d]
    boxes: Tensor  # centre and size over the picture's, [m, 4]
    errors: Tensor  # in pixels, [m, 4]
    labels: Tensor  # the predicted classes, int64, [m]
    index: Tensor  # of the picture, int64, [m]
    step: int = field(default=1, kw_only=True)  # 2^k

    def include(self, *rows: Tensor) -> BoxSample:
        """With more rows: features, boxes, errors, labels and index."""
        own = (self.features, self.boxes, self.errors, self.labels, self.index)
        parts, step = [torch.cat(pair) for pair in zip(own, rows, strict=True)], self.step
        while int((kept := parts[-1] % step == 0).sum()) > MAX_SAMPLED:
            step = 2 * step
        return BoxSample(*(part[kept] for part in parts), step=step)


@dataclass
class PicturePass:
    """The sums and rows of the pictures so far; `include` adds more of them."""

    detector: Detector
    settings: Detection
    held_out: HeldOut
    # of queries that match a target and of the cells inside their boxes, by class; and of the means over all
    # queries, and over all cells, of a picture
    moments: tuple[ClassMoments, ...] = ()
    sample: BoxSample | None = None  # of queries that match a target
    held_out_rows: list[QueryRows] = field(default_factory=list)
    variant_rows: list[QueryRows] = field(default_factory=list)  # of their photometric variants
    done: int = 0  # pictures
    mixed: bool = False  # whether they had more than one size
    size: tuple[int, int] = (0, 0)  # of the first

    def include(self, chunk: Sequence[Scene]) -> None:
        """Add pictures of any sizes."""
        if not self.done:
            height, width = chunk[0].image.shape[-2:]
            self.size = int(height), int(width)
        self.mixed |= any(tuple(one.image.shape[-2:]) != self.size for one in chunk)
        for held_out in (False, True):
            scenes = [one for one in chunk if (one.index in self.held_out) is held_out]
            for indices in by_size([one.image for one in scenes]):
                batch = [scenes[i] for i in indices]
                self._hold_out(batch) if held_out else self._accumulate(batch)
        self.done += len(chunk)

    def _accumulate(self, batch: Sequence[Scene]) -> None:
        rows = self._rows(batch, torch.stack([one.image for one in batch]))
        matched = rows.matched
        values = (rows.features[matched], rows.inside[matched], rows.pictures, rows.cells)
        classes = (*[rows.predicted[matched]] * 2, *[rows.one_class] * 2)
        if not self.moments:
            counts = (self.detector.labels, self.detector.labels, 1, 1)
            widths = (value.shape[1] for value in values)
            self.moments = tuple(map(ClassMoments.zero, counts, widths))
        for moments, value, own in zip(self.moments, values, classes, strict=True):
            moments.include(value, own)
        index = torch.tensor([one.index for one in batch])[rows.picture[matched]]
        more = (*(part[matched] for part in (rows.features, rows.boxes, rows.errors, rows.predicted)), index)
        start = BoxSample(*(part[:0] for part in more))
        self.sample = (self.sample or start).include(*more)

    def _hold_out(self, batch: Sequence[Scene]) -> None:
        self.held_out_rows.append(self._rows(batch, torch.stack([one.image for one in batch])))
        if varied := [one for one in batch if self.held_out.varied(one.index)]:
            variants = photometric_variants(torch.stack([one.image for one in varied]))
            self.variant_rows += [self._rows(varied, images) for images in variants]

    def _rows(self, batch: Sequence[Scene], images: Tensor) -> QueryRows:
        return labelled_rows(self.detector, images, [one.targets for one in batch], self.settings)


def photometric_variants(images: Tensor) -> list[Tensor]:
    """Pictures [n, channels, height, width] made darker, brighter, and of less and more contrast: objects
    stay where they are, and the error bars of boxes are fitted to them, too."""
    spread = images.std(dim=(2, 3), keepdim=True, correction=0)  # of each channel
    middle = images.mean(dim=(2, 3), keepdim=True)
    shifted = [images + shift * spread for shift in BRIGHTNESS]
    return shifted + [middle + times * (images - middle) for times in CONTRAST]
