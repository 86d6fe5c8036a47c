"""Things that a detector does not know: are they found, are they called novel, or taken for what it knows?

A thing is unknown when its label is not one of the detector's classes, so at least `known`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .boxes import nearest, overlaps
from .detections import LabelledBoxes

NEAR = 0.3  # overlap from which a detection lies on a thing
COVERED = 0.5  # and from which it has found it


def on_unknown(boxes: Tensor, true: LabelledBoxes, *, known: int) -> Tensor:
    """Which boxes [k, 4] lie on an unknown thing: they overlap it by 0.3, and more than any familiar one;
    bool, [k]."""
    unknown = true.labels >= known
    new, _ = nearest(boxes.double(), true.boxes[unknown].double())
    familiar, _ = nearest(boxes.double(), true.boxes[~unknown].double())
    return (new >= NEAR) & (new > familiar)


def unknown_recall(
    boxes: Sequence[Tensor], novel: Sequence[Tensor], true: Sequence[LabelledBoxes], *, known: int
) -> float | None:
    """U-Recall: the share of unknown things that a detection marked novel overlaps by 0.5; None without any.

    Args:
        boxes: What was found in each of n pictures, shape [k, 4].
        novel: Whether it is marked novel, bool, shape [k].
        true: What is there.
        known: How many classes the detector has.
    """
    things = found = 0
    for mine, marked, there in zip(boxes, novel, true, strict=True):
        unknown = there.boxes[there.labels >= known].double()
        shared, _ = nearest(unknown, mine[marked].double())
        things, found = things + len(unknown), found + int((shared >= COVERED).sum())
    return found / things if things else None


def open_set_errors(
    boxes: Sequence[Tensor], novel: Sequence[Tensor], true: Sequence[LabelledBoxes], *, known: int
) -> int:
    """A-OSE, the absolute open-set error: how many detections take an unknown thing for a class they know.

    Counted, as in Joseph et al. 2021 (after Miller et al. 2018 and Dhamija et al. 2020), are detections that
    overlap an unknown thing by 0.5 and are not marked novel: each has a class of the detector. One thing may
    count more than once. The arguments are those of `unknown_recall`.
    """
    wrong = 0
    for mine, marked, there in zip(boxes, novel, true, strict=True):
        unknown = there.boxes[there.labels >= known].double()
        if len(unknown):
            on = (overlaps(mine.double(), unknown) >= COVERED).any(dim=1)
            wrong += int((on & ~marked).sum())
    return wrong


def none_marked(boxes: Sequence[Tensor]) -> list[Tensor]:
    """As if no detection were novel: bool, [k] of each picture."""
    return [torch.zeros(len(mine), dtype=torch.bool, device=mine.device) for mine in boxes]
