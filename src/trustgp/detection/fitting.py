"""From a detector and pictures to its error bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..budget import parse_budget
from ..fit import fit
from ..likelihoods import Finding, Regression
from ..tangents.copying import bare, duplicate
from ..tangents.sketch import Sketch
from ..witness import Witness
from .matching import Things
from .model import DetectionModel
from .pictures import as_scenes
from .rows import QueryRows, known_rows
from .settings import Detection
from .splitting import BoxTail, ClassTail, Detector

DIM = 1024  # of a sketch
AMONG = "self_attn"  # in the names of weights with which queries look at each other
LEAST = 20  # rows, to fit anything
REFUSED = {  # options of `trustgp.fit`, and why
    "groups": "pictures are held out as validation=",
    "output": "what it returns is known",
    "outputs": "say it in Detection(outputs=...)",
    "tangents": "say it in Detection(tangents=...)",
}


def fit_detector(
    network: Any, train: Any, settings: Detection, *, validation: Any = None, **options: Any
) -> DetectionModel:
    """Error bars for the boxes and classes of a detector: what `trustgp.fit` does with `Detection()`.

    Args:
        network: Trained, of the DETR family; left as it is.
        train: (images, things), a Dataset or a DataLoader; see `as_scenes`.
        settings: Which queries count, and how their tangents are made.
        validation: The same, of pictures that the detector has not seen.
        options: Of `trustgp.fit`, for both error bars: each gets half of `budget`, and a folder of its own in
            `checkpoint`.
    """
    device, ways = _shared(options)
    Detector(bare(network))
    detector = Detector(duplicate(bare(network)).eval().to(device))
    known = {"channels": detector.channels, "labels": detector.network.config.num_labels}
    images, things = as_scenes(train, **known, name="train")
    size = (int(images.shape[2]), int(images.shape[3]))
    held = None if validation is None else as_scenes(validation, **known, size=size, name="validation")
    box_tail, class_tail = _tails(detector, images)
    maps = [_tangents(settings, tail, (box_tail, class_tail)) for tail in (box_tail, class_tail)]
    entering = detector(images[:1]).entering
    names = tuple(name for name in entering if name not in box_tail.tail.alike)
    rows = _rows(detector, names, (images, things), settings, "train")
    told = None if held is None else _rows(detector, names, held, settings, "validation")
    edges = fit(
        box_tail,
        _edges(rows),
        likelihood=Regression(),
        validation=told and _edges(told),
        tangents=maps[0],
        outputs=settings.outputs,
        **ways["edges"],
    )
    classes = fit(
        class_tail,
        (rows.inputs, rows.labels),
        likelihood=Finding(),
        validation=told and (told.inputs, told.labels),
        tangents=maps[1],
        outputs=settings.outputs,
        **ways["classes"],
    )
    edges.memory = classes.memory = None  # rows to add to, each with all that the detector saw
    scores = None if told is None else told.scores_of_found(classes.held_scores)
    return DetectionModel(detector.network, edges, classes, names, size, settings, scores)


def _shared(options: dict[str, Any]) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Where to work, and the options of each fit; those that say nothing about detectors are refused."""
    options = dict(options)
    for name, reason in REFUSED.items():
        if options.pop(name, None) is not None:
            raise ValueError(f"{name}= is not for detectors: {reason}.")
    if options.pop("witness", None) not in (None, Witness()):
        raise ValueError("witness= is not for detectors: it takes vectors; leave it out.")
    budget = parse_budget(options.pop("budget", None), name="budget")
    if budget.seconds is not None:
        raise ValueError(f"budget={budget}; for detectors it is a size only, such as '64 MiB'.")
    half = None if budget.size is None else max(1, budget.size // 2)
    folder, device = options.pop("checkpoint", None), options.pop("device", None)
    both = {"budget": half, "witness": None, **options}
    places = {part: None if folder is None else Path(folder) / part for part in ("edges", "classes")}
    return device, {part: {"checkpoint": place, **both} for part, place in places.items()}


def _tails(detector: Detector, images: Tensor) -> tuple[BoxTail, ClassTail]:
    """Found on a few pictures; a detector that cannot take them is an error that says so."""
    probe = images[torch.tensor([0, len(images) // 2, len(images) - 1])]
    try:
        return detector.tails(probe)
    except RuntimeError as error:
        raise ValueError(
            f"the detector takes no pictures [channels, height, width] of {tuple(images.shape[1:])}: {error}"
        ) from error


def _tangents(settings: Detection, tail: nn.Module, tails: Sequence[nn.Module]) -> Sketch:
    """Of the parameters that were named, as far as this tail has them; those of none are refused."""
    tangents = settings.tangents
    if tangents is None:
        return _after_looking(tail)
    if isinstance(tangents.parameters, str):
        return tangents
    there = [name for one in tails for name, _ in one.named_parameters()]
    unknown = [name for name in tangents.parameters if name not in there]
    mine = tuple(name for name in tangents.parameters if name in dict(tail.named_parameters()))
    if unknown or not mine:
        what = (
            f"'{unknown[0]}' is no parameter" if unknown else f"none is a parameter of {type(tail).__name__}"
        )
        raise ValueError(f"Detection(tangents=...): {what}; there are {', '.join(dict.fromkeys(there))}.")
    return replace(tangents, parameters=mine)


def _after_looking(tail: nn.Module) -> Sketch:
    """Of all weights but those with which queries look at each other."""
    names = [name for name, _ in tail.named_parameters() if AMONG not in name]
    return Sketch(DIM, parameters=tuple(names))


def _rows(
    detector: Detector,
    names: tuple[str, ...],
    pictures: tuple[Tensor, list[Things]],
    settings: Detection,
    name: str,
) -> QueryRows:
    rows = known_rows(detector, names, *pictures, settings)
    if len(rows.found) < LEAST:
        raise ValueError(
            f"in {name} the detector finds {len(rows.found)} of the things, at least {LEAST} are needed: "
            f"more pictures, a lower overlap (now {settings.overlap}), or a better detector."
        )
    return rows


def _edges(rows: QueryRows) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs and true edges of the rows that have found a thing."""
    return {name: value[rows.found] for name, value in rows.inputs.items()}, rows.boxes[rows.found]
