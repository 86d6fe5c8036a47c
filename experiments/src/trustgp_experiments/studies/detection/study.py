"""`trustgp study detection`: does a detector recognise novel objects?"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trustgp import plots
from trustgp.detection import DetectionModel
from trustgp.detection import fit as fit_detector
from trustgp.detection.picture_pass import MAX_VARIED

from ...core.result import Figure, Result, Setting, commit, make_result, note, prose
from ...peers.tuning import likeliest_temperature
from ...training.detector_network import trained
from .bootstrap import merged
from .costs import time_calls
from .peers import PASSES, FeatureScores, find, last_layer_laplace, member_temperature, tuned_rate
from .scores import LATENT, OURS, Judged, Methods, all_answers, calibration, edge_noises, hits, separation
from .tables import summarise
from .worlds import FAMILIAR, NOVEL, World, counted, make_cells, make_scenes

LABELLED = (FAMILIAR, "flight")
DRAWN_TESTS = {NOVEL: "novel.png", "flight": "flights.png"}
DRAWN = ("softmax", "MC-dropout 20", "ensemble of 3", "Mahalanobis", "DDU", OURS)
TITLE = "Does a detector know when it does not know?"
HISTOGRAMS = note(__name__, "Histograms")


def run(setting: Setting) -> Result:
    """Score every method on all detectors, and time the calls of one of them."""
    skipped = "a quick run has none." if setting.quick else ""
    parts = [setting.once(f"scenes-{k}", lambda k=k: _scenes(setting, k)) for k in range(setting.seeds)]
    scores = [{key: value for key, value in part.items() if key != "times"} for part in parts]
    worlds = {"scenes": merged(scores)}
    if not setting.quick:
        try:
            worlds["cells"] = merged([setting.once("cells", lambda: _cells(setting))])
        except FileNotFoundError as error:
            skipped = str(error)
    figures = []
    for test, file in DRAWN_TESTS.items():
        draw_histograms(worlds["scenes"]["told"], test, setting.out / file, commit())
        figures.append(Figure(file, f"Familiar pictures and {test}", HISTOGRAMS))
    protocol = prose(__name__, skipped=skipped)
    numbers = {"worlds": worlds, "times": parts[0]["times"]}
    rows = {name: world["sizes"] for name, world in worlds.items()}
    result = make_result(setting, "detection", TITLE, protocol, numbers, summarise, rows=rows)
    return replace(result, figures=figures)


def _cells(setting: Setting) -> dict[str, Any]:
    world = make_cells()
    return _scored(world, _fitted(world, setting.device), seed=0)


def _scenes(setting: Setting, seed: int) -> dict[str, Any]:
    """Scores on the scenes of a seed; the first seed also has times."""
    fitted, validated, tested = setting.sized((5000, 500, 500), (24, 16, 8))
    sizes = {"fitted": fitted, "validated": validated, "tested": tested}
    world = make_scenes(seed=seed, jobs=setting.jobs, **sizes)
    model = _fitted(world, setting.device)
    few = setting.sized({}, {"variants": 3, "passes": 3})
    scores = {**_scored(world, model, seed=seed, **few), "times": None}
    if seed == 0:
        networks = [trained(name) for name in world.detector]
        own = DetectionModel(replace(model.state, network=networks[0]))  # on the CPU, where it is timed
        images = world.tests[FAMILIAR].images[:20]
        scores["times"] = time_calls(own, networks[1:], images, quick=setting.quick)
    return scores


def _fitted(world: World, device: str) -> DetectionModel:
    pairs = [(part.images, part.things) for part in (world.fit, world.validation)]
    options = {"progress": False, "device": device, "validation": pairs[1]}
    return fit_detector(trained(world.detector[0]), pairs[0], **options)


def _scored(
    world: World, model: DetectionModel, *, seed: int, variants: int = MAX_VARIED, passes: int = PASSES
) -> dict[str, Any]:
    """Scores of every method on every set of pictures; `variants` validation pictures are also varied."""
    network, settings = model.network, model.settings
    others = [trained(name).to(network.device) for name in world.detector[1:]]
    train = find(network, [], world.fit, settings, passes=1)
    parts = world.validation, world.photometric_variants(variants)
    plain = find(network, [], world.validation, settings, passes=1)
    (_, labels), (_, validation_labels) = hits(train), hits(plain)
    rate = tuned_rate(network, world.validation, settings, validation_labels, passes)
    options: dict[str, Any] = {"passes": passes, "rate": rate}
    validation, varied = (find(network, others, part, settings, **options) for part in parts)
    laplace = last_layer_laplace(network, train, labels, validation, validation_labels)
    pairs = (train.hidden, validation.hidden), (train.seen, validation.seen)
    given = ((own, labels, len(world.classes), held, validation_labels) for own, held in pairs)
    features, seen = (FeatureScores.fit(*one) for one in given)
    temperature = likeliest_temperature(validation.logits, validation_labels)
    passed = member_temperature(validation.passes[0], validation_labels)
    members = member_temperature(validation.members[0], validation_labels)
    methods = Methods(temperature, passed, members, laplace, model, features, seen)
    noises = edge_noises(*(Judged(one, all_answers(one, methods)) for one in (validation, varied)))
    tests = world.tests.items()
    detected = {name: find(network, others, part, settings, **options) for name, part in tests}
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
        "rate": rate,
    }


def draw_histograms(told: Mapping[str, Any], test: str, path: Path, made_by: str | None) -> None:
    """Draw histograms of the scores of familiar and foreign detections by method: the entropy, and below it
    the latent variance. The commit of the code that made them is in the corner."""
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
        if made_by:
            figure.text(0.005, 0.005, f"commit {made_by[:10]}", fontsize=5, color=plots.GREY)
