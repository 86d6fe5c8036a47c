"""Rows for the experts: the queries of pictures that count, what goes in, and what should come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics.boxes import corners
from .detector import Detector
from .matching import Things, match
from .settings import Detection

PICTURES = 32  # that go through the detector at a time


@dataclass(frozen=True)
class QueryRows:
    """Rows with known answers.

    Args:
        inputs: Of the tail, by name, [m, ...] each.
        errors: Its edges less the thing's, in pixels, [m, 4]; nan where the query has found nothing.
        labels: True classes, int64, [m]; the last one, "no object", where it has found nothing.
        kept: Whether it is sure enough to count as a detection, bool, [m].
    """

    inputs: dict[str, Tensor]
    errors: Tensor
    labels: Tensor
    kept: Tensor

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
    image, query = [], []
    for i, row in enumerate(best):
        order = row.argsort(descending=True, stable=True)[: settings.most]
        order = order[row[order] >= settings.threshold]
        image.append(torch.full_like(order, i))
        query.append(order)
    return torch.cat(image), torch.cat(query)


def known_rows(
    detector: Detector,
    names: Sequence[str],
    images: Tensor,
    things: Sequence[Things],
    settings: Detection,
) -> QueryRows:
    """Every query that has found a thing, and those that are kept although they have not.

    Args:
        detector: The first part.
        names: Of the tensors that differ from picture to picture.
        images: [n, channels, height, width].
        things: True ones, of each picture.
        settings: Threshold and overlap.
    """
    parts = []
    device = detector.place.device
    labels = detector.network.config.num_labels
    height, width = images.shape[2:]
    size = torch.tensor([width, height, width, height], dtype=torch.float32)
    for start in range(0, len(images), PICTURES):
        outputs = detector(images[start : start + PICTURES])
        chances = probabilities(outputs.logits, labels).cpu()
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
            kinds = torch.cat([true.labels[hit], torch.full_like(false, labels)])
            counts = torch.isin(every, mine)
            parts.append(QueryRows({k: v.cpu() for k, v in rows.items()}, errors, kinds, counts))
    joined = {name: torch.cat([part.inputs[name] for part in parts]) for name in parts[0].inputs}
    rest = (torch.cat([getattr(part, name) for part in parts]) for name in ("errors", "labels", "kept"))
    return QueryRows(joined, *rest)
