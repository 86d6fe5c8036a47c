"""A pass of pictures through a detector: feature moments, rows of held-out pictures, and a checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ..data.fingerprint import network_fingerprint, tensor_fingerprint
from ..data.tensor_file import ArtifactError, inside, read, write
from ..fitting.checkpoint import Checkpoint
from .adapter import Detection, Detector, QueryRows, labelled_rows
from .class_gaussians import ClassMoments
from .pictures import by_size
from .scenes import Scene

CHUNK = 64  # pictures that are in memory at a time
MAX_VARIED = 500  # held-out pictures that have photometric variants
BRIGHTNESS = (-0.75, 0.75)  # shifts, in standard deviations of the picture
CONTRAST = (0.5, 1.5)  # factors
VARIANTS = len(BRIGHTNESS) + len(CONTRAST)
KIND = "trustgp-detector-pass"
SAVE_EVERY = 30.0  # seconds
MAX_SAMPLED = 16_384  # boxes of training pictures whose errors are kept
MOMENTS = ("queries", "inside", "pictures", "cells")
ROWS = ("held_out_rows", "variant_rows")


@dataclass(frozen=True)
class HeldOut:
    """Rule that holds out the last of every `every` pictures, by index, for calibration."""

    every: int | None  # 1: all; None: none
    total: int | None = None  # pictures in all; None: unknown
    max_varied: int = MAX_VARIED  # of them that have variants

    def __contains__(self, index: int) -> bool:
        return self.every is not None and index % self.every == self.every - 1

    def varied(self, index: int) -> bool:
        """Whether a held-out picture has variants: up to `max_varied`, evenly spread if `total` is known."""
        every, step = self.every or 1, 1
        if self.total is not None and self.max_varied:
            step = max(1, -(-self.total // (every * self.max_varied)))
        return index // every % step == 0 and index // every // step < self.max_varied


@dataclass(frozen=True)
class BoxSample:
    """Sample of boxes and their errors, from every 2^k-th training picture: at most `MAX_SAMPLED` boxes."""

    features: Tensor  # of the query, [m, d]
    boxes: Tensor  # centre and size over the picture's, [m, 4]
    errors: Tensor  # in pixels, [m, 4]
    labels: Tensor  # the predicted classes, int64, [m]
    index: Tensor  # of the picture, int64, [m]
    step: Tensor  # 2^k, int64, a scalar

    def include(self, *rows: Tensor) -> BoxSample:
        """Sample with more rows added: features, boxes, errors, labels and index."""
        own = (self.features, self.boxes, self.errors, self.labels, self.index)
        parts, step = [torch.cat(pair) for pair in zip(own, rows, strict=True)], self.step
        while int((kept := parts[-1] % step == 0).sum()) > MAX_SAMPLED:
            step = 2 * step
        return BoxSample(*(part[kept] for part in parts), step=step)


@dataclass
class PicturePass:
    """Sums and rows of the pictures processed so far; `include` adds pictures."""

    detector: Detector
    settings: Detection
    held_out: HeldOut
    queries: ClassMoments | None = None  # of queries that match a target, by class
    inside: ClassMoments | None = None  # of the cells inside their boxes, likewise
    pictures: ClassMoments | None = None  # of the mean over all queries of a picture
    cells: ClassMoments | None = None  # of the mean over all cells of a picture
    sample: BoxSample | None = None  # of queries that match a target
    held_out_rows: list[QueryRows] = field(default_factory=list)
    variant_rows: list[QueryRows] = field(default_factory=list)  # of their photometric variants
    done: int = 0  # pictures
    mixed: bool = False  # whether they had more than one size
    size: tuple[int, int] | None = None  # of the first

    def include(self, chunk: Sequence[Scene]) -> None:
        """Add pictures of any sizes."""
        height, width = chunk[0].image.shape[-2:]
        self.size = self.size or (int(height), int(width))
        self.mixed |= any(tuple(one.image.shape[-2:]) != self.size for one in chunk)
        for held_out in (False, True):
            scenes = [one for one in chunk if (one.index in self.held_out) is held_out]
            for indices in by_size([one.image for one in scenes]):
                batch = [scenes[i] for i in indices]
                self._hold_out(batch) if held_out else self._accumulate(batch)
        self.done += len(chunk)

    def _accumulate(self, batch: Sequence[Scene]) -> None:
        rows = self._rows(batch, torch.stack([one.image for one in batch]))
        matched, labels = rows.matched, (self.detector.labels, self.detector.labels, 1, 1)
        values = (rows.features[matched], rows.inside[matched], rows.pictures, rows.cells)
        classes = (*[rows.predicted[matched]] * 2, *[rows.one_class] * 2)
        for name, count, value, own in zip(MOMENTS, labels, values, classes, strict=True):
            if getattr(self, name) is None:
                setattr(self, name, ClassMoments.zero(count, value.shape[1]))
            getattr(self, name).include(value, own)
        index = torch.tensor([one.index for one in batch])[rows.picture[matched]]
        more = (*(part[matched] for part in (rows.features, rows.boxes, rows.errors, rows.predicted)), index)
        start = BoxSample(*(part[:0] for part in more), step=torch.tensor(1))
        self.sample = (self.sample or start).include(*more)

    def _hold_out(self, batch: Sequence[Scene]) -> None:
        self.held_out_rows.append(self._rows(batch, torch.stack([one.image for one in batch])))
        if varied := [one for one in batch if self.held_out.varied(one.index)]:
            variants = photometric_variants(torch.stack([one.image for one in varied]))
            self.variant_rows += [self._rows(varied, images) for images in variants]

    def _rows(self, batch: Sequence[Scene], images: Tensor) -> QueryRows:
        return labelled_rows(self.detector, images, [one.targets for one in batch], self.settings)


def chunked(scenes: Iterator[Scene]) -> Iterator[list[Scene]]:
    """Yield lists of `CHUNK` pictures; the last one may be shorter."""
    while chunk := list(islice(scenes, CHUNK)):
        yield chunk


def photometric_variants(images: Tensor) -> list[Tensor]:
    """Copies of pictures [n, channels, height, width] with lower and higher brightness, then contrast.
    Objects stay in place, so the error bars of boxes can be fitted to these variants, too."""
    spread = images.std(dim=(2, 3), keepdim=True, correction=0)  # of each channel
    middle = images.mean(dim=(2, 3), keepdim=True)
    shifted = [images + shift * spread for shift in BRIGHTNESS]
    return shifted + [middle + times * (images - middle) for times in CONTRAST]


@dataclass
class PassCheckpoint:
    """Folder with the progress of the passes of a fit, from which a killed fit resumes; None: no folder."""

    folder: Path | None
    fingerprint: str = ""  # of the detector, the pictures and every setting
    written: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, folder: Path, detector: Detector, settings: Detection, streams: dict[str, Any]) -> Self:
        """Open a new folder, or one to resume from; raise ArtifactError if it belongs to another fit."""
        network = network_fingerprint(detector.network)
        facts: dict[str, Any] = {"detector": network, "settings": json.dumps(asdict(settings))}
        for name, stream in streams.items():
            images, (targets, *_) = stream.first
            facts[name] = [stream.total, tensor_fingerprint(images[0].cpu(), targets.boxes, targets.labels)]
        return cls(folder, Checkpoint.open(folder, facts).fingerprint)

    def save(self, name: str, made: PicturePass, *, force: bool = False) -> None:
        """Write the progress of a pass atomically; without `force`, at most once in `SAVE_EVERY` seconds."""
        if self.folder is None or (not force and time.monotonic() - self.written < SAVE_EVERY):
            return
        table = {"none": torch.zeros(1)}  # the only tensor before the first picture
        for part in (*MOMENTS, *ROWS, "sample"):
            state = getattr(made, part)
            if part in ROWS and state:
                state = QueryRows.joined(state)
                setattr(made, part, [state])
            table |= {f"{part}.{key}": value for key, value in vars(state).items()} if state else {}
        text = {"fingerprint": self.fingerprint, "done": made.done, "mixed": made.mixed, "size": made.size}
        write(self.folder / f"pass-{name}.trustgp", kind=KIND, text=text, tensors=table)
        self.written = time.monotonic()

    def resume(self, name: str, made: PicturePass) -> None:
        """Restore a pass from its file, if there is one; delete a damaged file or one of another fit."""
        if self.folder is None or not (path := self.folder / f"pass-{name}.trustgp").exists():
            return
        try:
            text, table = read(path, kind=KIND)
            if text["fingerprint"] != self.fingerprint:
                raise ArtifactError(f"{path}: of another fit.")
            sums = {part: ClassMoments(**own) for part in MOMENTS if (own := inside(table, f"{part}."))}
            rows = {part: [QueryRows(**own)] for part in ROWS if (own := inside(table, f"{part}."))}
            sample = {"sample": BoxSample(**own)} if (own := inside(table, "sample.")) else {}
            made.size = tuple(text["size"]) if text["size"] else None
            made.done, made.mixed = int(text["done"]), bool(text["mixed"])
        except (ArtifactError, KeyError, TypeError):
            path.unlink()
            return
        for part, value in (sums | rows | sample).items():
            setattr(made, part, value)
