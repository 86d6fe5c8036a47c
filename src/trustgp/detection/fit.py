"""From a detector and pictures to its error bars: one pass over the pictures, and sums of what was seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..data.user_warnings import warn_user
from ..executors.progress import Reporter, reporting
from ..experts.witness import Witness
from ..tangents.modules import clone_module, unwrap
from .adapter import Detector
from .calibration import ClassTemperature, EdgeNoise
from .model import DetectionModel
from .query_rows import PICTURES, Detection, QueryRows, known_rows
from .readout import Readout, SeenSums, added
from .scenes import as_scenes
from .state import DetectorState, novelty_of
from .things import Things

Scenes = tuple[Tensor, list[Things]]

LEAST = 20  # rows, to fit anything
TENTH = 10  # one picture of so many is held out where none are given
GROUPS = "pictures are held out as validation="
SINGLE = "a detector has one expert for each class, from sums over one pass"
REFUSED = {  # options of `trustgp.fit`, and why they say nothing here
    "unpack": "pictures are passed with their Things",
    "groups": GROUPS,
    "output": "what it returns is known",
    "outputs": SINGLE,
    "tangents": SINGLE,
    "num_experts": SINGLE,
    "patchwork": SINGLE,
    "division": SINGLE,
    "executor": SINGLE,
    "budget": "an error bar of a detector holds classes x d x d numbers, whatever it is fitted on",
    "memory": SINGLE,
    "checkpoint": SINGLE,
}


def fit_detector(network: Any, train: Any, settings: Detection, **given: Any) -> DetectionModel:
    """Error bars for the boxes and classes of a detector, left as it is: `trustgp.fit` with `Detection()`.

    What to train on is told in `as_scenes`. Of the options of `trustgp.fit`, `validation`, `device` and
    `progress` count; `validation` is like `train`, of pictures that the detector has not seen: the size of
    the error bars is fitted to them. None: every tenth training picture is kept for that.
    """
    validation, device, progress = _checked(given)
    private = clone_module(unwrap(network)).eval()
    detector = Detector(private if device is None else private.to(device), settings.adapter)
    scenes = as_scenes(train, detector, name="train")
    size = (int(scenes[0].shape[2]), int(scenes[0].shape[3]))
    if validation is not None:
        held = as_scenes(validation, detector, size=size, name="validation")
    else:
        scenes, held = _split(*scenes)
    try:
        detector(scenes[0][:2])
    except RuntimeError as error:
        said = f"the detector takes no pictures [channels, height, width] of {tuple(scenes[0].shape[1:])}"
        raise ValueError(f"{said}: {error}") from error
    with reporting(enabled=progress) as report:
        sums, pictures, found = _sums(detector, scenes, settings, report)
        _enough(found, settings, "train")
        _warn_of_classes(sums.count)
        told = QueryRows.joined(list(_rows(detector, held, settings, report, "held-out pictures")))
        _enough(len(told.found), settings, "the held-out pictures")
    return DetectionModel(_calibrated(detector, settings, (sums, pictures), told, size))


def _checked(given: dict[str, Any]) -> tuple[Any, Any, bool]:
    """Validation, device and progress; options that say nothing about detectors are refused."""
    given = dict(given)
    for name, reason in REFUSED.items():
        if given.pop(name, None) is not None:
            raise ValueError(f"{name}= is not for detectors: {reason}.")
    if given.pop("witness", None) not in (None, Witness()):
        raise ValueError("witness= is not for detectors: it takes vectors; leave it out.")
    given.pop("seed", None)  # nothing is drawn
    given.pop("strict", None)  # nor can an expert fail
    validation, device, progress = (given.pop(name, None) for name in ("validation", "device", "progress"))
    if given:
        raise TypeError(f"trustgp.fit has no option {min(given)!r}.")
    return validation, device, progress is not False


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


def _rows(
    detector: Detector, scenes: Scenes, settings: Detection, report: Reporter, stage: str
) -> Iterator[QueryRows]:
    """Of some pictures at a time."""
    images, things = scenes
    starts = range(0, len(images), PICTURES)
    for start in report.track(starts, stage=stage, total=len(starts)):
        some = slice(start, start + PICTURES)
        yield known_rows(detector, images[some], things[some], settings, first=start)


def _sums(
    detector: Detector, scenes: Scenes, settings: Detection, report: Reporter
) -> tuple[SeenSums, SeenSums, int]:
    """Of what was seen by queries that have found a thing, and in pictures; and how many queries."""
    queries, pictures = [], []
    for rows in _rows(detector, scenes, settings, report, "training pictures"):
        queries.append(SeenSums.of(rows.seen[rows.found], rows.kinds[rows.found], detector.labels))
        pictures.append(SeenSums.of(rows.pictures, torch.zeros(len(rows.pictures), dtype=torch.int64), 1))
        queries, pictures = [added(queries)], [added(pictures)]
    return queries[0], pictures[0], int(queries[0].count.sum())


def _enough(found: int, settings: Detection, name: str) -> None:
    if found < LEAST:
        raise ValueError(
            f"in {name} the detector finds {found} of the things, at least {LEAST} are needed: "
            f"more pictures, a lower overlap (now {settings.overlap}), or a better detector."
        )


def _warn_of_classes(count: Tensor) -> None:
    """Of classes that were never found; they are judged by what all have in common."""
    none = (count == 0).nonzero().flatten().tolist()
    if none:
        names = ", ".join(map(str, none[:5])) + (" ..." if len(none) > 5 else "")
        warn_user(f"{len(none)} of {len(count)} classes have no training row ({names}).")


def _calibrated(
    detector: Detector,
    settings: Detection,
    sums: tuple[SeenSums, SeenSums],
    told: QueryRows,
    size: tuple[int, int],
) -> DetectorState:
    """What is known of classes and pictures, and how sure that makes held-out detections."""
    found, alone = told.found, torch.zeros(len(told.pictures), dtype=torch.int64)
    readout = Readout.fit(sums[0], told.seen[found], told.kinds[found])
    pictures = Readout.fit(sums[1], told.pictures, alone)
    unknown, whole = readout(told.seen, told.kinds), pictures(told.pictures, alone)
    temperature = ClassTemperature.fit(told.logits, unknown, told.labels)
    edges = EdgeNoise.fit(told.errors[found], unknown[found], whole[told.picture[found]])
    return DetectorState(
        detector.network,
        readout,
        pictures,
        temperature,
        edges,
        names=detector.names,
        size=size,
        rows=int(sums[0].count.sum()),
        settings=settings,
        held_scores=novelty_of(unknown[told.sure]),
        held_pictures=novelty_of(whole),
    )
