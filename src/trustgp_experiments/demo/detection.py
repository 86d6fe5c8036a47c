"""`trustgp demo --detection`: does a detector know things and views on which it was never trained?"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from trustgp import plots
from trustgp.detection import Detection, DetectionModel, Detections, Things, fit_detector
from trustgp.executors.progress import Reporter, reporting
from trustgp.metrics import auroc
from trustgp.metrics.boxes import nearest
from trustgp.plots.boxes import annotate, as_picture, draw_picture, lay_out

from ..core.registry import require_extras
from ..core.result import alone
from ..datasets.scenes import CLASSES, scenes
from ..training.detector_network import pixels, trained
from .run import result_table, write_results

SEED = {"train": 0, "validation": 1, "looked at": 4}  # of the rendered pictures; the detector knows the first
HIT = 0.3  # overlap with a thing's box from which a detection is of that thing
FALSE_ALARM = 0.05  # share of known things above the threshold, which is fitted to the validation pictures
CHUNK = 10  # pictures rendered or looked at between two steps of a bar
GROUPS = {"known": "known things", "novel": "novel things", "flight": "in flight"}
STYLES = {"known": "carry", "novel": "novel", "flight": "flight"}
TITLES = {
    "known": "Known things, seen as in training",
    "novel": "Novel things: a rock, an astronaut, a second rover",
    "flight": "In flight: from high up, low sun, haze, motion blur",
}
COLUMNS = {  # of a number: the head of its column, and how it is written
    "detections": ("found", "{}"),
    "confidence": ("confidence", "{:.3f}"),
    "std": ("edge std", "{:.2f} px"),
    "novelty": ("novelty", "{:.3f}"),
    "auroc_novelty": ("AUROC novelty", "{:.3f}"),
    "auroc_confidence": ("AUROC 1 - conf.", "{:.3f}"),
}
ACROSS = 4  # pictures of the figure, of each group


@dataclass(frozen=True)
class PictureCounts:
    """How many pictures are rendered to fit on, to validate, and to look at in each style."""

    train: int
    validation: int
    looked_at: int


FULL, QUICK = PictureCounts(300, 80, 60), PictureCounts(30, 20, 8)


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
    """Fit, look, print a table, write `detection.png` and `results.json`; pictures are always the same."""
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
    title = "Detections: medians, and AUROC against known things"
    named = {GROUPS[key]: group for key, group in groups.items()}
    console.print(result_table(title, "detections", COLUMNS, {"": named}))
    console.print(f"Figure: {out / 'detection.png'}\n", soft_wrap=True)
    results = {"seed": seed, "quick": quick, "pictures": asdict(size), **seconds}
    results |= {"groups": groups, "threshold": threshold, "model_bytes": model.nbytes}
    write_results(out, results, start, console)
    return 0


def _run(size: PictureCounts, seed: int) -> tuple[dict[str, SeenPictures], DetectionModel, dict[str, float]]:
    network = trained("scenes")
    began = time.perf_counter()
    with reporting(enabled=True) as reporter:
        train = rendered(size.train, "carry", SEED["train"], reporter)
        validation = rendered(size.validation, "carry", SEED["validation"], reporter)
        seed_at = SEED["looked at"]
        looked_at = {key: rendered(size.looked_at, one, seed_at, reporter) for key, one in STYLES.items()}
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
    """Which detections count, [k] bool: in flight all, else those on a known thing, or on a novel one."""
    counts = []
    for one, true in zip(found, things, strict=True):
        if key == "flight" or not len(true.labels):
            counts.append(torch.full((len(one),), key == "flight"))
            continue
        share, which = nearest(one.boxes.cpu(), true.boxes)
        novel = true.labels[which] >= len(CLASSES)
        counts.append((share >= HIT) & (novel if key == "novel" else ~novel))
    return counts


def summarise(seen: dict[str, SeenPictures]) -> dict[str, dict[str, float | None]]:
    """Of each group: number, medians (edges in pixels), and how two scores tell it from known things."""
    familiar = {field: seen["known"].of(field) for field in ("novelty", "confidence")}
    groups = {}
    for key, one in seen.items():
        novelty, confidence, std = (one.of(field) for field in ("novelty", "confidence", "std"))
        medians = [float(v.median()) if v.numel() else None for v in (confidence, std, novelty)]
        areas: list[float | None] = [None, None]
        if key != "known" and len(novelty) and len(familiar["novelty"]):
            pairs = (familiar["novelty"], novelty), (1 - familiar["confidence"], 1 - confidence)
            areas = [round(float(auroc(*pair)), 4) for pair in pairs]
        groups[key] = dict(zip(COLUMNS, (len(novelty), *medians, *areas), strict=True))
    return groups


def draw_scenes(path: Path, seen: dict[str, SeenPictures], *, threshold: float) -> None:
    """The first pictures of each group in which something of it was found."""
    with plots.figure(path, width=2.6 * ACROSS + 0.7, height=2.65 * len(seen) + 0.2, dpi=90) as drawn:
        grid = drawn.subplots(len(seen), ACROSS, squeeze=False)
        shown = []
        for row, (key, group) in zip(grid, seen.items(), strict=True):
            chosen = [i for i, counts in enumerate(group.counts) if bool(counts.any())][:ACROSS]
            for place, axes in enumerate(row):
                if place >= len(chosen):
                    axes.set_axis_off()
                    continue
                title = TITLES[key] if place == 0 else None
                draw_picture(axes, as_picture(group.images[chosen[place]]), title)
                shown.append((axes, group.found[chosen[place]]))
        _draw_scale(drawn, grid, threshold)
        lay_out(drawn)
        for axes, found in shown:
            annotate(axes, found, names=CLASSES, level=0.95, threshold=threshold)


def _draw_scale(drawn: Any, grid: Any, threshold: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(0, 2 * threshold), plots.colour_map())
    bar = drawn.colorbar(scale, ax=grid, shrink=0.5, aspect=28, pad=0.015, extend="max")
    bar.outline.set_visible(False)
    bar.set_ticks([0, threshold, 2 * threshold], labels=["0", f"{threshold:.2f}", f"{2 * threshold:.2f}"])
    bar.set_label("novelty; the threshold in the middle", fontsize=8)
