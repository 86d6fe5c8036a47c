"""Which query of a picture is meant for which of its things."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics.boxes import generous_overlaps, overlaps

CLASS, DISTANCE, OVERLAP = 1.0, 5.0, 2.0  # what counts how much, as DETR has it


@dataclass(frozen=True)
class Things:
    """What is in a picture.

    Args:
        boxes: Left, top, right, bottom in pixels, [k, 4].
        labels: Their classes, int64, [k].
    """

    boxes: Tensor
    labels: Tensor


def match(probabilities: Tensor, boxes: Tensor, things: Things, *, side: float) -> tuple[Tensor, Tensor]:
    """The assignment of queries to things that costs least (Hungarian), and how much they overlap.

    Args:
        probabilities: Of the classes, [Q, C].
        boxes: Left, top, right, bottom in pixels, [Q, 4].
        things: True ones, k of them.
        side: Of the picture, by which distances are divided.

    Returns:
        The query of each thing, int64, [k], -1 where there are fewer, and the overlap of its box, [k].
    """
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
