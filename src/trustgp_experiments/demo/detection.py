"""`trustgp demo --detection`: does a detector know things and views on which it was never trained?"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from trustgp.detection import Detection, DetectionModel, Detections, Things, fit_detector
from trustgp.executors.progress import Reporter, reporting
from trustgp.metrics import auroc
from trustgp.metrics.boxes import nearest

from ..core.extras import require_extras
from ..core.single_thread import alone
from ..datasets.scenes import CLASSES, scenes
from ..training.detector_network import pixels, trained
from .detection_figure import draw_scenes
from .run import new_table, write_results

SEED = {"train": 0, "validation": 1, "looked at": 4}  # of the rendered pictures; the detector knows the first
HIT = 0.3  # overlap with a thing's box from which a detection is of that thing
FALSE_ALARM = 0.05  # share of known things above the threshold, which is fitted to the validation pictures
CHUNK = 10  # pictures rendered or looked at between two steps of a bar
GROUPS = {"known": "known things", "novel": "novel things", "flight": "in flight"}
STYLES = {"known": "carry", "novel": "novel", "flight": "flight"}


@dataclass(frozen=True)
class PictureCounts:
    """How many pictures are rendered to fit on, to validate, and to look at in each style."""

    train: int
    validation: int
    looked_at: int


FULL, QUICK = PictureCounts(300, 80, 60), PictureCounts(30, 20, 8)


@dataclass(frozen=True)
class DetectionGroup:
    """Detections of one kind; medians, and how well two scores tell them from known things.

    Args:
        detections: How many.
        confidence: The detector's own.
        std: Of the edges, in pixels.
        novelty: In [0, 1].
        auroc_novelty: By novelty; None: of known things themselves, or without detections.
        auroc_confidence: By one minus the confidence.
    """

    detections: int
    confidence: float | None
    std: float | None
    novelty: float | None
    auroc_novelty: float | None
    auroc_confidence: float | None


@dataclass(frozen=True)
class SeenPictures:
    """Pictures of a style, uint8 [n, 3, h, w], with what was found in each, and which of that counts."""

    images: Tensor
    found: list[Detections]
    counts: list[Tensor]

    def of(self, field: str) -> Tensor:
        """One field of all detections that count, float64."""
        values = [getattr(one, field)[kept] for one, kept in zip(self.found, self.counts, strict=True)]
        return torch.cat(values).double().cpu()


def run_detection(out: Path, *, seed: int = 0, quick: bool = False, console: Console) -> int:
    """Fit, look, print a table, and write `detection.png` and `results.json` into `out`.

    Args:
        out: A folder, made if it is not there.
        seed: Of the fit; pictures are always the same.
        quick: A few dozen pictures, for CI.
        console: Where to print; bars are shown in a terminal only.

    Returns:
        0; missing extras are an ImportError that names them all.
    """
    start = time.perf_counter()
    require_extras("The demo of detection", ["plots", "detection"])
    out.mkdir(parents=True, exist_ok=True)
    size = QUICK if quick else FULL
    console.print(f"Renders {size.train} pictures and fits on them; about a minute.", highlight=False)
    seen, model, seconds = alone(lambda: _run(size, seed))
    groups = summarise(seen)
    assert model.alarm is not None
    threshold = float(model.alarm.threshold)
    draw_scenes(out / "detection.png", seen, threshold=threshold)
    console.print(detection_table(groups))
    console.print(f"Figure: {out / 'detection.png'}\n", soft_wrap=True)
    results = {"seed": seed, "quick": quick, "pictures": asdict(size), **seconds}
    results |= {"groups": {key: asdict(group) for key, group in groups.items()}, "threshold": threshold}
    write_results(out, {**results, "model_bytes": model.nbytes}, start, console)
    return 0


def _run(size: PictureCounts, seed: int) -> tuple[dict[str, SeenPictures], DetectionModel, dict[str, float]]:
    network = trained("scenes")
    began = time.perf_counter()
    with reporting(enabled=True) as reporter:
        train = rendered(size.train, "carry", SEED["train"], reporter)
        validation = rendered(size.validation, "carry", SEED["validation"], reporter)
        looked_at = {
            key: rendered(size.looked_at, style, SEED["looked at"], reporter) for key, style in STYLES.items()
        }
    ready = time.perf_counter()
    given, held = ((pixels(images), things) for images, things in (train, validation))
    model = fit_detector(network, given, Detection(), validation=held, seed=seed, progress=True)
    model.threshold(false_alarm=FALSE_ALARM)
    fitted = time.perf_counter()
    seen = {}
    with reporting(enabled=True) as reporter:
        for key, (images, things) in looked_at.items():
            parts = pixels(images).split(CHUNK)
            stage = reporter.track(parts, stage=f"looking: {GROUPS[key]}", total=len(parts))
            found = [one for part in stage for one in model.predict(part)]
            seen[key] = SeenPictures(images, found, counting(key, found, things))
    seconds = {"rendering_seconds": round(ready - began, 2), "fit_seconds": round(fitted - ready, 2)}
    return seen, model, seconds


def rendered(n: int, style: str, seed: int, reporter: Reporter) -> tuple[Tensor, list[Things]]:
    """Pictures, uint8 [n, 3, side, side], and what is in them."""
    starts = range(0, n, CHUNK)
    stage = reporter.track(starts, stage=f"rendering: {style}", total=len(starts))
    parts = [scenes(min(CHUNK, n - first), style, seed=seed, first=first) for first in stage]
    things = [Things(*pair) for part in parts for pair in zip(part.boxes, part.labels, strict=True)]
    return torch.cat([part.images for part in parts]), things


def counting(key: str, found: list[Detections], things: list[Things]) -> list[Tensor]:
    """Which detections of each picture belong to a group, [k] bool.

    In flight all of them; else those whose box is that of a known thing, or of a novel one.
    """
    if key == "flight":
        return [torch.ones(len(one), dtype=torch.bool) for one in found]
    counts = []
    for one, true in zip(found, things, strict=True):
        if not len(true.labels):
            counts.append(torch.zeros(len(one), dtype=torch.bool))
            continue
        share, which = nearest(one.boxes.cpu(), true.boxes)
        novel = true.labels[which] >= len(CLASSES)
        counts.append((share >= HIT) & (novel if key == "novel" else ~novel))
    return counts


def summarise(seen: dict[str, SeenPictures]) -> dict[str, DetectionGroup]:
    """Every group, the novel ones and the flight beside known things."""
    familiar = {field: seen["known"].of(field) for field in ("novelty", "confidence")}
    groups = {}
    for key, one in seen.items():
        novelty, confidence, std = (one.of(field) for field in ("novelty", "confidence", "std"))
        medians = [float(v.median()) if v.numel() else None for v in (confidence, std, novelty)]
        areas: list[float | None] = [None, None]
        if key != "known" and len(novelty) and len(familiar["novelty"]):
            areas = [
                round(float(auroc(familiar["novelty"], novelty)), 4),
                round(float(auroc(1 - familiar["confidence"], 1 - confidence)), 4),
            ]
        groups[key] = DetectionGroup(len(novelty), *medians, *areas)
    return groups


def detection_table(groups: dict[str, DetectionGroup]) -> Table:
    """One row for each group."""
    names = ("found", "confidence", "edge std", "novelty", "AUROC novelty", "AUROC 1 - conf.")
    table = new_table("Detections: medians, and AUROC against known things", "detections", names)
    for key, group in groups.items():
        cells = [_cell(group.confidence), _cell(group.std, 2, " px"), _cell(group.novelty)]
        areas = (_cell(area) for area in (group.auroc_novelty, group.auroc_confidence))
        table.add_row(GROUPS[key], str(group.detections), *cells, *areas)
    return table


def _cell(value: float | None, digits: int = 3, unit: str = "") -> str:
    return "" if value is None else f"{value:.{digits}f}{unit}"
