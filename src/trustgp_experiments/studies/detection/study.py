"""`trustgp study detection`: a detector that knows when it does not know, as the paper's second task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trustgp import plots
from trustgp.detection import Detection, DetectionModel, fit_detector
from trustgp.monitor.monitor import Monitor

from ...core.result import Figure, Result, Setting, provenance
from ...peers.tuning import likeliest_temperature
from ...training.detector_network import class_precisions, trained
from .flight import flight_gif
from .peers import FAMILIAR, NOVEL, World, counted, find, last_layer_laplace, make_cells, make_scenes
from .scores import LATENT, OURS, findings, hits, right, tables, time_calls, told_apart, told_by_all

LABELLED = (FAMILIAR, "flight")
FALSE_ALARM = 0.05  # of the monitor in the flight
SHOWN = 48  # frames
PROTOCOL = [
    "Detectors: Conditional DETR on an EfficientNet, 1.9 million weights, from nothing, on one H200 "
    "(`trustgp_experiments.training.detector`, logs in `results/detection/training`): "
    "for rendered scenes of 128 pixels with a rover and a "
    "lander, 14,000 pictures, and for BCCD's 205 training pictures of blood cells at 192 x 144 "
    "pixels.",
    "Scenes: the error bar is fitted to 5,000 of the training pictures and calibrated on 500 others "
    "of the same style (carry); tested on 500 more, on 500 in flight (higher, a low sun, haze, motion "
    "blur) and on 500 with a thing that was never trained on (a structured rock, an astronaut, a "
    "second type of rover). Cells: BCCD's train, val and test pictures, and all 200 raccoons. The "
    "seeds of validation and test pictures are their own.",
    "A detection is a query whose surest class has a probability of 0.5 at least; all methods are "
    "asked about the same detections, those of the one detector, and all of them are scored. It lies "
    "on a novel thing when their boxes overlap by 0.3, more than with any other thing; it has found a "
    "thing when they overlap by 0.5.",
    "Methods: the softmax of the logits, 0 for no object; one temperature, of the validation "
    "detections; 20 passes with dropout 0.1 in the decoder, as it was trained; laplace-torch's last "
    "layer (Kronecker, probit), its prior chosen on validation; three detectors from other starts "
    "(the other two trained for 150 s, not 380), matched by overlap; and trustgp as it comes. "
    "Variance of logits over passes and members: of log odds against no object, the mean over "
    "classes. FPR95: familiar detections above the score that 95 % of the foreign exceed.",
    "D-ECE: gap between the probability of the detector's class and the share of detections that are "
    "right, over 10 bins. Edges: normal errors in pixels. One seed. Choices of the method (the kernel "
    "of the log odds, which weights, the novelty as a share of the prior variance) were made on other "
    "pictures (seed 3, 300 of each style), whose novel things and flights were looked at.",
]
FIGURES = [
    Figure(
        "novel.png",
        "Familiar and novel things",
        "Above the entropy of the probabilities, below the latent variance. Blue: detections on familiar "
        "test pictures. Orange: detections that lie on a novel thing. The less they overlap, the better.",
    ),
    Figure(
        "raccoons.png",
        "Cells and raccoons",
        "The same for the detector of cells: its detections on test pictures, and on pictures of raccoons.",
    ),
    Figure(
        "times.png",
        "Times the detector",
        "Times of one call over the detector's own, interleaved, in torch eager or as a recorded graph.",
    ),
    Figure(
        "flight.gif",
        "A flight",
        "A rendered flight with the monitor's verdict on each frame. Boxes are coloured by novelty, and "
        "the strip below shows it over time.",
    ),
]


def run(setting: Setting) -> Result:
    """Both detectors, the times of one of them, and a flight."""
    seed, skipped, out = 0, "", setting.out
    worlds = {"scenes": setting.once(f"scenes-{seed}", lambda: _scenes(setting, seed))}
    try:
        worlds["cells"] = setting.once("cells", lambda: _cells(setting, seed))
    except FileNotFoundError as error:
        skipped = str(error)
    times = worlds["scenes"].pop("times")
    for name, test, file in (("scenes", NOVEL, "novel.png"), ("cells", "raccoons", "raccoons.png")):
        if name in worlds:
            draw_histograms(worlds[name]["told"], test, out / file)
    draw_times(times, out / "times.png")
    return Result(
        study="detection",
        title="Does a detector know when it does not know?",
        protocol=[*PROTOCOL, *([f"Without cells: {skipped}"] if skipped else [])],
        tables=tables(worlds, times),
        figures=[one for one in FIGURES if "cells" in worlds or one.file != "raccoons.png"],
        findings=findings(worlds, times),
        numbers={"worlds": worlds, "times": times},
        provenance=provenance(setting, "detection", rows={n: w["sizes"] for n, w in worlds.items()}),
    )


def _cells(setting: Setting, seed: int) -> dict[str, Any]:
    world = make_cells(quick=setting.quick)
    return _studied(world, _fitted(world, seed))


def _scenes(setting: Setting, seed: int) -> dict[str, Any]:
    """With times and a flight."""
    many, some = (24, 24) if setting.quick else (5000, 500)
    world = make_scenes(seed=seed, many=many, some=some)
    model = _fitted(world, seed)
    studied = _studied(world, model)
    others = [trained(name) for name in world.detector[1:]]
    times = time_calls(model, others, world.tests[FAMILIAR].images[:20], quick=setting.quick)
    threshold = model.threshold(false_alarm=FALSE_ALARM)
    monitor = Monitor(model.watch(), threshold, std=8.0, patience=3)
    frames = 6 if setting.quick else SHOWN
    flight_gif(model, setting.out / "flight.gif", threshold=threshold, monitor=monitor, frames=frames)
    return {**studied, "times": times, "threshold": threshold}


def _fitted(world: World, seed: int) -> DetectionModel:
    pairs = [(part.images, part.things) for part in (world.fit, world.validation)]
    network, options = trained(world.detector[0]), {"seed": seed, "progress": False}
    return fit_detector(network, pairs[0], Detection(), validation=pairs[1], **options)


def _studied(world: World, model: DetectionModel) -> dict[str, Any]:
    """Every method on every set of pictures."""
    network, settings = model.network, model.settings
    others = [trained(name) for name in world.detector[1:]]
    known = find(network, [], world.fit, settings, passes=1)
    held = find(network, others, world.validation, settings)
    (_, labels), (_, held_labels) = hits(known), hits(held)
    try:
        laplace = last_layer_laplace(network, known, labels, held, held_labels)
    except ImportError:
        laplace = None
    methods = (likeliest_temperature(held.logits, held_labels), laplace, model)
    found = {name: find(network, others, part, settings) for name, part in world.tests.items()}
    answers, before = {n: told_by_all(f, *methods) for n, f in found.items()}, told_by_all(held, *methods)
    sizes = {"fit": world.fit, "validation": world.validation, **world.tests}
    return {
        "told": told_apart(answers, found),
        "right": {
            f"{world.detector[0]}, {name}": right(answers[name], before, found[name], held)
            for name in LABELLED
            if name in world.tests
        },
        "ap50": _precision(model, world),
        "detected": {  # how many, and in how many pictures there is none
            name: {"detections": len(f.image), "empty": len(f.pictures) - len(f.image.unique())}
            for name, f in found.items()
        },
        "sizes": {name: counted(part, world.classes) for name, part in sizes.items()},
        "megabytes": model.nbytes / 2**20,
    }


def _precision(model: DetectionModel, world: World) -> dict[str, float]:
    """AP50 of each class on familiar test pictures."""
    pictures = world.tests[FAMILIAR]
    boxes, labels = ([getattr(one, part) for one in pictures.things] for part in ("boxes", "labels"))
    found = class_precisions(model.network, pictures.images, boxes, labels, batch=25)
    return dict(zip(world.classes, found, strict=True))


def draw_histograms(told: Mapping[str, Any], test: str, path: Path) -> None:
    """Scores of familiar and of foreign detections, by method: the entropy, and below the latent variance."""
    methods = list(told)
    with plots.figure(path, width=2.0 * len(methods) + 0.8, height=4.6) as figure:
        grid = figure.subplots(2, len(methods), squeeze=False)
        for row, score in zip(grid, ("entropy", LATENT), strict=True):
            for axes, method in zip(row, methods, strict=True):
                if score not in told[method][test]:
                    axes.set_axis_off()
                    continue
                numbers = told[method][test][score]
                bars = numbers["bars"]
                for side, colour, name in (("in", plots.BLUE, "familiar"), ("out", plots.ORANGE, test)):
                    axes.stairs(bars[side], bars["edges"], fill=True, alpha=0.6, color=colour, label=name)
                axes.set_title(f"{method}\nAUROC {numbers['auroc']:.3f}", fontsize=8)
                axes.set_yticks([])
                axes.tick_params(labelsize=6)
                axes.set_xlabel("entropy, nats" if score == "entropy" else score, fontsize=7)
            row[0].set_ylabel("share of detections")
        grid[0][0].legend(fontsize=7)


def draw_times(times: Mapping[str, Any], path: Path) -> None:
    """Bars: how many times the detector a call takes, as `time_calls` found it."""
    names = sorted(times, key=lambda name: times[name]["over"])
    with plots.figure(path, width=6.4, height=0.45 * len(names) + 1.0) as figure:
        axes = figure.subplots()
        values = [times[name]["over"] for name in names]
        colours = [plots.BLUE if OURS in name else plots.ORANGE for name in names]
        bars = axes.barh(names, values, color=colours)
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("times the detector alone, one picture, one thread")
        axes.margins(x=0.12)
