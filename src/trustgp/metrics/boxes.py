"""Boxes: their overlaps, the selection of detections, and detections on unknown objects.

An object is unknown when its label is not one of the detector's classes, so at least `num_classes`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ON_OVERLAP = 0.3  # overlap from which a detection lies on an object
MATCH_OVERLAP = 0.5  # overlap from which it matches the object
Tensors = Sequence[Tensor]


def corners(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom of boxes given as centre, width and height, shape [..., 4]."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Area of the intersection over that of the union, shape [..., k, m]; 0 where both are empty. Boxes are
    left, top, right and bottom, shapes [..., k, 4] and [..., m, 4]."""
    return _areas(first, second)[0]


def nearest(boxes: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Largest overlap of each box [k, 4] with a true box [m, 4], and its index, [k]; 0 and -1 if m is 0."""
    if not len(truth):
        return boxes.new_zeros(len(boxes)), torch.full((len(boxes),), -1, device=boxes.device)
    best = overlaps(boxes, truth).max(dim=1)
    return best.values, best.indices


def generous_overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Generalised IoU [..., k, m] in [-1, 1]: IoU less the share of their bounding box that none covers."""
    shared, union = _areas(first, second)
    low = torch.minimum(first[..., :, None, :2], second[..., None, :, :2])
    around = area(torch.maximum(first[..., :, None, 2:], second[..., None, :, 2:]) - low)
    return shared - (around - union) / around.clamp_min(1e-9)


def _areas(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union, and the union, shape [..., k, m]."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    shared = area(torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:]) - low)
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

    `confidence` [n, Q] belongs to the likeliest class of each query, `labels`, int64, [n, Q]; `boxes`
    [n, Q, 4] are left, top, right, bottom in any unit. A picture has at most `most` detections, with
    confidence of at least `threshold`. If two boxes of one class overlap by more than `suppress`, the less
    confident is dropped; None: no box is dropped.
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


def on_unknown(boxes: Tensor, true: Any, *, num_classes: int) -> Tensor:
    """Mask [k] of boxes [k, 4] that overlap an unknown object by at least 0.3, more than any familiar one."""
    unknown = true.labels >= num_classes
    new, _ = nearest(boxes.double(), true.boxes[unknown].double())
    familiar, _ = nearest(boxes.double(), true.boxes[~unknown].double())
    return (new >= ON_OVERLAP) & (new > familiar)


def unknown_recall(boxes: Tensors, novel: Tensors, true: Sequence[Any], *, num_classes: int) -> float | None:
    """U-Recall: the share of unknown objects that a detection marked novel overlaps by 0.5; None without any.

    Args:
        boxes: Detections in each of n pictures, shape [k, 4].
        novel: Whether each detection is marked novel, bool, shape [k].
        true: Targets of each picture.
        num_classes: Number of classes of the detector.
    """
    objects = recalled = 0
    for own, marked, there in zip(boxes, novel, true, strict=True):
        unknown = there.boxes[there.labels >= num_classes].double()
        shared, _ = nearest(unknown, own[marked].double())
        objects, recalled = objects + len(unknown), recalled + int((shared >= MATCH_OVERLAP).sum())
    return recalled / objects if objects else None


def open_set_errors(boxes: Tensors, novel: Tensors, true: Sequence[Any], *, num_classes: int) -> int:
    """A-OSE, the absolute open-set error: detections that call an unknown object a known class.

    The count, as in Joseph et al. 2021 (after Miller et al. 2018 and Dhamija et al. 2020), is of detections
    that overlap an unknown object by 0.5 and are not marked novel: each has a class of the detector. One
    object may count more than once. The arguments are those of `unknown_recall`.
    """
    wrong = 0
    for own, marked, there in zip(boxes, novel, true, strict=True):
        unknown = there.boxes[there.labels >= num_classes].double()
        wrong += int(((overlaps(own.double(), unknown) >= MATCH_OVERLAP).any(dim=1) & ~marked).sum())
    return wrong
