"""From a detector and pictures to its error bars."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.quantities import parse_budget
from ..data.user_warnings import warn_user
from ..experts.witness import Witness
from ..fitting.options import FitOptions
from ..fitting.pipeline import fit_model
from ..likelihoods import Finding
from ..model import UncertaintyModel
from ..tangents.modules import clone_module, unwrap
from ..tangents.sketch import Sketch
from .detector import AMONG, Detector
from .model import DetectionModel
from .query_rows import Detection, QueryRows, known_rows
from .scenes import Things, as_scenes
from .state import DetectorState, Edges

Scenes = tuple[Tensor, list[Things]]

DIM = 1024  # of a sketch
LEAST = 20  # rows, to fit anything
TENTH = 10  # one picture of so many is held out where none are given
REFUSED = {  # options of `trustgp.fit`, and why
    "unpack": "pictures are passed with their Things",
    "groups": "pictures are held out as validation=",
    "output": "what it returns is known",
    "outputs": "say it in Detection(outputs=...)",
    "tangents": "say it in Detection(tangents=...)",
}


def fit_detector(network: Any, train: Any, settings: Detection, **given: Any) -> DetectionModel:
    """Error bars for the boxes and classes of a detector, left as it is: `trustgp.fit` with `Detection()`.

    What to train on is told in `as_scenes`. The options are those of `trustgp.fit`; `validation` is like
    `train`, of pictures that the detector has not seen: the size of the error bars is fitted to them. None:
    every tenth training picture is kept from the experts for that.
    """
    options = _checked(settings, given)
    Detector(unwrap(network))
    detector = Detector(clone_module(unwrap(network)).eval().to(options.device), whole=settings.whole)
    scenes = as_scenes(train, detector, name="train")
    size = (int(scenes[0].shape[2]), int(scenes[0].shape[3]))
    if options.validation is not None:
        held = as_scenes(options.validation, detector, size=size, name="validation")
    else:
        scenes, held = _split(*scenes)
    probe = scenes[0][[0, len(scenes[0]) // 2, len(scenes[0]) - 1]]  # a few pictures
    try:
        tail = detector.tail(probe)
    except RuntimeError as error:
        said = f"the detector takes no pictures [channels, height, width] of {tuple(probe.shape[1:])}"
        raise ValueError(f"{said}: {error}") from error
    tangents = _tangents(settings, tail)
    names = tuple(name for name in detector(scenes[0][:1]).entering if name not in tail.tail.alike)
    rows = _rows(detector, names, scenes, settings, "train")
    told = _rows(detector, names, held, settings, "the held-out pictures")
    options = replace(options, tangents=tangents, validation=(told.inputs, told.labels), device=None)
    finding = fit_model(tail, (rows.inputs, rows.labels), options)
    finding = replace(finding, training=None)  # rows to add to, each with all that the detector saw
    edges = Edges.fit(told.errors[told.found], finding.held_scores[told.found])
    scores = finding.held_scores[told.sure].double()
    state = DetectorState(detector.network, UncertaintyModel(finding), edges, names, size, settings, scores)
    return DetectionModel(state)


def _checked(settings: Detection, given: dict[str, Any]) -> FitOptions:
    """The options of the fit; those that say nothing about detectors are refused."""
    given = dict(given)
    for name, reason in REFUSED.items():
        if given.pop(name, None) is not None:
            raise ValueError(f"{name}= is not for detectors: {reason}.")
    if given.pop("witness", None) not in (None, Witness()):
        raise ValueError("witness= is not for detectors: it takes vectors; leave it out.")
    budget = parse_budget(given.get("budget"), name="budget")
    if budget.seconds is not None:
        raise ValueError(f"budget={budget}; for detectors it is a size only, such as '64 MiB'.")
    return FitOptions.parse(likelihood=Finding(), outputs=settings.outputs, **given)


def _split(images: Tensor, things: list[Things]) -> tuple[Scenes, Scenes]:
    """Pictures for the experts, and every tenth one to calibrate on."""
    number = torch.arange(len(images)) % TENTH == TENTH - 1
    if not bool(number.any()):
        raise ValueError(
            f"{len(images)} pictures are too few to hold some out; pass validation=, or {TENTH} pictures."
        )
    warn_user(
        f"{int(number.sum())} of the {len(images)} training pictures are kept from the experts, to fit the "
        "size of the error bars; pass validation=, pictures that the detector has not seen, for honest ones."
    )
    parts = [[i for i, tenth in enumerate(number.tolist()) if tenth is held] for held in (False, True)]
    rest, tenth = ((images[part], [things[i] for i in part]) for part in parts)
    return rest, tenth


def _tangents(settings: Detection, tail: nn.Module) -> Sketch:
    """Of the parameters that were named, or of all but those with which queries look at each other."""
    there, tangents = dict(tail.named_parameters()), settings.tangents
    if tangents is None:
        own = tuple(name for name in there if AMONG not in name)
        return Sketch() if settings.whole else Sketch(DIM, parameters=own)
    unknown = [] if isinstance(tangents.parameters, str) else set(tangents.parameters) - there.keys()
    if unknown:
        known = ", ".join(there)
        raise ValueError(f"Detection(tangents=...): '{min(unknown)}' is no parameter; there are {known}.")
    return tangents


def _rows(
    detector: Detector, names: tuple[str, ...], scenes: Scenes, settings: Detection, name: str
) -> QueryRows:
    rows = known_rows(detector, names, *scenes, settings)
    if len(rows.found) < LEAST:
        raise ValueError(
            f"in {name} the detector finds {len(rows.found)} of the things, at least {LEAST} are needed: "
            f"more pictures, a lower overlap (now {settings.overlap}), or a better detector."
        )
    return rows
