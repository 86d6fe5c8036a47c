"""What is in a picture, in the shapes in which people have it: boxes of any format, classes as numbers or
names, the labels of Hugging Face's processors, and COCO's annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.user_warnings import nearest_name
from ..metrics.boxes import corners
from .box_formats import FORMATS, SLACK, BoxFormat

LISTS = (list, tuple)
BOX, CATEGORY, CROWD = "bbox", "category_id", "iscrowd"  # of COCO's annotations


@dataclass(frozen=True)
class Things:
    """What is in a picture: boxes [k, 4], left, top, right, bottom in pixels, and classes, int64, [k].

    Boxes may have another format: "xywh" is left, top, width, height; "cxcywh" centre, width, height. With
    `relative` they are shares of the picture's width and height. Classes may be the detector's names.
    """

    boxes: Tensor
    labels: Tensor
    format: str | None = None  # None: "xyxy", or what the boxes say: torchvision's BoundingBoxes
    relative: bool = False

    @classmethod
    def from_coco(cls, annotations: Any, *, labels: Mapping[Any, int] | None = None) -> Things:
        """Of COCO's annotations of one picture, a list of {"bbox", "category_id"}, without crowds.

        Args:
            annotations: The list, or a mapping with the list as "annotations".
            labels: The detector's class of each category id; None: they are the same.
        """
        rows = _annotations(annotations)
        if rows is None:
            raise ValueError(f"annotations are a {type(annotations).__name__}; a list of mappings is needed.")
        return _of_coco(rows, labels, "annotations")


def as_things(
    one: Any, sides: tuple[int, int], names: Mapping[int, str], labels: int | None, where: str
) -> Things:
    """Checked things of a picture of this height and width, their format said.

    Args:
        one: `Things`, a pair (boxes, labels), a mapping with these keys, a Hugging Face processor's labels,
            or COCO's annotations.
        sides: Height and width of the picture.
        names: The detector's, by class; empty: it has none.
        labels: How many classes it has; None: things may be of others, too.
        where: For errors.
    """
    one = _read(one, sides, where)
    boxes = _numbers(one.boxes, torch.float32, f"{where}: boxes")
    boxes = boxes.reshape(-1, 4) if not boxes.numel() else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{where}: boxes are {tuple(boxes.shape)}; [k, 4] is needed.")
    kinds = _classes(one.labels, names, where)
    if len(boxes) != len(kinds):
        raise ValueError(f"{where}: {len(boxes)} boxes, but {len(kinds)} labels.")
    if len(kinds) and labels is None and int(kinds.min()) < 0:
        raise ValueError(f"{where}: labels {kinds.tolist()}; 0 or more are allowed.")
    if len(kinds) and labels is not None and (int(kinds.min()) < 0 or int(kinds.max()) >= labels):
        known = f" ({', '.join(names[key] for key in sorted(names)[:9])})" if names else ""
        raise ValueError(
            f"{where}: labels {kinds.tolist()}; the detector knows 0 to {labels - 1}{known}. Categories that "
            "are numbered otherwise: Things.from_coco(annotations, labels={their id: its class})."
        )
    return Things(boxes, kinds, _format(one, where), bool(one.relative))


def box_format(things: Things) -> BoxFormat:
    """Of things that `as_things` has checked."""
    return BoxFormat(things.format or "xyxy", things.relative)


def is_annotations(given: Any) -> bool:
    """Whether this is a list of COCO's annotations; an empty one is."""
    return isinstance(given, LISTS) and all(isinstance(one, Mapping) and BOX in one for one in given)


def _read(one: Any, sides: tuple[int, int], where: str) -> Things:
    """Things as they come; nothing is checked but their shape."""
    if isinstance(one, Things):
        return one
    rows = _annotations(one)
    if rows is not None:
        return _of_coco(rows, None, where)
    if isinstance(one, Mapping):
        if {"boxes", "class_labels"} <= one.keys():
            return _of_processor(one, sides, where)
        if {"boxes", "labels"} <= one.keys():
            return Things(one["boxes"], one["labels"], one.get("format"), one.get("relative", False))
        raise ValueError(
            f"{where}: things are a mapping with {', '.join(map(repr, one)) or 'nothing'}; 'boxes' and "
            "'labels', a processor's 'boxes' and 'class_labels', or COCO's 'annotations' are needed."
        )
    if isinstance(one, LISTS) and len(one) == 2:
        return Things(*one)
    raise ValueError(f"{where}: things are a {type(one).__name__}; Things(boxes, labels) is needed.")


def _annotations(given: Any) -> Sequence[Mapping] | None:
    """The list of COCO's annotations; None: it is something else."""
    rows: Any = given
    if isinstance(given, Mapping) and "annotations" in given:
        rows = given["annotations"]
    elif isinstance(given, Mapping) and BOX in given:
        rows = [given]
    return rows if is_annotations(rows) else None


def _of_coco(rows: Sequence[Mapping], labels: Mapping[Any, int] | None, where: str) -> Things:
    rows = [row for row in rows if not row.get(CROWD)]
    if any(CATEGORY not in row for row in rows):
        raise ValueError(f"{where}: an annotation has no '{CATEGORY}'.")
    kinds = [row[CATEGORY] for row in rows]
    unknown = [] if labels is None else [kind for kind in kinds if kind not in labels]
    if labels is not None and unknown:
        raise ValueError(
            f"{where}: category {unknown[0]!r} is not in labels=, which has {', '.join(map(repr, labels))}."
        )
    own: Any = kinds if labels is None else [labels[kind] for kind in kinds]
    if not any(isinstance(kind, str) for kind in own):
        own = _numbers(own, torch.int64, f"{where}: categories")
    try:
        boxes = torch.tensor([[float(number) for number in row[BOX]] for row in rows]).reshape(len(rows), 4)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where}: a '{BOX}' is no list of left, top, width, height: {error}") from error
    return Things(boxes, own, "xywh")


def _of_processor(one: Mapping, sides: tuple[int, int], where: str) -> Things:
    """Centre and size as shares of "size", height and width before pictures were padded below and right, or
    after."""
    boxes = _numbers(one["boxes"], torch.float32, f"{where}: boxes")
    if boxes.numel() and float(boxes.max()) > 1.0 + 1e-3:
        raise ValueError(
            f"{where}: boxes reach {float(boxes.max()):.4g}; a processor's, with 'class_labels', are centre, "
            "width, height as shares of the picture. Others go with 'labels' and a 'format'."
        )
    size = one.get("size")
    if size is None or not boxes.numel():
        return Things(boxes, one["class_labels"], "cxcywh", True)
    height, width = (int(side) for side in torch.as_tensor(size).flatten().tolist())
    boxes = boxes * boxes.new_tensor([width, height] * 2)
    far = corners(boxes)[:, 2:].amax(dim=0).tolist()
    if (height > sides[0] and far[1] > sides[0] + SLACK) or (width > sides[1] and far[0] > sides[1] + SLACK):
        raise ValueError(
            f"{where}: 'size' is {width} x {height} pixels, the picture {sides[1]} x {sides[0]}; they are "
            "not of one pass of the processor."
        )
    return Things(boxes, one["class_labels"], "cxcywh")


def _numbers(given: Any, dtype: torch.dtype, what: str) -> Tensor:
    try:
        return torch.as_tensor(given, dtype=dtype).as_subclass(Tensor)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{what} are no table of numbers: {error}") from error


def _classes(given: Any, names: Mapping[int, str], where: str) -> Tensor:
    """Numbers of classes, int64, [k]; names are the detector's."""
    if isinstance(given, LISTS) and any(isinstance(kind, str) for kind in given):
        numbers = {name: number for number, name in names.items()}
        for kind in given:
            if kind not in numbers:
                near = nearest_name(str(kind), numbers)
                raise ValueError(
                    f"{where}: the detector has no class {kind!r}; it has {list(numbers)}.{near}"
                )
        given = [numbers[kind] for kind in given]
    return _numbers(given, torch.int64, f"{where}: labels").reshape(-1)


def _format(things: Things, where: str) -> str:
    """What the things say, or their boxes, or "xyxy"."""
    said = things.format if things.format is not None else getattr(things.boxes, "format", None)
    name = "xyxy" if said is None else str(getattr(said, "value", said)).lower()
    if name not in FORMATS:
        raise ValueError(f"{where}: format={name!r}; allowed are {', '.join(FORMATS)}.")
    return name
