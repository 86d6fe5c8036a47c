"""The progress of a pass of pictures on disk, from which a killed fit resumes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.fingerprint import network_fingerprint, tensor_fingerprint
from ..data.tensor_file import ArtifactError, Reader, read, write
from ..fitting.checkpoint import Checkpoint
from .adapter import Detector
from .class_gaussians import ClassMoments
from .picture_pass import PicturePass
from .query_rows import Detection, QueryRows
from .scenes import SceneStream

KIND = "trustgp-detector-pass"
SAVE_EVERY = 30.0  # seconds
DTYPES = {"picture": torch.int64, "labels": torch.int64, "kept": torch.bool}  # of the rows; others: floating
MOMENTS, ROWS = ("queries", "pictures"), ("held_out_rows", "variant_rows")


@dataclass
class PassCheckpoint:
    """The folder that keeps the passes of one fit."""

    folder: Path
    fingerprint: str  # of the detector, the pictures and every setting
    written: float = field(default_factory=time.monotonic)

    @classmethod
    def open(
        cls, folder: Path, detector: Detector, settings: Detection, streams: dict[str, SceneStream]
    ) -> PassCheckpoint:
        """Resume a folder, or begin it; one that belongs to another fit is refused."""
        network = network_fingerprint(detector.network)
        facts: dict[str, Any] = {"detector": network, "settings": json.dumps(asdict(settings))}
        facts |= {name: [stream.total, _fingerprint(stream)] for name, stream in streams.items()}
        return cls(folder, Checkpoint.open(folder, facts).fingerprint)

    def save(self, name: str, made: PicturePass, *, force: bool = False) -> None:
        """Write the progress of a pass, whole or not at all, unless it was written a moment ago."""
        if not force and time.monotonic() - self.written < SAVE_EVERY:
            return
        table: dict[str, Tensor] = {}
        for part in MOMENTS:
            if (sums := getattr(made, part)) is not None:
                table |= {f"{part}.{one.name}": getattr(sums, one.name) for one in fields(sums)}
        for part in ROWS:
            if rows := getattr(made, part):
                joined = QueryRows.joined(rows)
                setattr(made, part, [joined])
                table |= {f"{part}.{one.name}": getattr(joined, one.name) for one in fields(joined)}
                table[f"{part}.errors"] = joined.errors.nan_to_num(0.0)  # labels tell which match nothing
        text = {"fingerprint": self.fingerprint, "done": made.done, "mixed": made.mixed, "size": made.size}
        table = table or {"none": torch.zeros(1)}
        write(self.folder / f"pass-{name}.trustgp", kind=KIND, text=text, tensors=table)
        self.written = time.monotonic()

    def resume(self, name: str, made: PicturePass) -> None:
        """Restore a pass; a damaged file, or one of another fit, is deleted."""
        path = self.folder / f"pass-{name}.trustgp"
        if not path.exists():
            return
        try:
            text, table = read(path, kind=KIND)
            reader = Reader(table, where=str(path))
            reader.require(text.get("fingerprint") == self.fingerprint, "fingerprint", "of another fit")
            parts = {part: _read_moments(reader, part) for part in MOMENTS}
            parts |= {part: _read_rows(reader, part) for part in ROWS}
            made.size = tuple(text["size"]) if text["size"] else None
            made.done, made.mixed = int(text["done"]), bool(text["mixed"])
        except (ArtifactError, KeyError, TypeError):
            path.unlink()
            return
        for part, value in parts.items():
            setattr(made, part, value)


def _fingerprint(stream: SceneStream) -> str:
    assert stream.first is not None
    images, (targets, *_) = stream.first
    assert targets is not None
    return tensor_fingerprint(images[0].cpu(), targets.boxes, targets.labels)


def _read_moments(reader: Reader, part: str) -> ClassMoments | None:
    if not reader.matching(f"{part}."):
        return None
    shapes = {"count": (None,), "total": (None, None), "square": (None, None, None)}
    parts = (reader.take(f"{part}.{name}", torch.float64, *shape) for name, shape in shapes.items())
    return ClassMoments(*parts)


def _read_rows(reader: Reader, part: str) -> list[QueryRows]:
    if not reader.matching(f"{part}."):
        return []
    wide = {"features": (None, None), "logits": (None, None), "errors": (None, 4), "pictures": (None, None)}
    names = [one.name for one in fields(QueryRows)]
    taken = {n: reader.take(f"{part}.{n}", DTYPES.get(n), *wide.get(n, (None,))) for n in names}
    unmatched = taken["labels"] == taken["logits"].shape[1] - 1
    taken["errors"] = taken["errors"].masked_fill(unmatched[:, None], torch.nan)
    return [QueryRows(**taken)]
