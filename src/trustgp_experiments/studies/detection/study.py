"""`trustgp study detection`: a detector that knows when it does not know, as the paper's second task."""

from __future__ import annotations

from typing import Any

import torch

from trustgp.detection import Detection, DetectionModel, fit_detector
from trustgp.metrics.boxes import average_precision, corners
from trustgp.monitor.monitor import Monitor

from ...core.result import Figure, Result, Setting, provenance
from ...peers.softmax import likeliest_temperature
from ...training.detector_network import trained
from .figure import draw_histograms, draw_times
from .flight import flight_gif
from .peers import Found, find, last_layer_laplace
from .pictures import FAMILIAR, NOVEL, World, counted, make_cells, make_scenes
from .scores import hits, right, told_apart, told_by_all
from .tables import findings, tables
from .text import FLIGHT, HISTOGRAMS, PROTOCOL, RACCOONS, TIMES
from .timing import time_calls

TITLE = "Does a detector know when it does not know?"
LABELLED = (FAMILIAR, "flight")
FALSE_ALARM = 0.05  # of the monitor in the flight
SHOWN = 48  # frames


def run(setting: Setting) -> Result:
    """Both detectors, the times of one of them, and a flight."""
    seed = 0
    worlds = {"scenes": setting.once(f"scenes-{seed}", lambda: _scenes(setting, seed))}
    skipped = ""
    try:
        worlds["cells"] = setting.once("cells", lambda: one_world(make_cells(quick=setting.quick), seed))
    except FileNotFoundError as error:
        skipped = str(error)
    times = worlds["scenes"].pop("times")
    draw_histograms(worlds["scenes"]["told"], NOVEL, setting.out / "novel.png")
    draw_times(times, setting.out / "times.png")
    figures = [
        Figure("novel.png", "Familiar and novel things", HISTOGRAMS),
        Figure("times.png", "Times the detector", TIMES),
        Figure("flight.gif", "A flight", FLIGHT),
    ]
    if "cells" in worlds:
        draw_histograms(worlds["cells"]["told"], "raccoons", setting.out / "raccoons.png")
        figures.insert(1, Figure("raccoons.png", "Cells and raccoons", RACCOONS))
    return Result(
        study="detection",
        title=TITLE,
        protocol=[*PROTOCOL, *([f"Without cells: {skipped}"] if skipped else [])],
        tables=tables(worlds, times),
        figures=figures,
        findings=findings(worlds, times),
        numbers={"worlds": worlds, "times": times},
        provenance=provenance(setting, "detection", rows={n: w["sizes"] for n, w in worlds.items()}),
    )


def one_world(world: World, seed: int) -> dict[str, Any]:
    """Every method on every set of pictures; the seed is that of the fit."""
    return _studied(world, _fitted(world, seed))


def _fitted(world: World, seed: int) -> DetectionModel:
    network = trained(world.detector[0])
    pairs = [(part.images, part.things) for part in (world.fit, world.validation)]
    return fit_detector(network, pairs[0], Detection(), validation=pairs[1], seed=seed, progress=False)


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
    path = setting.out / "flight.gif"
    flight_gif(model, path, threshold=threshold, monitor=monitor, frames=frames)
    return {**studied, "times": times, "threshold": threshold}


def _studied(world: World, model: DetectionModel) -> dict[str, Any]:
    network, others = model.network, [trained(name) for name in world.detector[1:]]
    settings = model.settings
    known = find(network, [], world.fit, settings, passes=1)
    held = find(network, others, world.validation, settings)
    (_, labels), (_, held_labels) = hits(known), hits(held)
    temperature = likeliest_temperature(held.logits, held_labels)
    try:
        laplace = last_layer_laplace(network, known, labels, held, held_labels)
    except ImportError:
        laplace = None
    found = {name: find(network, others, part, settings) for name, part in world.tests.items()}
    methods = (temperature, laplace, model)
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
        "detected": {name: _detected(part) for name, part in found.items()},
        "sizes": {name: counted(part, world.classes) for name, part in sizes.items()},
        "megabytes": model.nbytes / 2**20,
    }


def _detected(found: Found) -> dict[str, float]:
    """How many detections there are, and in how many pictures there is none."""
    return {"detections": len(found.image), "empty": len(found.pictures) - len(found.image.unique())}


@torch.no_grad()
def _precision(model: DetectionModel, world: World) -> dict[str, float]:
    """AP50 of each class on familiar test pictures, all queries counted."""
    pictures = world.tests[FAMILIAR]
    size = torch.tensor([pictures.images.shape[3], pictures.images.shape[2]] * 2)
    boxes, scores = [], []
    for part in pictures.images.split(25):
        said = model.network(part)
        boxes += list(corners(said.pred_boxes) * size)
        scores += list(said.logits.sigmoid())
    found = {}
    for kind, name in enumerate(world.classes):
        true = [one.boxes[one.labels == kind] for one in pictures.things]
        found[name] = average_precision(boxes, [score[:, kind] for score in scores], true)
    return found
