"""The state of a detector's error bar, and its file, without pickle, that loads only with that detector."""

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
from .class_gaussians import ClassGaussians, ClassTemperature, EdgeNoise, FeaturePool, LocalNoise

PROBE_TOLERANCE = 1e-3  # over the largest number of the probe
MIN_DF = 2.0  # degrees of freedom
BOX_NUMBERS = 6  # of a box among the features of the local noise
POOLS = ("detections", "pictures")  # prefixes of their tensors in a file
PARTS = ("temperature", "local", "edges")  # likewise


@dataclass(frozen=True, eq=False)
class DetectorState:
    """A detector and its error bar. `held_scores` is the novelty of each held-out detection that matches a
    target, float64, [k]; `held_pictures` is the novelty of each held-out picture, [n]."""

    network: Any  # a private copy
    detections: FeaturePool  # of the features of queries, and of the cells inside their boxes, by class
    pictures: FeaturePool  # of their means over all queries, and all cells, of a picture
    temperature: ClassTemperature
    local: LocalNoise
    edges: EdgeNoise
    names: tuple[str, ...]  # of the modules that give the features
    cells: tuple[str, ...]  # of those that give the cells; empty: there are none
    size: tuple[int, int]  # height and width of the pictures, or of the first
    rows: int  # queries that matched a target in the training pictures
    settings: Detection
    held_scores: Tensor
    held_pictures: Tensor
    threshold: NoveltyThreshold | None = None
    mixed: bool = False  # whether pictures of other sizes are taken, too

    @property
    def only_size(self) -> tuple[int, int] | None:
        """Size that all pictures must have; None: any size is allowed."""
        return None if self.mixed else self.size

    @property
    def detector(self) -> Detector:
        """The network, with hooks on the modules that give its features."""
        return Detector(self.network, replace(self.settings.adapter, seen=self.names, cells=self.cells))


@torch.no_grad()
def probe(detector: Detector, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Outputs and features of a detector for one picture of noise, averaged over the queries, float32, to
    recognise it later; and the widths of the features and cells."""
    generator = torch.Generator().manual_seed(0)
    outputs = detector(torch.randn(1, detector.channels, *size, generator=generator, dtype=torch.float32))
    parts = (outputs.logits[0], outputs.boxes[0], outputs.features[0])
    widths = outputs.features.shape[2], outputs.cells.shape[3]
    return torch.cat([part.float().cpu().mean(dim=0) for part in parts]), widths


def save_detector(state: DetectorState, path: str | Path) -> None:
    """Write the error bar atomically. The detector is not in the file."""
    text = {
        "network": network_fingerprint(state.network),
        "detector": type(state.network).__name__,
        "settings": asdict(state.settings),
        **{name: getattr(state, name) for name in ("names", "cells", "size", "mixed", "rows")},
    }
    table = {"probe": probe(state.detector, state.size)[0]}
    for name in POOLS:
        pool: FeaturePool = getattr(state, name)
        table[f"{name}.tails"] = pool.tails
        for kind, own in enumerate(pool.gaussians):
            table |= {f"{name}.{kind}.centre": own.centre, f"{name}.{kind}.root": own.root}
    for name in PARTS:
        part = getattr(state, name)
        table |= {f"{name}.{one.name}": getattr(part, one.name) for one in fields(part)}
    table |= {**novelty_tensors(state.held_scores, state.threshold), "held_pictures": state.held_pictures}
    write(Path(path), kind=DETECTOR, text=text, tensors=table)


def read_detector(text: dict, table: Mapping[str, Tensor], network: Any, *, where: str) -> DetectorState:
    """State from a file's text and tensors; raise ArtifactError for a detector other than the fitted one."""
    if "cells" not in text:
        raise ArtifactError(f"{where}: is of an earlier version of trustgp; fit the detector again.")
    private = clone_module(network).eval()
    if network_fingerprint(private) != text.get("network"):
        what = f"{where}: was fitted to another detector; classes, names or weights differ"
        raise ArtifactError(f"{what}. Load it with the detector it was fitted to, or fit again.")
    names, cells, size, _, settings = facts = _read_text(text, where)
    reader = Reader(table, where=where)
    held_scores, threshold = read_novelty(reader)
    try:
        adapter = replace(settings.adapter, seen=names, cells=cells)
        now, widths = probe(detector := Detector(private, adapter), size)
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"{where}: does not fit the detector: {error}") from error
    before = reader.take("probe", torch.float32, len(now))
    if not torch.allclose(before, now, rtol=0.0, atol=PROBE_TOLERANCE * max(1.0, float(now.abs().max()))):
        what = f"{where}: The detector's outputs changed although its weights did not"
        raise ArtifactError(f"{what}; check the version of transformers.")

    def pool(name: str, classes: int) -> FeaturePool:
        tails = reader.take(f"{name}.tails", torch.float64, 3, sum(width > 0 for width in widths), None)
        own = []
        for kind, width in enumerate(width for width in widths if width):
            centre = reader.take(f"{name}.{kind}.centre", torch.float32, classes, width)
            root = reader.take(f"{name}.{kind}.root", torch.float32, classes, width, width)
            own.append(ClassGaussians(centre, root))
        return FeaturePool(tuple(own), tails)

    weights = reader.take("local.weights", torch.float64, None, 4)
    described = [reader.take(f"local.{name}", torch.float64, len(weights)) for name in ("centre", "spread")]
    powers = (reader.positive(f"edges.{name}", zero=True) for name in ("growth", "picture", "local"))
    lowest = reader.positive("temperature.least"), reader.positive("temperature.growth", zero=True)
    state = DetectorState(
        private,
        pool("detections", detector.labels),
        pool("pictures", 1),
        ClassTemperature(*lowest),
        LocalNoise(weights, *described, bounds=reader.take("local.bounds", torch.float64, 2, 4)),
        EdgeNoise(reader.positive("edges.level", 4), *powers, df=reader.positive("edges.df")),
        *facts,
        mixed=text.get("mixed") is True,
        held_scores=held_scores,
        held_pictures=reader.positive("held_pictures", None, zero=True),
        threshold=threshold,
    )
    reader.require(len(weights) == widths[0] + BOX_NUMBERS, "local.weights", "fits other features")
    reader.require(state.local.spread > 0, "local.spread", "must be positive")
    reader.require(state.edges.df > MIN_DF, "edges.df", f"must be above {MIN_DF:g}")
    reader.finish()
    return state


def _read_text(
    text: dict[str, Any], where: str
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, int], int, Detection]:
    """Names of feature modules, names of cell modules, picture size, number of rows, and settings."""
    try:
        names, cells = tuple(text["names"]), tuple(text["cells"])
        (height, width), rows = text["size"], text["rows"]
        plain = dict(text["settings"])
        adapter = dict(plain.pop("adapter"))
        adapter |= {key: tuple(own) for key, own in adapter.items() if isinstance(own, list)}
        settings = Detection(adapter=Adapter(**adapter), **plain)
        sane = all(isinstance(name, str) for name in (*names, *cells)) and len(names) > 0
        sane = sane and all(type(n) is int and n > 0 for n in (height, width, rows))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{where}: its description is damaged or unknown ({error}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its description does not fit together.")
    return names, cells, (height, width), rows, settings
