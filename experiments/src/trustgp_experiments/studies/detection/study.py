"""`trustgp study detection`: a detector that knows when it does not know, and a film of a flight with it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trustgp import plots
from trustgp.detection import DetectionModel
from trustgp.detection import fit as fit_detector
from trustgp.detection.picture_pass import MAX_VARIED

from ...core.flight_film import flight_gif
from ...core.result import Figure, Result, Setting, Table, provenance
from ...peers.tuning import likeliest_temperature
from ...training.detector_network import class_precisions, trained
from .bootstrap import merged
from .costs import OWN, time_calls
from .peers import PASSES, FeatureScores, find, last_layer_laplace
from .scores import LATENT, OURS, Judged, Methods, edge_noises, hits, right, told_apart, told_by_all
from .tables import findings, tables
from .worlds import FAMILIAR, NOVEL, World, counted, make_cells, make_scenes

LABELLED = (FAMILIAR, "flight")
FALSE_ALARM = 0.05  # of the monitor in the flight
SHOWN = 48  # frames
DRAWN = ("softmax", "MC-dropout 20", "ensemble of 3", "Mahalanobis", "DDU", OURS)
PROTOCOL = [
    "Detectors: Conditional DETR on an EfficientNet, 1.9 million weights, from nothing, on one H200 "
    "(`trustgp_experiments.training.detector`, logs in `results/detection/training`): three for rendered "
    "scenes of 128 pixels with a rover and a lander, 14,000 pictures, from other starts, each trained for"
    " 380 s (two of them with a pause after 150); and one for BCCD's 205 training pictures of blood cells"
    " at 192 x 144 pixels.",
    "Scenes: seeds judge the three detectors in turn, with the others as the members of the ensemble, on "
    "pictures of their own. The error bar is fitted to 5,000 of the training pictures, a quarter of the "
    "others further on for each seed, and calibrated on 500 others of the same style (carry); tested on "
    "500 more, on 500 in flight (higher, a low sun, haze, motion blur) and on 500 with a thing that was "
    "never trained on (a crate, an antenna, a tyre, a drone, a flag, a habitat: on none of them was a "
    "method tried before, but for quick runs on 24 pictures at most), and on 500 with a rock, an "
    "astronaut or a second type of rover, with which choices were made. Cells: BCCD's train, val and test "
    "pictures, and all 200 raccoons, one seed. The seeds of validation and test pictures are their own. "
    "Those of the first three seeds and the cells were scored once before, with 1,000 of the third's 5,000 "
    "pictures to fit from beyond the training pictures and with no temperature for Laplace; nothing was "
    "changed but that.",
    "A detection is a query whose surest class has a probability of 0.5 at least; all methods are asked "
    "about the same detections, those of the one detector, and all of them are scored. It lies on a novel"
    " thing when their boxes overlap by 0.3, more than with any other thing; it has found a thing when "
    "they overlap by 0.5.",
    "Methods: the softmax of the logits, 0 for no object; one temperature, of the validation detections; "
    "the energy of the logits; one pass of the detector and 20 of its decoder with dropout 0.1, as it was"
    " trained; three detectors, matched by overlap; laplace-torch's last layer (Kronecker, probit), its "
    "prior and temperature chosen on validation; by what the class head is given: Mahalanobis' distance "
    "to the nearest class with one covariance, the angle to the fifth nearest training detection, and the "
    "density under a Gaussian of each class (DDU; the network is not trained for it); the same three on "
    "what trustgp looks at, to show what comes of the features and what of the method; and trustgp as it "
    "comes. Variance of logits over passes and members: of log odds against no object, the mean over "
    "classes. FPR95: share of foreign detections at or below the score that 95 % of the familiar ones do not "
    "exceed.",
    "D-ECE: gap between the probability of the detector's class and the share of detections that are "
    "right, over 10 bins. Edges: errors in pixels, Student's t; every method learns its scale from the "
    "validation pictures and from the same in four other lights, as trustgp does. Intervals: 95 %, by "
    "drawing pictures anew 400 times, the same ones for all methods. Choices of the method (what a query "
    "has seen, a covariance for each class, powers in the scale of the edges, the four lights) were made "
    "on other pictures (seeds 31 and 41, 250 of each style), whose novel things and flights were looked "
    "at.",
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
        "A rendered flight with the monitor's verdict on each frame; for a while the camera is blind. Boxes "
        "are coloured by novelty, what is novel is dashed, and the strip below shows the score over time.",
    ),
]


def run(setting: Setting) -> Result:
    """All detectors, the times of one of them, and a flight."""
    skipped, out = "", setting.out
    parts = [setting.once(f"scenes-{k}", lambda k=k: _scenes(setting, k)) for k in range(setting.seeds)]
    times, threshold = (parts[0][name] for name in ("times", "threshold"))
    worlds = {"scenes": merged([{k: v for k, v in part.items() if k != "times"} for part in parts])}
    if setting.quick:
        skipped = "a quick run has none."
    else:
        try:
            worlds["cells"] = merged([setting.once("cells", lambda: _cells(setting))])
        except FileNotFoundError as error:
            skipped = str(error)
    worlds["scenes"]["threshold"] = threshold
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


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables and findings."""
    return tables(**numbers), findings(**numbers)


def _cells(setting: Setting) -> dict[str, Any]:
    world = make_cells()
    return _studied(world, _fitted(world, setting.device), seed=0)


def _scenes(setting: Setting, seed: int) -> dict[str, Any]:
    """With times and a flight, of the first."""
    sizes = {"many": setting.sized(5000, 24), "some": setting.sized(500, 16)}
    world = make_scenes(seed=seed, jobs=setting.jobs, **sizes)
    model = _fitted(world, setting.device)
    few = setting.sized({}, {"changed": 3, "passes": 3})
    studied = {**_studied(world, model, seed=seed, **few), "times": None, "threshold": None}
    if seed == 0:
        networks = [trained(name) for name in world.detector]
        own = DetectionModel(replace(model.state, network=networks[0]))  # on the CPU, where it is timed
        shown = world.tests[FAMILIAR].images[:20]
        studied["times"] = time_calls(own, networks[1:], shown, quick=setting.quick)
        studied["threshold"] = own.threshold(false_alarm=FALSE_ALARM)
        flight_gif(own, setting.out / "flight.gif", frames=setting.sized(SHOWN, 6))
    return studied


def _fitted(world: World, device: str) -> DetectionModel:
    pairs = [(part.images, part.things) for part in (world.fit, world.validation)]
    options = {"progress": False, "device": device, "validation": pairs[1]}
    return fit_detector(trained(world.detector[0]), pairs[0], **options)


def _studied(
    world: World, model: DetectionModel, *, seed: int, changed: int = MAX_VARIED, passes: int = PASSES
) -> dict[str, Any]:
    """Every method on every set of pictures; so many of validation are also seen in another light."""
    network, settings = model.network, model.settings
    others = [trained(name).to(network.device) for name in world.detector[1:]]
    known = find(network, [], world.fit, settings, passes=1)
    parts = world.validation, world.photometric_variants(changed)
    held, lit = (find(network, others, part, settings, passes=passes) for part in parts)
    (_, labels), (_, held_labels) = hits(known), hits(held)
    try:
        laplace = last_layer_laplace(network, known, labels, held, held_labels)
    except ImportError:
        laplace = None
    features, seen = (FeatureScores.fit(f, labels, len(world.classes)) for f in (known.hidden, known.seen))
    methods = Methods(likeliest_temperature(held.logits, held_labels), laplace, model, features, seen)
    before, other = (Judged(found, told_by_all(found, methods)) for found in (held, lit))
    noises = edge_noises(before, other)
    tested = world.tests.items()
    found = {name: find(network, others, part, settings, passes=passes) for name, part in tested}
    answers = {name: told_by_all(one, methods) for name, one in found.items()}
    sizes = {"fit": world.fit, "validation": world.validation, **world.tests}
    judged, detected = {}, {}
    for name, one in found.items():
        if name in LABELLED:
            test = Judged(one, answers[name])
            judged[f"{world.name}, {name}"] = right(test, noises, seed=seed)
        # how many, and in how many pictures there is none
        detected[name] = {"detections": len(one.image), "empty": len(one.pictures) - len(one.image.unique())}
    return {
        "told": told_apart(answers, found, seed=seed),
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
    methods = [method for method in DRAWN if method in told]
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
                axes.set_title(f"{method}\nAUROC {numbers['auroc']['mean']:.3f}", fontsize=8)
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
        bars = axes.barh(names, values, color=[plots.BLUE if n == OWN else plots.ORANGE for n in names])
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("times the detector alone, one picture, one thread")
        axes.margins(x=0.12)
