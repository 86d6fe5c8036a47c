"""Boxes: how much two of them overlap."""

from __future__ import annotations

import torch
from torch import Tensor


def corners(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom of boxes given as centre, width and height, shape [..., 4]."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Area of the intersection over that of the union, shape [..., k, m]; 0 where both are empty. Boxes are
    left, top, right and bottom, shapes [..., k, 4] and [..., m, 4]."""
    return _areas(first, second)[0]


def nearest(boxes: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """The largest overlap of each box [k, 4] with a true one [m, 4], and its index, [k]; 0 and -1: none."""
    if not len(truth):
        return boxes.new_zeros(len(boxes)), torch.full((len(boxes),), -1, device=boxes.device)
    best = overlaps(boxes, truth).max(dim=1)
    return best.values, best.indices


def generous_overlaps(first: Tensor, second: Tensor) -> Tensor:
    """The same, less the share of the smallest box around both that neither covers: in [-1, 1]."""
    shared, union = _areas(first, second)
    low = torch.minimum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.maximum(first[..., :, None, 2:], second[..., None, :, 2:])
    around = area(high - low)
    return shared - (around - union) / around.clamp_min(1e-9)


def _areas(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union, and the union, shape [..., k, m]."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    shared = area(high - low)
    sizes = [area(boxes[..., 2:] - boxes[..., :2]) for boxes in (first, second)]
    union = sizes[0][..., :, None] + sizes[1][..., None, :] - shared
    return shared / union.clamp_min(1e-9), union


def area(size: Tensor) -> Tensor:
    """Width times height, shape [..., 2] to [...]; not `prod`, whose gradient waits for the device."""
    width, height = size.clamp_min(0).unbind(dim=-1)
    return width * height
