"""`trustgp study detection`: a detector that knows when it does not know, and a film of a flight with it."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from trustgp import plots
from trustgp.data.atomic_file import atomic_file
from trustgp.detection import Detection, DetectionModel, Detections, fit_detector
from trustgp.monitor.monitor import INVALID, OK, UNCERTAIN, Monitor, Verdict
from trustgp.monitor.monitor import NOVEL as NOVEL_FRAME
from trustgp.plots.boxes import CALM, MIDDLE, ink_on, shade_of

from ...core.result import Figure, Result, Setting, provenance
from ...datasets.scenes import CLASSES, flight
from ...peers.tuning import likeliest_temperature
from ...training.detector_network import class_precisions, pixels, trained
from .peers import (
    FAMILIAR,
    NOVEL,
    FeatureScores,
    World,
    counted,
    find,
    last_layer_laplace,
    make_cells,
    make_scenes,
)
from .scores import LATENT, OURS, findings, hits, right, tables, time_calls, told_apart, told_by_all

COLOURS = 40  # of the pictures; those of verdicts and of novelty come on top
SOFT = 0.6  # pixels by which a picture is smoothed: noise is what makes a film large
VERDICTS = {OK: CALM, UNCERTAIN: MIDDLE, NOVEL_FRAME: plots.RED, INVALID: plots.GREY}


def flight_gif(
    model: DetectionModel,
    path: Path,
    *,
    threshold: float,
    monitor: Callable[[Tensor], Verdict],
    frames: int = 60,
    fps: float = 8.0,
) -> list[Verdict]:
    """Writes a GIF of a flight: boxes coloured by novelty, the verdict, and the novelty so far.

    Returns what the monitor said of each frame, of which it is given a picture as the detector takes it,
    [3, h, w]. The threshold of colours and of the line in the trace need not be the monitor's own.
    """
    if frames < 2 or not fps > 0:
        raise ValueError(f"frames={frames}, fps={fps}; at least 2 frames are needed, and fps above 0.")
    said, trace, film = [], [], []
    with torch.no_grad():
        for image in flight(frames, side=model.size[0]).images:
            given = pixels(image[None])[0]
            (found,) = model.predict(given)
            said.append(monitor(given))
            trace.append(found.summary["novelty"])
            film.append(draw_frame(image, found, said[-1].status, trace, frames=frames, threshold=threshold))
    _write_gif(film, path, fps)
    return said


def draw_frame(
    image: Tensor, found: Detections, status: str, trace: Sequence[float], *, frames: int, threshold: float
) -> Image.Image:
    """A picture, uint8 [3, side, side], with its detections; above it the verdict, below the novelty so far.

    The trace holds the largest novelty of each of the `frames` pictures up to this one; it is drawn up to
    three times the threshold, and what is higher stands at the top.
    """
    smooth = Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).filter(ImageFilter.GaussianBlur(SOFT))
    told, stream = np.clip(trace, 0.0, 3 * threshold), BytesIO()
    with plots.figure(None, width=3.0, height=3.9) as drawn:
        picture, strip = drawn.subplots(2, 1, height_ratios=(5, 1))
        strip.axhline(threshold, color=plots.GREY, linestyle="--", linewidth=1.0)
        strip.plot(told, color=plots.INK)
        last = plots.colour_of(trace[-1], threshold)
        strip.plot(len(told) - 1, told[-1], "o", color=last, markeredgecolor=plots.INK, clip_on=False)
        strip.set(xlim=(0, frames - 1), ylim=(0, 3 * threshold), xticks=[], yticks=[])
        strip.set_title("novelty; dashed: the threshold", fontsize=7)
        colour = VERDICTS[status]
        style = {"color": ink_on(shade_of(colour)), "backgroundcolor": colour}
        drawn.suptitle(f"{status}, frame {len(trace)} of {frames}", fontsize=10, **style)
        plots.detections(np.array(smooth), found, names=CLASSES, threshold=threshold, axes=picture)
        drawn.savefig(stream, dpi=100)
    return Image.open(stream).convert("RGB")


def _write_gif(film: Sequence[Image.Image], path: Path, fps: float) -> None:
    """One palette for all frames, and no dithering, which would look like noise."""
    sheet = Image.fromarray(np.concatenate([np.asarray(frame) for frame in film[:: max(1, len(film) // 8)]]))
    colours = (sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT).getpalette() or [])[: 3 * COLOURS]
    # however small what has them
    fixed = [*map(shade_of, VERDICTS.values()), *(plots.colour_of(k / 8) for k in range(9))]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*colours, *(round(255 * part) for shade in fixed for part in shade)])
    flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    options = {"duration": round(1000 / fps), "loop": 0, "optimize": True}
    with atomic_file(path, named=True) as made:
        flat[0].save(made, save_all=True, append_images=flat[1:], **options)


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
    "blur) and on 500 with a thing that was never trained on (a crate, an antenna, a tyre, a drone, a flag, "
    "a habitat: on none of them was a method tried before), and on 500 with a rock, an astronaut or a "
    "second type of rover, with which choices were made. Cells: BCCD's train, val and test pictures, and "
    "all 200 raccoons. The seeds of validation and test pictures are their own.",
    "A detection is a query whose surest class has a probability of 0.5 at least; all methods are "
    "asked about the same detections, those of the one detector, and all of them are scored. It lies "
    "on a novel thing when their boxes overlap by 0.3, more than with any other thing; it has found a "
    "thing when they overlap by 0.5.",
    "Methods: the softmax of the logits, 0 for no object; one temperature, of the validation "
    "detections; 20 passes with dropout 0.1 in the decoder, as it was trained; laplace-torch's last "
    "layer (Kronecker, probit), its prior chosen on validation; three detectors from other starts "
    "(all trained for 380 s, the other two with a pause after 150), matched by overlap; by what the head is "
    "given, Mahalanobis' distance to the nearest class, the angle to the fifth nearest training "
    "detection, and the energy of the logits; and trustgp as it comes. "
    "Variance of logits over passes and members: of log odds against no object, the mean over "
    "classes. FPR95: share of foreign detections at or below the score that 95 % of the familiar "
    "ones do not exceed.",
    "D-ECE: gap between the probability of the detector's class and the share of detections that are "
    "right, over 10 bins. Edges: errors in pixels, Student's t. One seed. Choices of the method (what a "
    "query has seen, a covariance for each class, powers of it in the scale of the edges) were made on "
    "other pictures (seeds 31 and 41, 250 of each style), whose novel things and flights were looked at.",
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
        worlds["cells"] = setting.once("cells", lambda: _cells(setting))
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


def _cells(setting: Setting) -> dict[str, Any]:
    world = make_cells(quick=setting.quick)
    return _studied(world, _fitted(world))


def _scenes(setting: Setting, seed: int) -> dict[str, Any]:
    """With times and a flight."""
    world = make_scenes(seed=seed, many=setting.sized(5000, 24), some=setting.sized(500, 24))
    model = _fitted(world)
    studied = _studied(world, model)
    others = [trained(name) for name in world.detector[1:]]
    times = time_calls(model, others, world.tests[FAMILIAR].images[:20], quick=setting.quick)
    threshold = model.threshold(false_alarm=FALSE_ALARM)
    monitor = Monitor(model.watch(), std=8.0, patience=3)
    film = {"monitor": monitor, "frames": setting.sized(SHOWN, 6)}
    flight_gif(model, setting.out / "flight.gif", threshold=threshold, **film)
    return {**studied, "times": times, "threshold": threshold}


def _fitted(world: World) -> DetectionModel:
    pairs = [(part.images, part.things) for part in (world.fit, world.validation)]
    network, options = trained(world.detector[0]), {"progress": False}
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
    features = FeatureScores.fit(known, labels)
    methods = (likeliest_temperature(held.logits, held_labels), laplace, model, features)
    found = {name: find(network, others, part, settings) for name, part in world.tests.items()}
    answers, before = {n: told_by_all(f, *methods) for n, f in found.items()}, told_by_all(held, *methods)
    sizes = {"fit": world.fit, "validation": world.validation, **world.tests}
    judged, detected = {}, {}
    for name, f in found.items():
        if name in LABELLED:
            judged[f"{world.detector[0]}, {name}"] = right(answers[name], before, f, held)
        # how many, and in how many pictures there is none
        detected[name] = {"detections": len(f.image), "empty": len(f.pictures) - len(f.image.unique())}
    return {
        "told": told_apart(answers, found),
        "right": judged,
        "ap50": _precision(model, world),
        "detected": detected,
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
        axes, values = figure.subplots(), [times[name]["over"] for name in names]
        bars = axes.barh(names, values, color=[plots.BLUE if OURS in n else plots.ORANGE for n in names])
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("times the detector alone, one picture, one thread")
        axes.margins(x=0.12)
