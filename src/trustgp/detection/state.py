"""What a detector's error bar consists of, and its file: no pickle, refused with any other detector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.fingerprint import network_fingerprint
from ..data.tensor_file import ArtifactError, Reader, write
from ..likelihoods.base import NoveltyThreshold, novelty_tensors, read_novelty
from ..state.model_file import DETECTOR
from ..tangents.modules import clone_module
from .adapter import Adapter, Detector
from .calibration import ClassTemperature, EdgeNoise
from .query_rows import Detection
from .readout import Readout

ALIKE = 1e-3  # what may differ there, over the largest number
CLOSEST = 2.0  # the fewest degrees of freedom
PICTURES = "pictures."  # begins names of what is known of whole pictures


@dataclass(frozen=True, eq=False)
class DetectorState:
    """A detector and its error bar. `held_scores` are the novelty of the held-out detections that have found
    a thing, float64, [k], `held_pictures` that of the held-out pictures, [n]."""

    network: Any  # a private copy
    readout: Readout  # what is known of what queries see, by class
    pictures: Readout  # and on average over all queries of a picture
    temperature: ClassTemperature
    edges: EdgeNoise
    names: tuple[str, ...]  # of the modules that show what was seen
    size: tuple[int, int]  # height and width of the pictures, or of the first
    rows: int  # queries that had found a thing in the training pictures
    settings: Detection
    held_scores: Tensor
    held_pictures: Tensor
    threshold: NoveltyThreshold | None = None
    mixed: bool = False  # whether pictures of other sizes are taken, too

    @property
    def only_size(self) -> tuple[int, int] | None:
        """The size that pictures must have; None: any."""
        return None if self.mixed else self.size

    @property
    def detector(self) -> Detector:
        """The network, as it is asked."""
        adapter = self.settings.adapter
        return Detector(self.network, Adapter(self.names, adapter.labels, adapter.suppression))


def novelty_of(unknown: Tensor) -> Tensor:
    """From u, which is 1 on average where all is familiar, to [0, 1): u / (1 + u)."""
    return (unknown / (1.0 + unknown)).nan_to_num(1.0, posinf=1.0).double().cpu()


@torch.no_grad()
def probe(detector: Detector, size: tuple[int, int]) -> tuple[Tensor, int]:
    """What a detector says of, and sees in, a picture of noise, on average over its queries, float32: by
    which it is known again. And how many numbers a query sees."""
    noise = torch.randn(1, detector.channels, *size, generator=torch.Generator().manual_seed(0))
    said = detector(noise)
    parts = (said.logits[0], said.boxes[0], said.seen[0])
    return torch.cat([part.float().cpu().mean(dim=0) for part in parts]), said.seen.shape[2]


def save_detector(state: DetectorState, path: str | Path) -> None:
    """Write the error bar whole or not at all. The detector is not in the file."""
    text = {
        "network": network_fingerprint(state.network),
        "detector": type(state.network).__name__,
        "names": list(state.names),
        "size": list(state.size),
        "mixed": state.mixed,
        "rows": state.rows,
        "settings": asdict(state.settings),
    }
    table = {"probe": probe(state.detector, state.size)[0]}
    for prefix, part in _parts(state).items():
        table |= {f"{prefix}{one.name}": getattr(part, one.name) for one in fields(part)}
    table |= novelty_tensors(state.held_scores, state.threshold)
    table["held_pictures"] = state.held_pictures
    write(Path(path), kind=DETECTOR, text=text, tensors=table)


def _parts(state: DetectorState) -> dict[str, Any]:
    return {
        "readout.": state.readout,
        PICTURES: state.pictures,
        "temperature.": state.temperature,
        "edges.": state.edges,
    }


def read_detector(
    text: dict[str, Any], table: Mapping[str, Tensor], network: Any, *, where: str
) -> DetectorState:
    """The state of a file's text and tensors; another detector than the one it was fitted to is refused."""
    if "finding" in text:
        raise ArtifactError(
            f"{where}: is of trustgp 0.2 or before; fit the detector again, it takes one pass."
        )
    private = clone_module(network).eval()
    if network_fingerprint(private) != text.get("network"):
        raise ArtifactError(
            f"{where}: was fitted to another detector; classes, names or weights differ. Load it with the "
            "detector it was fitted to, or fit again."
        )
    names, size, rows, settings = _read_text(text, where)
    reader = Reader(table, where=where)
    held_scores, threshold = read_novelty(reader)
    try:
        detector = Detector(private, Adapter(names, settings.adapter.labels, settings.adapter.suppression))
        known, width = probe(detector, size)
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"{where}: does not fit the detector: {error}") from error
    before = reader.take("probe", torch.float32, len(known))
    if not torch.allclose(before, known, rtol=0.0, atol=ALIKE * max(1.0, float(known.abs().max()))):
        raise ArtifactError(
            f"{where}: the detector, with the same weights, does something else than when it was fitted; is "
            "transformers as it was?"
        )
    state = DetectorState(
        private,
        _read_readout(reader, "readout.", detector.labels, width),
        _read_readout(reader, PICTURES, 1, width),
        ClassTemperature(reader.positive("temperature.least"), reader.positive("temperature.growth")),
        EdgeNoise(
            reader.positive("edges.level", 4),
            *(reader.positive(f"edges.{name}", zero=True) for name in ("growth", "picture")),
            df=reader.positive("edges.df"),
        ),
        names=names,
        size=size,
        mixed=text.get("mixed") is True,
        rows=rows,
        settings=settings,
        held_scores=held_scores,
        held_pictures=reader.positive("held_pictures", None, zero=True),
        threshold=threshold,
    )
    reader.require(state.edges.df > CLOSEST, "edges.df", f"must be above {CLOSEST:g}")
    reader.finish()
    return state


def _read_readout(reader: Reader, prefix: str, classes: int, width: int) -> Readout:
    centre = reader.take(f"{prefix}centre", torch.float32, classes, width)
    return Readout(centre, reader.take(f"{prefix}root", torch.float32, classes, width, width))


def _read_text(text: dict[str, Any], where: str) -> tuple[tuple[str, ...], tuple[int, int], int, Detection]:
    """Names, size, rows and settings."""
    try:
        names, (height, width), rows = tuple(text["names"]), text["size"], text["rows"]
        plain = dict(text["settings"])
        adapter = dict(plain.pop("adapter"))
        seen = adapter.pop("seen")
        settings = Detection(
            adapter=Adapter(tuple(seen) if isinstance(seen, list) else seen, **adapter), **plain
        )
        sane = all(isinstance(name, str) for name in names) and len(names) > 0
        sane = sane and all(type(n) is int and n > 0 for n in (height, width, rows))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{where}: its description is damaged or unknown ({error}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its description does not fit together.")
    return names, (height, width), rows, settings
