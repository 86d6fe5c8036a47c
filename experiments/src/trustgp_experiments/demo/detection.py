"""`trustgp demo --detection`: does a detector know things and views on which it was never trained?"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from trustgp import plots
from trustgp.detection import DetectionModel, Detections, Things
from trustgp.executors.progress import reporting
from trustgp.metrics import auroc
from trustgp.metrics.boxes import nearest
from trustgp.monitor.monitor import NOVEL, Verdict
from trustgp.plots.boxes import annotate, as_picture, draw_picture, lay_out, scale_end

from ..core.flight_film import blind_frames, flight_gif
from ..core.registry import require_extras
from ..core.result import alone
from ..datasets.scenes import CLASSES
from ..training.detector_error_bar import COMMAND, FALSE_ALARM, HELD, PICTURES, load_error_bar, rendered
from ..training.detector_network import pixels
from .run import result_table, write_results

SEED = (
    400  # of the rendered pictures, for the demo's seed 0; with no other seed was anything chosen or fitted
)
HIT = 0.3  # overlap with a thing's box from which a detection is of that thing
CHUNK = 10  # pictures looked at between two steps of a bar
GROUPS = {"known": "known things", "novel": "novel things", "flight": "in flight"}
STYLES = {"known": "carry", "novel": "novel", "flight": "flight"}
TITLES = {
    "known": "Known things, seen as in training: a mark is a false alarm",
    "novel": "Novel things, a rock, an astronaut, a second rover: marks are wanted",
    "flight": "In flight: from high up, low sun, haze, motion blur",
}
COLUMNS = {  # of a number: the head of its column, and how it is written
    "detections": ("found", "{}"),
    "confidence": ("confidence", "{:.3f}"),
    "std": ("edge std", "{:.2f} px"),
    "novelty": ("novelty", "{:.3f}"),
    "auroc_novelty": ("AUROC novelty", "{:.3f}"),
    "auroc_confidence": ("AUROC 1 - conf.", "{:.3f}"),
    "marked": ("marked novel", "{:.0%}"),
    "pictures_marked": ("pictures marked", "{:.0%}"),
}
ACROSS = 4  # pictures of the figure, of each group


@dataclass(frozen=True)
class DemoSize:
    """How many pictures are looked at in each style, and how many frames the film has."""

    pictures: int
    frames: int


FULL, QUICK = DemoSize(40, 48), DemoSize(6, 10)


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
    """Look, print a table, write `detection.png`, `flight.gif` and `results.json`; seeds choose pictures."""
    start = time.perf_counter()
    require_extras("The demo of detection", ["plots", "detection"])
    out.mkdir(parents=True, exist_ok=True)
    size = QUICK if quick else FULL
    console.print(
        f"The error bar was fitted on {PICTURES:,} pictures and calibrated on {HELD} others, and comes with "
        f"the package; to fit it again: {COMMAND}",
        highlight=False,
        soft_wrap=True,
    )
    seen, model, said = alone(lambda: _run(out, size, seed))
    groups = summarise(seen)
    assert model.alarm is not None
    threshold = float(model.alarm.threshold)
    draw_scenes(out / "detection.png", seen, threshold=threshold)
    title = "Detections: medians, AUROC against known things, shares above the threshold"
    named = {GROUPS[key]: group for key, group in groups.items()}
    console.print(result_table(title, "detections", COLUMNS, {"": named}))
    console.print(_told(groups, said), highlight=False, soft_wrap=True)
    console.print(f"Figure: {out / 'detection.png'}, film: {out / 'flight.gif'}\n", soft_wrap=True)
    results = {"seed": seed, "quick": quick, **asdict(size), "false_alarm": FALSE_ALARM}
    results |= {"groups": groups, "threshold": threshold, "model_bytes": model.nbytes}
    results["flight"] = [one.status for one in said]
    write_results(out, results, start, console)
    return 0


def _told(groups: dict[str, dict[str, float | None]], said: list[Verdict]) -> str:
    """What the numbers mean, in words."""

    def share(key: str) -> str:
        number, marked = groups[key]["detections"], groups[key]["marked"]
        return f"{round((number or 0) * (marked or 0))} of {number}"

    novel, blind = [one.frame for one in said if one.status == NOVEL], blind_frames(len(said))
    noticed = sum(frame in blind for frame in novel)
    return (
        f"Marked as novel: {share('novel')} detections on novel things, {share('known')} on known ones (the "
        f"threshold aims at {100 * FALSE_ALARM:.0f} % of these on average). In the film the monitor "
        f"calls {len(novel)} of {len(said)} frames novel, and {noticed} of the {len(blind)} in which the "
        "camera is blind."
    )


def _run(
    out: Path, size: DemoSize, seed: int
) -> tuple[dict[str, SeenPictures], DetectionModel, list[Verdict]]:
    model, seen = load_error_bar(), {}
    with reporting(enabled=True) as reporter:
        for key, style in STYLES.items():
            images, things = rendered(size.pictures, style, SEED + seed, reporter)
            parts = pixels(images).split(CHUNK)
            stage = reporter.track(parts, stage=f"looking: {GROUPS[key]}", total=len(parts))
            found = [one for part in stage for one in model.predict(part)]
            seen[key] = SeenPictures(images, found, counting(key, found, things))
    return seen, model, flight_gif(model, out / "flight.gif", frames=size.frames, progress=True)


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
    """Of each group: number, medians (edges in pixels), how two scores tell it from known things, and which
    share of its detections, and of its pictures, lies above the threshold."""
    familiar = {field: seen["known"].of(field) for field in ("novelty", "confidence")}
    groups = {}
    for key, one in seen.items():
        novelty, confidence, std = (one.of(field) for field in ("novelty", "confidence", "std"))
        medians = [float(v.median()) if v.numel() else None for v in (confidence, std, novelty)]
        areas: list[float | None] = [None, None]
        if key != "known" and len(novelty) and len(familiar["novelty"]):
            pairs = (familiar["novelty"], novelty), (1 - familiar["confidence"], 1 - confidence)
            areas = [round(float(auroc(*pair)), 4) for pair in pairs]
        marked = float(one.of("is_novel").mean()) if len(novelty) else None
        pictures = sum(found.picture_is_novel for found in one.found) / max(1, len(one.found))
        numbers = (len(novelty), *medians, *areas, marked, pictures)
        groups[key] = dict(zip(COLUMNS, numbers, strict=True))
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
    from matplotlib.colors import TwoSlopeNorm

    end = scale_end(threshold)
    scale = ScalarMappable(TwoSlopeNorm(threshold, 0, end), plots.colour_map())
    bar = drawn.colorbar(scale, ax=grid, shrink=0.5, aspect=28, pad=0.015)
    bar.outline.set_visible(False)
    bar.set_ticks([0, threshold, end], labels=["0", f"{threshold:.2f}", f"{end:.2f}"])
    bar.set_label("novelty; above the threshold, in the middle, things are marked as novel", fontsize=8)
