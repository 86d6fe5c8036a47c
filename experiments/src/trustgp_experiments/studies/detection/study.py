"""`trustgp study detection`: does a detector recognise novel objects? With a film of a flight."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trustgp import plots
from trustgp.detection import DetectionModel
from trustgp.detection import fit as fit_detector
from trustgp.detection.picture_pass import MAX_VARIED

from ...core.flight_film import flight_gif
from ...core.result import Figure, Result, Setting, make_result
from ...peers.tuning import likeliest_temperature
from ...training.detector_network import trained
from .bootstrap import merged
from .costs import time_calls
from .peers import PASSES, FeatureScores, find, last_layer_laplace
from .scores import LATENT, OURS, Judged, Methods, all_answers, calibration, edge_noises, hits, separation
from .tables import summarise
from .worlds import FAMILIAR, NOVEL, World, counted, make_cells, make_scenes

LABELLED = (FAMILIAR, "flight")
FALSE_ALARM = 0.05  # of the monitor in the flight
FRAMES = 48
DRAWN = ("softmax", "MC-dropout 20", "ensemble of 3", "Mahalanobis", "DDU", OURS)
TITLE = "Does a detector know when it does not know?"
PROTOCOL = [
    "Detectors: Conditional DETR on an EfficientNet, 1.9 million weights, from nothing, on one H200 "
    "(`trustgp_experiments.training.detector`, logs in `results/detection/training`): three for rendered "
    "scenes of 128 pixels with a rover and a lander, 14,000 pictures, from other starts, each trained for "
    "380 s (two of them with a pause after 150); and one for BCCD's 205 training pictures of blood cells at "
    "192 x 144 pixels.",
    "Scenes: seeds judge the three detectors in turn, with the others as the members of the ensemble, on "
    "pictures of their own. The error bar is fitted to 5,000 of the training pictures, a quarter of the "
    "others further on for each seed, and calibrated on 500 others of the same style (carry); tested on 500 "
    "more, on 500 in flight (higher, a low sun, haze, motion blur) and on 500 with an object that was never "
    "trained on (a crate, an antenna, a tyre, a drone, a flag, a habitat: no method was tried on them "
    "before, but for quick runs on 24 pictures at most), and on 500 with a rock, an astronaut or a second "
    "type of rover, with which choices were made. Cells: BCCD's train, val and test pictures, and all 200 "
    "raccoons, one seed. Validation and test pictures have seeds of their own.",
    "A detection is a query whose surest class has a probability of 0.5 at least; all methods are scored on "
    "the same detections, all those of the one detector. It lies on a novel object when their boxes overlap "
    "by 0.3, more than with any other object; it has detected an object when they overlap by 0.5.",
    "Methods: the softmax of the logits, 0 for no object; one temperature, of the validation detections; the "
    "energy of the logits; one pass of the detector and 20 of its decoder with dropout 0.1, as it was "
    "trained; three detectors, matched by overlap; laplace-torch's last layer (Kronecker, probit), its prior "
    "and temperature chosen on validation; by the inputs of the class head: Mahalanobis' distance to the "
    "nearest class with one covariance, the angle to the fifth nearest training detection, and the density "
    "under a Gaussian of each class (DDU; the network is not trained for it); the same three on the features "
    "of trustgp, to separate features and method; and trustgp with its defaults. Variance of logits over "
    "passes and members: of log odds against no object, the mean over classes. FPR95: share of foreign "
    "detections at or below the score that 95 % of the familiar ones do not exceed.",
    "D-ECE: gap between the probability of the detector's class and the share of correct detections, over 10 "
    "bins. Edges: errors in pixels, Student's t; every method fits its scale to the validation pictures and "
    "to four photometric variants of each, as trustgp does. Intervals: 95 %, by drawing pictures anew 400 "
    "times, the same ones for all methods. Choices of the method (features of a query, a covariance for each "
    "class, powers in the scale of the edges, the four variants) were made on other pictures (seeds 31 and "
    "41, 250 of each style), with their novel objects and flights.",
]
HISTOGRAMS = (
    "Above the entropy of the probabilities, below the latent variance. Blue: detections on familiar test "
    "pictures. Orange: foreign detections. The less they overlap, the better."
)
FILM = (
    "A rendered flight with the monitor's verdict on each frame; for a while the camera is blind. Boxes are "
    "coloured by novelty, novel ones are dashed, and the strip below shows the score over time."
)


def run(setting: Setting) -> Result:
    """All detectors, the times of one of them, and a flight."""
    skipped = "a quick run has none." if setting.quick else ""
    parts = [setting.once(f"scenes-{k}", lambda k=k: _scenes(setting, k)) for k in range(setting.seeds)]
    scores = [{key: value for key, value in part.items() if key != "times"} for part in parts]
    worlds, shown = {"scenes": merged(scores)}, [("scenes", NOVEL, "novel.png")]
    if not setting.quick:
        try:
            worlds["cells"] = merged([setting.once("cells", lambda: _cells(setting))])
            shown.append(("cells", "raccoons", "raccoons.png"))
        except FileNotFoundError as error:
            skipped = str(error)
    for name, test, file in shown:
        draw_histograms(worlds[name]["told"], test, setting.out / file)
    figures = [Figure(file, f"Familiar pictures and {test}", HISTOGRAMS) for _, test, file in shown]
    figures.append(Figure("flight.gif", "A flight", FILM))
    protocol = [*PROTOCOL, *([f"Without cells: {skipped}"] if skipped else [])]
    numbers = {"worlds": worlds, "times": parts[0]["times"]}
    rows = {name: world["sizes"] for name, world in worlds.items()}
    return make_result(setting, "detection", TITLE, protocol, numbers, summarise(numbers), figures, rows=rows)


def _cells(setting: Setting) -> dict[str, Any]:
    world = make_cells()
    return _scored(world, _fitted(world, setting.device), seed=0)


def _scenes(setting: Setting, seed: int) -> dict[str, Any]:
    """With times and a flight, of the first seed."""
    world = make_scenes(
        seed=seed, jobs=setting.jobs, fitted=setting.sized(5000, 24), tested=setting.sized(500, 16)
    )
    model = _fitted(world, setting.device)
    few = setting.sized({}, {"variants": 3, "passes": 3})
    scores = {**_scored(world, model, seed=seed, **few), "times": None, "threshold": None}
    if seed == 0:
        networks = [trained(name) for name in world.detector]
        own = DetectionModel(replace(model.state, network=networks[0]))  # on the CPU, where it is timed
        images = world.tests[FAMILIAR].images[:20]
        scores["times"] = time_calls(own, networks[1:], images, quick=setting.quick)
        scores["threshold"] = own.threshold(false_alarm=FALSE_ALARM)
        flight_gif(own, setting.out / "flight.gif", frames=setting.sized(FRAMES, 6))
    return scores


def _fitted(world: World, device: str) -> DetectionModel:
    pairs = [(part.images, part.things) for part in (world.fit, world.validation)]
    options = {"progress": False, "device": device, "validation": pairs[1]}
    return fit_detector(trained(world.detector[0]), pairs[0], **options)


def _scored(
    world: World, model: DetectionModel, *, seed: int, variants: int = MAX_VARIED, passes: int = PASSES
) -> dict[str, Any]:
    """Every method on every set of pictures; so many validation pictures also have photometric variants."""
    network, settings = model.network, model.settings
    others = [trained(name).to(network.device) for name in world.detector[1:]]
    train = find(network, [], world.fit, settings, passes=1)
    parts = world.validation, world.photometric_variants(variants)
    validation, varied = (find(network, others, part, settings, passes=passes) for part in parts)
    (_, labels), (_, validation_labels) = hits(train), hits(validation)
    try:
        laplace = last_layer_laplace(network, train, labels, validation, validation_labels)
    except ImportError:
        laplace = None
    features, seen = (FeatureScores.fit(f, labels, len(world.classes)) for f in (train.hidden, train.seen))
    temperature = likeliest_temperature(validation.logits, validation_labels)
    methods = Methods(temperature, laplace, model, features, seen)
    noises = edge_noises(
        *(Judged(detected, all_answers(detected, methods)) for detected in (validation, varied))
    )
    tests = world.tests.items()
    detected = {name: find(network, others, part, settings, passes=passes) for name, part in tests}
    answers = {name: all_answers(one, methods) for name, one in detected.items()}
    sets = {"fit": world.fit, "validation": world.validation, **world.tests}
    return {
        "told": separation(answers, detected, seed=seed),
        "right": {
            f"{world.name}, {name}": calibration(Judged(detected[name], answers[name]), noises, seed=seed)
            for name in LABELLED
            if name in detected
        },
        "sizes": {name: counted(part, world.classes) for name, part in sets.items()},
        "megabytes": model.nbytes / 2**20,
    }


def draw_histograms(told: Mapping[str, Any], test: str, path: Path) -> None:
    """Scores of familiar and of foreign detections, by method: the entropy, and below the latent variance."""
    methods = [method for method in DRAWN if method in told]
    with plots.figure(path, width=2.0 * len(methods) + 0.8, height=4.6) as figure:
        panels = figure.subplots(2, len(methods), squeeze=False)
        for row, score in zip(panels, ("entropy", LATENT), strict=True):
            for axes, method in zip(row, methods, strict=True):
                if score not in told[method][test]:
                    axes.set_axis_off()
                    continue
                numbers = told[method][test][score]
                for side, colour, name in (("in", plots.BLUE, FAMILIAR), ("out", plots.ORANGE, test)):
                    bars = numbers["bars"][side], numbers["bars"]["edges"]
                    axes.stairs(*bars, fill=True, alpha=0.6, color=colour, label=name)
                axes.set_title(f"{method}\nAUROC {numbers['auroc']['mean']:.3f}", fontsize=8)
                axes.set_yticks([])
                axes.tick_params(labelsize=6)
                axes.set_xlabel(score, fontsize=7)
            row[0].set_ylabel("share of detections")
        panels[0][0].legend(fontsize=7)
