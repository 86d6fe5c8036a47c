"""Boxes: how much two of them overlap, and how good a detector is at finding them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def corners(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom of boxes given as centre, width and height, shape [..., 4]."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Area of the intersection over that of the union, shape [..., k, m]; 0 where both are empty.

    Args:
        first, second: Left, top, right and bottom, shapes [..., k, 4] and [..., m, 4].
    """
    return _areas(first, second)[0]


def nearest(boxes: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """How much each box overlaps the true one it overlaps most, and which that is, [k] each; 0, -1: none.

    Args:
        boxes, truth: Left, top, right and bottom, shapes [k, 4] and [m, 4].
    """
    if not len(truth):
        return boxes.new_zeros(len(boxes)), torch.full((len(boxes),), -1, device=boxes.device)
    found = overlaps(boxes, truth).max(dim=1)
    return found.values, found.indices


def generous_overlaps(first: Tensor, second: Tensor) -> Tensor:
    """The same, less the share of the smallest box around both that neither covers: in [-1, 1]."""
    found, union = _areas(first, second)
    low = torch.minimum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.maximum(first[..., :, None, 2:], second[..., None, :, 2:])
    around = _area(high - low)
    return found - (around - union) / around.clamp_min(1e-9)


def _areas(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union, and the union, shape [..., k, m]."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    shared = _area(high - low)
    sizes = [_area(boxes[..., 2:] - boxes[..., :2]) for boxes in (first, second)]
    union = sizes[0][..., :, None] + sizes[1][..., None, :] - shared
    return shared / union.clamp_min(1e-9), union


def _area(size: Tensor) -> Tensor:
    """Width times height, shape [..., 2] to [...]; not `prod`, whose gradient waits for the device."""
    width, height = size.clamp_min(0).unbind(dim=-1)
    return width * height


def average_precision(
    boxes: Sequence[Tensor],
    scores: Sequence[Tensor],
    truth: Sequence[Tensor],
    *,
    overlap: float = 0.5,
) -> float:
    """Area under precision against recall for one class, precision made to fall (AP as COCO and VOC 2010 do).

    The surest detection comes first; it is right where it overlaps a true box that is still free by `overlap`
    at least, and takes the one that it overlaps most.

    Args:
        boxes: Found in each picture, [k, 4], left, top, right, bottom.
        scores: How sure they are, [k].
        truth: True boxes of each picture, [m, 4].
        overlap: Intersection over union.

    Returns:
        In [0, 1]; nan where there is no true box.
    """
    total = sum(len(true) for true in truth)
    if total == 0:
        return float("nan")
    entries = sorted(
        ((float(s), i, k) for i, row in enumerate(scores) for k, s in enumerate(row)), key=lambda e: -e[0]
    )
    shares = [overlaps(found, true) for found, true in zip(boxes, truth, strict=True)]
    free = [torch.ones(len(true), dtype=torch.bool) for true in truth]
    right = torch.zeros(len(entries), dtype=torch.float64)
    for place, (_, image, k) in enumerate(entries):
        candidates = torch.where(free[image], shares[image][k], -1.0)
        if len(candidates) and float(candidates.max()) >= overlap:
            free[image][int(candidates.argmax())] = False
            right[place] = 1.0
    if not len(entries):
        return 0.0
    hits = right.cumsum(0)
    precision = hits / torch.arange(1, len(entries) + 1)
    falling = precision.flip(0).cummax(0).values.flip(0)
    steps = torch.diff(hits / total, prepend=torch.zeros(1, dtype=torch.float64))
    return float((falling * steps).sum())
