"""Rows for the error bar: queries of pictures, with their features and the targets that they match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..data.trees import concatenate
from ..math.calibration import check_share
from ..metrics.boxes import corners, generous_overlaps, overlaps, select_detections
from .adapter import Adapter, Detector
from .pictures import BoxTargets

CLASS_COST, DISTANCE_COST, OVERLAP_COST = 1.0, 5.0, 2.0  # weights of a match, as in DETR


@dataclass(frozen=True)
class Detection:
    """Settings of a fitted detector: see `trustgp.detection.fit`, whose options they are."""

    threshold: float = 0.5
    overlap: float = 0.5
    most: int = 100
    adapter: Adapter = Adapter()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold, 0.5)
        check_share("overlap", self.overlap, 0.5)
        if self.most < 1:
            raise ValueError(f"most={self.most}; at least one query must be kept.")
        if not isinstance(self.adapter, Adapter):
            raise ValueError(f"adapter={self.adapter!r}; trustgp.detection.Adapter(...) is needed.")


@dataclass(frozen=True)
class QueryRows:
    """Rows with labels, and the pictures that they are of."""

    features: Tensor  # of the query, [m, d]
    logits: Tensor  # of the classes and, last, of no object, [m, C + 1]
    picture: Tensor  # number of the picture, int64, [m]
    errors: Tensor  # its edges less the target's, in pixels, [m, 4]; nan where the query matches none
    labels: Tensor  # true classes, int64, [m]; the last one, "no object", where it matches none
    kept: Tensor  # whether it is confident enough to be a detection, bool, [m]
    pictures: Tensor  # mean features of all queries of each picture, [n, d]

    @classmethod
    def joined(cls, parts: Sequence[QueryRows]) -> QueryRows:
        """All of them."""
        return cls(*(torch.cat([getattr(part, one.name) for part in parts]) for one in fields(cls)))

    @property
    def predicted(self) -> Tensor:
        """The class that the detector predicts, int64, [m]."""
        return self.logits[:, :-1].argmax(dim=1)

    @property
    def matched(self) -> Tensor:
        """Indices of rows that match a target."""
        return torch.isfinite(self.errors).all(dim=1).nonzero().flatten()

    @property
    def one_class(self) -> Tensor:
        """The single class of pictures, int64, [n]."""
        return torch.zeros(len(self.pictures), dtype=torch.int64)


def probabilities(logits: Tensor, num_labels: int) -> Tensor:
    """Of the classes, without "no object", [n, Q, C]: a softmax where that has a logit, else sigmoids."""
    if logits.shape[-1] == num_labels:
        return logits.sigmoid()
    return logits.softmax(dim=-1)[..., :num_labels]


def with_background(logits: Tensor, num_labels: int) -> Tensor:
    """With a logit for no object last: 0 where classes are sigmoids, which leaves their odds."""
    return torch.nn.functional.pad(logits, (0, 1)) if logits.shape[-1] == num_labels else logits


def kept(chances: Tensor, boxes: Tensor, settings: Detection) -> tuple[Tensor, Tensor]:
    """Picture and query of each detection, the most confident of a picture first, int64, [m] each, from
    probabilities [n, Q, C] and boxes, centre and size, [n, Q, 4]."""
    best, labels = chances.max(dim=2)
    limits = {"threshold": settings.threshold, "most": settings.most}
    return select_detections(best, labels, corners(boxes), **limits, suppress=settings.adapter.suppression)


def match(probabilities: Tensor, boxes: Tensor, targets: BoxTargets, *, side: float) -> tuple[Tensor, Tensor]:
    """The query of each target [k], -1 where there are fewer, and the overlap of its box [k]: the Hungarian
    assignment by classes [Q, C] and boxes in pixels [Q, 4]. Distances are divided by the side of the picture.
    """
    from scipy.optimize import linear_sum_assignment  # half a second to import

    if len(targets.labels) == 0:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    boxes, probabilities = boxes.detach().cpu().double(), probabilities.detach().cpu().double()
    true = targets.boxes.cpu().double()
    cost = (
        -CLASS_COST * probabilities[:, targets.labels.cpu()]
        + DISTANCE_COST * torch.cdist(boxes, true, p=1) / side
        - OVERLAP_COST * generous_overlaps(boxes, true)
    )
    query, target = (torch.from_numpy(part) for part in linear_sum_assignment(cost.numpy()))
    matched, shared = torch.full((len(true),), -1), true.new_zeros(len(true))
    matched[target], shared[target] = query, overlaps(boxes, true)[query, target]
    return matched, shared


def labelled_rows(
    detector: Detector, images: Tensor, targets: Sequence[BoxTargets], settings: Detection, *, first: int = 0
) -> QueryRows:
    """Every query that matches a target, and the detections that match none; `first` is the index of the
    first picture."""
    outputs, parts = detector(images), []
    height, width = images.shape[2:]
    size = torch.tensor([width, height, width, height], dtype=torch.float32)
    chances = probabilities(outputs.logits, detector.labels)
    picture, query = (part.cpu() for part in kept(chances, outputs.boxes, settings))
    chances, edges = chances.cpu(), corners(outputs.boxes).cpu() * size
    for i, true in enumerate(targets):
        detected = query[picture == i]
        matched, shared = match(chances[i], edges[i], true, side=float(max(height, width)))
        hit = (shared >= settings.overlap) & (matched >= 0)
        false = detected[~torch.isin(detected, matched[hit])]
        every = torch.cat([matched[hit], false])
        off = (edges[i][matched[hit]] - true.boxes[hit]).float()
        errors = torch.cat([off, off.new_full((len(false), 4), torch.nan)])
        labels = torch.cat([true.labels[hit], torch.full_like(false, detector.labels)])
        parts.append((torch.full_like(every, i), every, errors, labels, torch.isin(every, detected)))
    image, every, errors, labels, counts = concatenate(parts)
    place = image.to(outputs.logits.device), every.to(outputs.logits.device)
    features, logits = outputs.features[place], with_background(outputs.logits[place], detector.labels)
    pictures = outputs.features.mean(dim=1)
    return QueryRows(features.cpu(), logits.cpu(), image + first, errors, labels, counts, pictures.cpu())
