"""A pass of pictures through a detector, kept on disk: a killed fit goes on where it was."""

from __future__ import annotations

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
from .picture_pass import PicturePass
from .query_rows import Detection, QueryRows
from .readout import SeenSums
from .scenes import SceneStream

KIND = "trustgp-detector-pass"
EVERY = 30.0  # seconds from one writing to the next
DTYPES = {"picture": torch.int64, "labels": torch.int64, "kept": torch.bool}  # of the rows; others: floating
SUMS, ROWS = ("queries", "pictures"), ("held", "changed")


@dataclass
class PassCheckpoint:
    """Where the passes of one fit are kept."""

    folder: Path
    fingerprint: str  # of the detector, the pictures and every setting
    written: float = field(default_factory=time.monotonic)

    @classmethod
    def open(
        cls, folder: Path, detector: Detector, settings: Detection, streams: dict[str, SceneStream]
    ) -> PassCheckpoint:
        """Take up a folder, or begin it; one that belongs to another fit is refused."""
        said: dict[str, Any] = {
            "detector": network_fingerprint(detector.network),
            "settings": asdict(settings),
        }
        for name, stream in streams.items():
            said[name] = [stream.total, _first_print(stream)]
        return cls(folder, Checkpoint.open(folder, said).fingerprint)

    def keep(self, name: str, made: PicturePass, *, force: bool = False) -> None:
        """Write how far a pass is, whole or not at all, every now and then."""
        if not force and time.monotonic() - self.written < EVERY:
            return
        table: dict[str, Tensor] = {}
        for part in SUMS:
            if (sums := getattr(made, part)) is not None:
                table |= {f"{part}.{one.name}": getattr(sums, one.name) for one in fields(sums)}
        for part in ROWS:
            if rows := getattr(made, part):
                joined = QueryRows.joined(rows)
                setattr(made, part, [joined])
                table |= {f"{part}.{one.name}": getattr(joined, one.name) for one in fields(joined)}
                table[f"{part}.errors"] = joined.errors.nan_to_num(0.0)  # labels say which found nothing
        text = {"fingerprint": self.fingerprint, "done": made.done, "mixed": made.mixed, "size": made.size}
        write(self._path(name), kind=KIND, text=text, tensors=table or {"none": torch.zeros(1)})
        self.written = time.monotonic()

    def resume(self, name: str, made: PicturePass) -> None:
        """Bring a pass to where it was; a damaged file, or one of another fit, counts as not there."""
        path = self._path(name)
        if not path.exists():
            return
        try:
            text, table = read(path, kind=KIND)
            reader = Reader(table, where=str(path))
            reader.require(text.get("fingerprint") == self.fingerprint, "fingerprint", "of another fit")
            found = {part: _read_sums(reader, part) for part in SUMS}
            found |= {part: _read_rows(reader, part) for part in ROWS}
            made.size = tuple(text["size"]) if text["size"] else None
            made.done, made.mixed = int(text["done"]), bool(text["mixed"])
        except (ArtifactError, KeyError, TypeError):
            path.unlink()
            return
        for part, value in found.items():
            setattr(made, part, value)

    def _path(self, name: str) -> Path:
        return self.folder / f"pictures-{name}.trustgp"


def _first_print(stream: SceneStream) -> str:
    """Of the first picture and its things."""
    assert stream.first is not None
    images, things = stream.first
    return tensor_fingerprint(images[0].cpu(), things[0].boxes, things[0].labels)


def _read_sums(reader: Reader, part: str) -> SeenSums | None:
    if not reader.matching(f"{part}."):
        return None
    shapes = {"count": (None,), "total": (None, None), "square": (None, None, None)}
    return SeenSums(*(reader.take(f"{part}.{name}", torch.float64, *shape) for name, shape in shapes.items()))


def _read_rows(reader: Reader, part: str) -> list[QueryRows]:
    if not reader.matching(f"{part}."):
        return []
    wide = {"seen": (None, None), "logits": (None, None), "errors": (None, 4), "pictures": (None, None)}
    names = [one.name for one in fields(QueryRows)]
    taken = {n: reader.take(f"{part}.{n}", DTYPES.get(n), *wide.get(n, (None,))) for n in names}
    nothing = taken["labels"] == taken["logits"].shape[1] - 1
    taken["errors"] = taken["errors"].masked_fill(nothing[:, None], torch.nan)
    return [QueryRows(**taken)]
