"""Rows for the error bar: the queries of pictures that count, what they have seen, and what is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..data.trees import concatenate
from ..math.calibration import check_share
from ..metrics.boxes import corners, generous_overlaps, overlaps
from ..metrics.selection import select_detections
from .adapter import Adapter, Detector, DetectorOutputs
from .things import Things

CLASS, DISTANCE, OVERLAP = 1.0, 5.0, 2.0  # what counts how much in a match, as DETR has it


@dataclass(frozen=True)
class Detection:
    """A detector: each picture gives a row for each query that is kept.

    Args:
        threshold: A query is kept when its surest class has at least this probability.
        overlap: A query has found a thing when their boxes overlap by this (intersection over union).
        most: Queries of a picture that are kept, at most: the surest.
        adapter: For a detector of one's own: where its queries see the picture, and more.
    """

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
    """Rows with known answers, and the pictures that they are of."""

    seen: Tensor  # by the query, [m, d]
    logits: Tensor  # of the classes and, last, of no object, [m, C + 1]
    picture: Tensor  # number of the picture, int64, [m]
    errors: Tensor  # its edges less the thing's, in pixels, [m, 4]; nan where the query has found nothing
    labels: Tensor  # true classes, int64, [m]; the last one, "no object", where it has found nothing
    kept: Tensor  # whether it is sure enough to count as a detection, bool, [m]
    pictures: Tensor  # what the queries of each picture have seen on average, [n, d]

    @classmethod
    def joined(cls, parts: Sequence[QueryRows]) -> QueryRows:
        """All of them."""
        names = [one.name for one in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    @property
    def kinds(self) -> Tensor:
        """The class that the detector says, int64, [m]."""
        return self.logits[:, :-1].argmax(dim=1)

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


def with_background(logits: Tensor, num_labels: int) -> Tensor:
    """With a logit for no object last: 0 where each class is a yes or no, which leaves its odds."""
    return torch.nn.functional.pad(logits, (0, 1)) if logits.shape[-1] == num_labels else logits


def kept(chances: Tensor, boxes: Tensor, settings: Detection) -> tuple[Tensor, Tensor]:
    """Picture and query of each detection, the surest of a picture first, int64, [m] each, from chances
    [n, Q, C] and boxes, centre and size, [n, Q, 4]."""
    best, kinds = chances.max(dim=2)
    limits = {"threshold": settings.threshold, "most": settings.most}
    return select_detections(best, kinds, corners(boxes), **limits, suppression=settings.adapter.suppression)


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
    detector: Detector, images: Tensor, things: Sequence[Things], settings: Detection, *, first: int = 0
) -> QueryRows:
    """Every query that has found a thing in some pictures, and those that are kept although they have not.
    The pictures are numbered from `first` on."""
    outputs, parts = detector(images), []
    height, width = images.shape[2:]
    size = torch.tensor([width, height, width, height], dtype=torch.float32)
    chances = probabilities(outputs.logits, detector.labels)
    picture, query = (part.cpu() for part in kept(chances, outputs.boxes, settings))
    chances, edges = chances.cpu(), corners(outputs.boxes).cpu() * size
    for i, true in enumerate(things):
        mine = query[picture == i]
        matched, shared = match(chances[i], edges[i], true, side=float(max(height, width)))
        hit = (shared >= settings.overlap) & (matched >= 0)
        false = mine[~torch.isin(mine, matched[hit])]
        every = torch.cat([matched[hit], false])
        off = (edges[i][matched[hit]] - true.boxes[hit]).float()
        errors = torch.cat([off, torch.full((len(false), 4), torch.nan)])
        kinds = torch.cat([true.labels[hit], torch.full_like(false, detector.labels)])
        parts.append((torch.full_like(every, i), every, errors, kinds, torch.isin(every, mine)))
    image, every, errors, kinds, counts = concatenate(parts)
    seen, logits = _of_queries(outputs, detector.labels, image, every)
    return QueryRows(seen, logits, image + first, errors, kinds, counts, outputs.seen.mean(dim=1).cpu())


def _of_queries(outputs: DetectorOutputs, labels: int, image: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """What some queries have seen [m, d], and their logits [m, C + 1], on the CPU."""
    place = image.to(outputs.logits.device), query.to(outputs.logits.device)
    return outputs.seen[place].cpu(), with_background(outputs.logits[place], labels).cpu()
