"""The objects in a picture, as a user has them: boxes and classes, a processor's labels, COCO annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..metrics.boxes import corners

LISTS = (list, tuple)
BOX, CATEGORY, CROWD = "bbox", "category_id", "iscrowd"  # of COCO annotations
SLACK = 1.0  # pixels by which a box may leave its picture
MIN_SIDE = 16  # pixels: in a smaller picture boxes in pixels may lie between 0 and 1
ACCEPTED = (
    "The targets of a picture are BoxTargets(boxes, labels) or {'boxes', 'labels'} with left, top, right, "
    "bottom in pixels, a Hugging Face processor's {'boxes', 'class_labels'}, or a list of COCO annotations "
    "{'bbox', 'category_id'}; labels are the detector's class numbers."
)


@dataclass(frozen=True)
class BoxTargets:
    """The objects in a picture: boxes [k, 4], left, top, right, bottom in pixels, and classes, int64, [k]."""

    boxes: Tensor
    labels: Tensor


def as_targets(given: Any, sides: tuple[int, int], num_labels: int | None, where: str) -> BoxTargets:
    """Checked targets, one of `ACCEPTED`, of a picture with these sides, height and width, for a detector of
    so many classes; None: targets may be of other classes, too."""
    try:
        boxes, labels = _read(given, sides)
        boxes = torch.as_tensor(boxes, dtype=torch.float32).as_subclass(Tensor)
        labels = torch.as_tensor(labels, dtype=torch.int64).as_subclass(Tensor).reshape(-1)
        boxes = boxes if boxes.numel() else boxes.reshape(-1, 4)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where}: cannot read a {type(given).__name__} ({error!r}). {ACCEPTED}") from error
    if boxes.shape != (len(labels), 4):
        raise ValueError(f"{where}: boxes are {tuple(boxes.shape)}, labels {len(labels)}. {ACCEPTED}")
    highest = torch.iinfo(torch.int64).max if num_labels is None else num_labels - 1
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) > highest):
        allowed = "0 or more" if num_labels is None else f"0 to {highest}, the detector's,"
        raise ValueError(f"{where}: labels are {labels.tolist()}; {allowed} are allowed. {ACCEPTED}")
    height, width = sides
    if len(boxes) and min(sides) >= MIN_SIDE and bool(((boxes >= 0) & (boxes <= 1)).all()):
        raise ValueError(f"{where}: all boxes lie between 0 and 1, in {width} x {height} pixels. {ACCEPTED}")
    edge = boxes.new_tensor([width, height] * 2) + SLACK
    inside = (torch.isfinite(boxes) & (boxes >= -SLACK) & (boxes <= edge)).all(dim=1)
    bad = ~(inside & (boxes[:, 2:] > boxes[:, :2]).all(dim=1))
    if bool(bad.any()):
        what = f"{where}: box {boxes[bad][0].tolist()}, read as left, top, right, bottom in pixels,"
        raise ValueError(f"{what} is empty or leaves the picture, {width} x {height}. {ACCEPTED}")
    return BoxTargets(boxes, labels)


def is_annotations(given: Any) -> bool:
    """Whether this is a list of COCO annotations; an empty one is."""
    return isinstance(given, LISTS) and all(isinstance(one, Mapping) and BOX in one for one in given)


def _read(given: Any, sides: tuple[int, int]) -> tuple[Any, Any]:
    """Boxes, left, top, right, bottom in pixels, and labels; KeyError or TypeError: none of `ACCEPTED`."""
    if isinstance(given, BoxTargets):
        return given.boxes, given.labels
    if isinstance(given, Mapping) and "annotations" in given:
        given = given["annotations"]
    if is_annotations(given):
        rows = [row for row in given if not row.get(CROWD)]
        boxes = torch.tensor([[float(value) for value in row[BOX]] for row in rows]).reshape(len(rows), 4)
        return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1), [row[CATEGORY] for row in rows]
    if not isinstance(given, Mapping):
        raise TypeError("not a mapping")
    if "class_labels" not in given:
        return given["boxes"], given["labels"]
    # a processor's: centre and size over "size", height and width before pictures were padded
    height, width = torch.as_tensor(given.get("size", sides)).flatten().tolist()
    boxes = torch.as_tensor(given["boxes"], dtype=torch.float32).reshape(-1, 4)
    return corners(boxes * boxes.new_tensor([width, height] * 2)), given["class_labels"]
