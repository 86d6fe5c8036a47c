"""Rows for the experts: the queries of pictures that count, what goes in, and what should come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.trees import concatenate
from ..math.calibration import check_share
from ..metrics.boxes import corners, generous_overlaps, overlaps
from ..tangents.sketch import Sketch
from .detector import Detector
from .scenes import Things

PICTURES = 32  # that go through the detector at a time
CLASS, DISTANCE, OVERLAP = 1.0, 5.0, 2.0  # what counts how much in a match, as DETR has it


@dataclass(frozen=True)
class Detection:
    """A detector of the DETR family: each picture gives a row for each query that is kept.

    Args:
        threshold: A query is kept when its surest class has at least this probability.
        overlap: A query has found a thing when their boxes overlap by this (intersection over union).
        most: Queries of a picture that are kept, at most: the surest.
        tangents: Of the decoder's last layer and the heads. None: a sketch of what comes after the queries
            have looked at each other, which says nothing about the picture.
        outputs: "pseudo", "shared" or "separate".
        whole: Whether `tangents` may be of all parameters of the detector; None then stands for a sketch of
            all of them. Each detection takes a pass through the whole detector and back.
    """

    threshold: float = 0.5
    overlap: float = 0.5
    most: int = 100
    tangents: Sketch | None = None
    outputs: str = "pseudo"
    whole: bool = False

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold, 0.5)
        check_share("overlap", self.overlap, 0.5)
        if self.most < 1:
            raise ValueError(f"most={self.most}; at least one query must be kept.")


@dataclass(frozen=True)
class QueryRows:
    """Rows with known answers."""

    inputs: dict[str, Tensor]  # of the tail, by name, [m, ...] each
    errors: Tensor  # its edges less the thing's, in pixels, [m, 4]; nan where the query has found nothing
    labels: Tensor  # true classes, int64, [m]; the last one, "no object", where it has found nothing
    kept: Tensor  # whether it is sure enough to count as a detection, bool, [m]

    @property
    def found(self) -> Tensor:
        """Which rows belong to a thing, by index."""
        return torch.isfinite(self.errors).all(dim=1).nonzero().flatten()

    @property
    def sure(self) -> Tensor:
        """Which of them are detections, too, by index."""
        return (torch.isfinite(self.errors).all(dim=1) & self.kept).nonzero().flatten()


def probabilities(logits: Tensor, num_labels: int) -> Tensor:
    """Of the classes, without "no object", [n, Q, C]: a softmax where that has a logit, or yes and no."""
    if logits.shape[-1] == num_labels:
        return logits.sigmoid()
    return logits.softmax(dim=-1)[..., :num_labels]


def kept(chances: Tensor, settings: Detection) -> tuple[Tensor, Tensor]:
    """Picture and query of each detection, the surest of a picture first, int64, [m] each."""
    best = chances.amax(dim=2)
    order = best.argsort(dim=1, descending=True, stable=True)[:, : settings.most]
    image, place = (best.gather(1, order) >= settings.threshold).nonzero(as_tuple=True)
    return image, order[image, place]


def match(probabilities: Tensor, boxes: Tensor, things: Things, *, side: float) -> tuple[Tensor, Tensor]:
    """The query of each thing [k], -1 where there are fewer, and the overlap of its box [k]. The assignment
    costs least (Hungarian), by classes [Q, C] and boxes in pixels [Q, 4]; distances are divided by the side
    of the picture."""
    from scipy.optimize import linear_sum_assignment  # half a second to import

    if len(things.labels) == 0:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    boxes, probabilities = boxes.detach().cpu().double(), probabilities.detach().cpu().double()
    true = things.boxes.cpu().double()
    cost = (
        -CLASS * probabilities[:, things.labels.cpu()]
        + DISTANCE * torch.cdist(boxes, true, p=1) / side
        - OVERLAP * generous_overlaps(boxes, true)
    )
    query, thing = (torch.from_numpy(part) for part in linear_sum_assignment(cost.numpy()))
    matched, shared = torch.full((len(true),), -1), true.new_zeros(len(true))
    matched[thing], shared[thing] = query, overlaps(boxes, true)[query, thing]
    return matched, shared


def known_rows(
    detector: Detector, names: Sequence[str], images: Tensor, things: Sequence[Things], settings: Detection
) -> QueryRows:
    """Every query that has found a thing in pictures, and those that are kept although they have not. `names`
    are those of the tensors that enter the tail and differ from picture to picture."""
    parts, device, (height, width) = [], detector.place.device, images.shape[2:]
    size = torch.tensor([width, height, width, height], dtype=torch.float32)
    for start in range(0, len(images), PICTURES):
        outputs = detector(images[start : start + PICTURES])
        chances = probabilities(outputs.logits, detector.labels).cpu()
        edges = corners(outputs.boxes).cpu() * size
        picture, query = kept(chances, settings)
        for i, true in enumerate(things[start : start + PICTURES]):
            mine = query[picture == i]
            matched, shared = match(chances[i], edges[i], true, side=float(max(height, width)))
            hit = (shared >= settings.overlap) & (matched >= 0)
            false = mine[~torch.isin(mine, matched[hit])]
            every = torch.cat([matched[hit], false])
            rows = outputs.rows(names, torch.full_like(every, i).to(device), every.to(device))
            off = (edges[i][matched[hit]] - true.boxes[hit]).float()
            errors = torch.cat([off, torch.full((len(false), 4), torch.nan)])
            kinds = torch.cat([true.labels[hit], torch.full_like(false, detector.labels)])
            counts = torch.isin(every, mine)
            parts.append(({k: v.cpu() for k, v in rows.items()}, errors, kinds, counts))
    return QueryRows(*concatenate(parts))
