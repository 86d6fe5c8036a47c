"""Which of a detector's queries are detections: confident, few enough, none of them twice."""

from __future__ import annotations

import torch
from torch import Tensor

from .boxes import overlaps


def select_detections(
    confidence: Tensor,
    labels: Tensor,
    boxes: Tensor,
    *,
    threshold: float,
    most: int,
    suppression: float | None,
) -> tuple[Tensor, Tensor]:
    """Picture and query of each detection, the most confident of a picture first, int64, [m] each.

    From confidence [n, Q] in the likeliest class of each query, that class, int64, [n, Q], and boxes: left,
    top, right, bottom in any unit, [n, Q, 4]. A picture has at most `most` detections, of at least the
    `threshold`. Of two boxes of one class that overlap by more than `suppression` the less confident is
    dropped; None: none is.
    """
    order = confidence.argsort(dim=1, descending=True, stable=True)
    image, place = (confidence.gather(1, order) >= threshold).nonzero(as_tuple=True)
    query = order[image, place]
    if suppression is not None:
        left = _unlike(boxes[image, query], labels[image, query], image, suppression)
        image, query = image[left], query[left]
    first = torch.searchsorted(image, torch.arange(len(confidence), device=image.device))
    few = torch.arange(len(image), device=image.device) - first[image] < most
    return image[few], query[few]


def _unlike(boxes: Tensor, labels: Tensor, image: Tensor, most: float) -> Tensor:
    """Which boxes [m, 4] overlap by at most so much with any more confident one of their class and picture
    that is left itself, [m] bool; the most confident of a picture come first."""
    rival = (labels[:, None] == labels) & (image[:, None] == image) & (overlaps(boxes, boxes) > most)
    rival, left = rival.cpu().tril(-1), torch.ones(len(boxes), dtype=torch.bool)
    for row in range(len(boxes)):
        left[row] = not bool((rival[row] & left).any())
    return left.to(boxes.device)
