"""The state of a detector's error bar, and its file: no pickle, refused with any other detector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.fingerprint import network_fingerprint
from ..data.tensor_file import ArtifactError, Reader, write
from ..likelihoods.base import NoveltyThreshold, novelty_tensors, read_novelty
from ..state.model_file import DETECTOR
from ..tangents.modules import clone_module
from .adapter import Adapter, Detection, Detector
from .class_gaussians import ClassGaussians, ClassTemperature, EdgeNoise

PROBE_TOLERANCE = 1e-3  # over the largest number of the probe
MIN_DF = 2.0  # degrees of freedom
CLASSES, PICTURES = "readout.", "pictures."  # prefixes of their tensors in a file


@dataclass(frozen=True, eq=False)
class DetectorState:
    """A detector and its error bar. `held_scores` are the novelty of the held-out detections that match a
    target, float64, [k], `held_pictures` that of the held-out pictures, [n]."""

    network: Any  # a private copy
    classes: ClassGaussians  # of the features of queries, by class
    pictures: ClassGaussians  # of their mean over all queries of a picture
    temperature: ClassTemperature
    edges: EdgeNoise
    names: tuple[str, ...]  # of the modules that give the features
    size: tuple[int, int]  # height and width of the pictures, or of the first
    rows: int  # queries that matched a target in the training pictures
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
        """The network, with its features."""
        return Detector(self.network, replace(self.settings.adapter, seen=self.names))


def novelty_of(variance: Tensor) -> Tensor:
    """From u, which is 1 on average over familiar data, to [0, 1): u / (1 + u); 1 where u has overflowed."""
    return (variance / (1.0 + variance)).nan_to_num(1.0)


@torch.no_grad()
def probe(detector: Detector, size: tuple[int, int]) -> tuple[Tensor, int]:
    """Outputs and features of a detector for a picture of noise, averaged over its queries, float32, which
    identify it; and the width of the features."""
    generator = torch.Generator().manual_seed(0)
    outputs = detector(torch.randn(1, detector.channels, *size, generator=generator, dtype=torch.float32))
    parts = (outputs.logits[0], outputs.boxes[0], outputs.features[0])
    return torch.cat([part.float().cpu().mean(dim=0) for part in parts]), outputs.features.shape[2]


def save_detector(state: DetectorState, path: str | Path) -> None:
    """Write the error bar whole or not at all. The detector is not in the file."""
    text = {
        "network": network_fingerprint(state.network),
        "detector": type(state.network).__name__,
        "settings": asdict(state.settings),
        **{name: getattr(state, name) for name in ("names", "size", "mixed", "rows")},
    }
    table = {"probe": probe(state.detector, state.size)[0]}
    parts = (state.classes, state.pictures, state.temperature, state.edges)
    for prefix, part in zip((CLASSES, PICTURES, "temperature.", "edges."), parts, strict=True):
        table |= {f"{prefix}{one.name}": getattr(part, one.name) for one in fields(part)}
    table |= {**novelty_tensors(state.held_scores, state.threshold), "held_pictures": state.held_pictures}
    write(Path(path), kind=DETECTOR, text=text, tensors=table)


def read_detector(text: dict, table: Mapping[str, Tensor], network: Any, *, where: str) -> DetectorState:
    """The state of a file's text and tensors; another detector than the one it was fitted to is refused."""
    if "finding" in text:
        raise ArtifactError(f"{where}: is of trustgp 0.2 or before; fit the detector again.")
    private = clone_module(network).eval()
    if network_fingerprint(private) != text.get("network"):
        what = f"{where}: was fitted to another detector; classes, names or weights differ"
        raise ArtifactError(f"{what}. Load it with the detector it was fitted to, or fit again.")
    names, size, _, settings = facts = _read_text(text, where)
    reader = Reader(table, where=where)
    held_scores, threshold = read_novelty(reader)
    try:
        now, width = probe(detector := Detector(private, replace(settings.adapter, seen=names)), size)
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"{where}: does not fit the detector: {error}") from error
    before = reader.take("probe", torch.float32, len(now))
    if not torch.allclose(before, now, rtol=0.0, atol=PROBE_TOLERANCE * max(1.0, float(now.abs().max()))):
        what = f"{where}: The detector's outputs changed although its weights did not"
        raise ArtifactError(f"{what}; check the version of transformers.")

    def gaussians(prefix: str, classes: int) -> ClassGaussians:
        centre = reader.take(f"{prefix}centre", torch.float32, classes, width)
        return ClassGaussians(centre, reader.take(f"{prefix}root", torch.float32, classes, width, width))

    powers = (reader.positive(f"edges.{name}", zero=True) for name in ("growth", "picture"))
    state = DetectorState(
        private,
        gaussians(CLASSES, detector.labels),
        gaussians(PICTURES, 1),
        ClassTemperature(reader.positive("temperature.least"), reader.positive("temperature.growth")),
        EdgeNoise(reader.positive("edges.level", 4), *powers, df=reader.positive("edges.df")),
        *facts,
        mixed=text.get("mixed") is True,
        held_scores=held_scores,
        held_pictures=reader.positive("held_pictures", None, zero=True),
        threshold=threshold,
    )
    reader.require(state.edges.df > MIN_DF, "edges.df", f"must be above {MIN_DF:g}")
    reader.finish()
    return state


def _read_text(text: dict[str, Any], where: str) -> tuple[tuple[str, ...], tuple[int, int], int, Detection]:
    """Names of modules, size of pictures, number of rows, and settings."""
    try:
        names, (height, width), rows = tuple(text["names"]), text["size"], text["rows"]
        plain = dict(text["settings"])
        adapter = dict(plain.pop("adapter"))
        adapter["seen"] = tuple(seen) if isinstance(seen := adapter["seen"], list) else seen
        settings = Detection(adapter=Adapter(**adapter), **plain)
        sane = all(isinstance(name, str) for name in names) and len(names) > 0
        sane = sane and all(type(n) is int and n > 0 for n in (height, width, rows))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{where}: its description is damaged or unknown ({error}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its description does not fit together.")
    return names, (height, width), rows, settings
