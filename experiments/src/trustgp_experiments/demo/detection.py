"""`trustgp demo --detection`: a detector meets views and objects that it was never trained on."""

import time
from pathlib import Path

from rich.console import Console

from trustgp import plots
from trustgp.monitor.monitor import NOVEL, Monitor

from ..core.registry import require_extras
from ..datasets.scenes import CLASSES, Scenes, scenes
from ..training.detector_error_bar import COMMAND, HELD_OUT, PICTURES, load_error_bar
from ..training.detector_network import pixels
from .run import write_results

COLUMNS, QUICK_COLUMNS = 5, 2  # pictures of each kind
SEED = 100  # of the first pictures: detector and error bar have seen others
DARK = "through a dark lens"
STYLES = {"as in training": "carry", "from high up, haze": "flight", "an object of another type": "novel"}
STD = 8.0  # pixels, from which the monitor calls edges uncertain


def run_detection(out: Path, *, seed: int = 0, quick: bool = False, console: Console) -> int:
    """Write `detection.png` and `results.json`, and print what the monitor calls novel."""
    start = time.perf_counter()
    require_extras("The demo of detection", ["plots", "detection"])
    out.mkdir(parents=True, exist_ok=True)
    fitted = f"The error bar was fitted on {PICTURES:,} pictures and calibrated on {HELD_OUT} others."
    console.print(f"{fitted} To fit it again: {COMMAND}", highlight=False, soft_wrap=True)
    kinds, figure = _kinds(QUICK_COLUMNS if quick else COLUMNS, SEED + seed), out / "detection.png"
    verdicts = _draw(kinds, figure)
    for kind, statuses in verdicts.items():
        novel = f"The monitor calls {statuses.count(NOVEL)} of {len(statuses)} pictures novel"
        console.print(f"{novel}: {kind}.", highlight=False, soft_wrap=True)
    console.print(f"Figure: {figure}", highlight=False, soft_wrap=True)
    write_results(out, {"seed": seed, "quick": quick, "verdicts": verdicts}, start, console)
    return 0


def _kinds(columns: int, seed: int) -> dict[str, Scenes]:
    """Pictures by kind, `columns` of each."""
    kinds = {words: scenes(columns, style, seed=seed) for words, style in STYLES.items()}
    usual = kinds["as in training"]
    return {**kinds, DARK: Scenes(usual.images // 16, usual.boxes, usual.labels)}


def _draw(kinds: dict[str, Scenes], path: Path) -> dict[str, list[str]]:
    """Draw a row of pictures with detections for each kind; return the monitor's verdicts by kind."""
    runner = load_error_bar().watch()
    monitor = Monitor(runner, std=STD, leave=1.0, patience=1)  # each picture by itself
    columns, verdicts = len(kinds[DARK]), {kind: [] for kind in kinds}
    with plots.figure(path, width=2.4 * columns, height=2.7 * len(kinds)) as figure:
        panels = figure.subplots(len(kinds), columns)
        for row, (kind, pictures) in zip(panels, kinds.items(), strict=True):
            for axes, image in zip(row, pictures.images, strict=True):
                verdict = monitor(pixels(image[None])[0])
                verdicts[kind].append(verdict.status)
                plots.detections(image, runner.detections[0], names=CLASSES, axes=axes, title=verdict.status)
            row[0].set_ylabel(kind)
    return verdicts
