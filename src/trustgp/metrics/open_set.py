"""Objects of classes that a detector lacks: are they found and called novel, or called a known class?

An object is unknown when its label is not one of the detector's classes, so at least `num_classes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .boxes import nearest, overlaps

ON_OVERLAP = 0.3  # from which a detection lies on an object
MATCH_OVERLAP = 0.5  # and from which it matches it
Tensors = Sequence[Tensor]


def on_unknown(boxes: Tensor, true: Any, *, num_classes: int) -> Tensor:
    """Which boxes [k, 4] lie on an unknown object: they overlap it by 0.3, and more than any familiar one;
    bool, [k]."""
    unknown = true.labels >= num_classes
    new, _ = nearest(boxes.double(), true.boxes[unknown].double())
    familiar, _ = nearest(boxes.double(), true.boxes[~unknown].double())
    return (new >= ON_OVERLAP) & (new > familiar)


def unknown_recall(boxes: Tensors, novel: Tensors, true: Sequence[Any], *, num_classes: int) -> float | None:
    """U-Recall: the share of unknown objects that a detection marked novel overlaps by 0.5; None without any.

    Args:
        boxes: Detections in each of n pictures, shape [k, 4].
        novel: Whether it is marked novel, bool, shape [k].
        true: The targets.
        num_classes: Of the detector.
    """
    objects = recalled = 0
    for own, marked, there in zip(boxes, novel, true, strict=True):
        unknown = there.boxes[there.labels >= num_classes].double()
        shared, _ = nearest(unknown, own[marked].double())
        objects, recalled = objects + len(unknown), recalled + int((shared >= MATCH_OVERLAP).sum())
    return recalled / objects if objects else None


def open_set_errors(boxes: Tensors, novel: Tensors, true: Sequence[Any], *, num_classes: int) -> int:
    """A-OSE, the absolute open-set error: detections that call an unknown object a known class.

    Counted, as in Joseph et al. 2021 (after Miller et al. 2018 and Dhamija et al. 2020), are detections that
    overlap an unknown object by 0.5 and are not marked novel: each has a class of the detector. One object
    may count more than once. The arguments are those of `unknown_recall`.
    """
    wrong = 0
    for own, marked, there in zip(boxes, novel, true, strict=True):
        unknown = there.boxes[there.labels >= num_classes].double()
        on = (overlaps(own.double(), unknown) >= MATCH_OVERLAP).any(dim=1)
        wrong += int((on & ~marked).sum())
    return wrong
