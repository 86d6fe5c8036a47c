"""Boxes: how much two of them overlap, and which of them are detections."""

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


def select_detections(
    confidence: Tensor, labels: Tensor, boxes: Tensor, *, threshold: float, most: int, suppress: float | None
) -> tuple[Tensor, Tensor]:
    """Picture and query of each detection, the most confident of a picture first, int64, [m] each.

    From confidence [n, Q] in the likeliest class of each query, that class, int64, [n, Q], and boxes: left,
    top, right, bottom in any unit, [n, Q, 4]. A picture has at most `most` detections, of at least the
    `threshold`. Of two boxes of one class that overlap by more than `suppress` the less confident is
    dropped; None: none is.
    """
    order = confidence.argsort(dim=1, descending=True, stable=True)
    image, place = (confidence.gather(1, order) >= threshold).nonzero(as_tuple=True)
    query = order[image, place]
    if suppress is not None:  # a box stays unless a more confident one of its class and picture is its rival
        own, kind = boxes[image, query], labels[image, query]
        rival = (kind[:, None] == kind) & (image[:, None] == image) & (overlaps(own, own) > suppress)
        rival, left = rival.cpu().tril(-1), torch.ones(len(own), dtype=torch.bool)
        for row in range(len(own)):
            left[row] = not bool((rival[row] & left).any())
        image, query = image[left.to(image.device)], query[left.to(image.device)]
    first = torch.searchsorted(image, torch.arange(len(confidence), device=image.device))
    few = torch.arange(len(image), device=image.device) - first[image] < most
    return image[few], query[few]
