"""From a detector and pictures to its error bars."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..fit import fit
from ..likelihoods import Finding, Regression
from ..tangents.sketch import Sketch
from .matching import Things
from .model import DetectionModel
from .pictures import as_scenes
from .rows import QueryRows, known_rows
from .settings import Detection
from .splitting import AMONG, Detector

DIM = 1024  # of a sketch
LEAST = 20  # rows, to fit anything


def fit_detector(
    network: Any, train: Any, settings: Detection, *, validation: Any = None, **options: Any
) -> DetectionModel:
    """Error bars for the boxes and classes of a detector.

    Args:
        network: Trained, of the DETR family; left as it is.
        train: (images, things), a Dataset or a DataLoader; see `as_scenes`.
        settings: Which queries count, and how their tangents are made.
        validation: The same, of pictures that the detector has not seen.
        options: For `trustgp.fit`, of both error bars.
    """
    private = copy.deepcopy(network).eval()
    config = private.config
    images, things = as_scenes(train, channels=config.num_channels, labels=config.num_labels, name="train")
    held = None
    if validation is not None:
        held = as_scenes(
            validation, channels=config.num_channels, labels=config.num_labels, name="validation"
        )
        if held[0].shape[2:] != images.shape[2:]:
            raise ValueError(
                f"validation pictures are {tuple(held[0].shape[2:])}, train {tuple(images.shape[2:])}."
            )
    detector = Detector(private)
    device = next(private.parameters()).device
    probe = images[torch.tensor([0, len(images) // 2, len(images) - 1])].to(device)
    box_tail, class_tail = detector.tails(probe)
    names = tuple(name for name in detector(probe[:1]).entering if name not in box_tail.tail.alike)
    rows = _rows(detector, names, (images, things), settings, "train")
    known = None if held is None else _rows(detector, names, held, settings, "validation")
    options = {"outputs": settings.outputs, "witness": None, **options}
    edges = fit(
        box_tail,
        _edges(rows),
        likelihood=Regression(),
        validation=known and _edges(known),
        tangents=settings.tangents or _after_looking(box_tail),
        **options,
    )
    classes = fit(
        class_tail,
        (rows.inputs, rows.labels),
        likelihood=Finding(),
        validation=known and (known.inputs, known.labels),
        tangents=settings.tangents or _after_looking(class_tail),
        **options,
    )
    size = (int(images.shape[2]), int(images.shape[3]))
    return DetectionModel(private, edges, classes, names, size, settings)


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
