"""Pictures and what is in them, as a user has them: checked before any work starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..data.rows import finite_rows
from .detector import Detector

LISTS = (list, tuple)


@dataclass(frozen=True)
class Things:
    """What is in a picture: boxes [k, 4], left, top, right, bottom in pixels, and classes, int64, [k]."""

    boxes: Tensor
    labels: Tensor


def as_pictures(images: Any, *, channels: int, size: tuple[int, int] | None = None) -> Tensor:
    """Pictures [n, channels, height, width] of floats, of a size; from a tensor, one picture, or a list."""
    if isinstance(images, LISTS):
        if not images:
            return torch.zeros(0, channels, *(size or (0, 0)))
        strange = [type(one).__name__ for one in images if _shape(one) is None]
        if strange:
            raise ValueError(
                f"pictures are a list with a {strange[0]}; tensors [{channels}, height, width] are needed."
            )
        shapes = sorted({tuple(one.shape) for one in images})
        if len(shapes) > 1:
            raise ValueError(f"pictures have different shapes {shapes}; bring them to one size.")
        images = torch.stack(list(images))
    shape = _shape(images)
    if shape is None or len(shape) not in (3, 4):
        raise ValueError(
            f"pictures are {shape or type(images).__name__}; a tensor [n, {channels}, height, width] or a "
            "list is needed."
        )
    images = images if images.ndim == 4 else images[None]
    if not images.is_floating_point():
        raise ValueError(f"pictures are {images.dtype}; scale them to floats as the detector was trained on.")
    if images.shape[1] != channels:
        raise ValueError(f"pictures have {images.shape[1]} channels; the detector takes {channels}.")
    if size is not None and len(images) and tuple(images.shape[2:]) != size:
        raise ValueError(f"pictures are {tuple(images.shape[2:])} pixels; the model was fitted on {size}.")
    return images


def as_scenes(
    given: Any, detector: Detector, *, name: str, size: tuple[int, int] | None = None
) -> tuple[Tensor, list[Things]]:
    """Pictures and their things: a pair (images, things), or a Dataset or DataLoader of such pairs. Things
    are `Things`, pairs (boxes, labels), or dicts with these keys; boxes in pixels: left, top, right, bottom.
    Pictures must have this size, height and width; None: any. `name` is for errors."""
    pictures, things = _read(given, detector.channels, name)
    if len(pictures) == 0:
        raise ValueError(f"{name} holds no pictures.")
    try:
        images = as_pictures(pictures, channels=detector.channels, size=size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if len(things) != len(images):
        raise ValueError(f"{name} has {len(images)} pictures, but things for {len(things)}.")
    sides = images.shape[2:]
    things = [_checked(one, sides, detector.labels, f"{name}, picture {i}") for i, one in enumerate(things)]
    broken = (~finite_rows(images)).nonzero().flatten().tolist()
    if broken:
        raise ValueError(
            f"{name}: {len(broken)} pictures hold NaN or infinity, the first is {broken[0]}; drop them."
        )
    return images, things


def _read(given: Any, channels: int, name: str) -> tuple[Any, list[Any]]:
    """The pictures, a tensor or a list, and their things, as they come."""
    if isinstance(given, DataLoader):
        batches = list(given)
        images = [image for batch in batches for image in as_pictures(batch[0], channels=channels)]
        return images, [one for batch in batches for one in batch[1]]
    if isinstance(given, Dataset):
        rows = [given[i] for i in range(len(given))]  # type: ignore[arg-type]
        return [row[0] for row in rows], [row[1] for row in rows]
    if not isinstance(given, LISTS) or len(given) != 2:
        kind = type(given).__name__
        raise ValueError(f"{name} is a {kind}; (images, things), a Dataset or DataLoader is needed.")
    images, things = given
    pictures = isinstance(images, LISTS) or len(_shape(images) or ()) == 4
    if not pictures or not isinstance(things, LISTS):
        kinds = ", ".join(f"a {type(one).__name__.lower()} {_shape(one) or ''}".rstrip() for one in given)
        raise ValueError(
            f"{name} is ({kinds}); images are a tensor [n, {channels}, height, width] or a list, "
            "things a list with one entry a picture."
        )
    return images, list(things)


def _shape(value: Any) -> tuple[int, ...] | None:
    """Of a tensor; None: it is none."""
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _checked(one: Any, sides: torch.Size, labels: int, where: str) -> Things:
    if isinstance(one, dict) and {"boxes", "labels"} <= one.keys():
        one = one["boxes"], one["labels"]
    if isinstance(one, LISTS) and len(one) == 2:
        one = Things(*one)
    if not isinstance(one, Things):
        raise ValueError(f"{where}: things are a {type(one).__name__}; Things(boxes, labels) is needed.")
    boxes = torch.as_tensor(one.boxes, dtype=torch.float32)
    kinds = torch.as_tensor(one.labels, dtype=torch.int64).reshape(-1)
    boxes = boxes.reshape(-1, 4) if not boxes.numel() else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{where}: boxes are {tuple(boxes.shape)}; [k, 4] is needed.")
    if len(boxes) != len(kinds):
        raise ValueError(f"{where}: {len(boxes)} boxes, but {len(kinds)} labels.")
    if len(kinds) and (int(kinds.min()) < 0 or int(kinds.max()) >= labels):
        raise ValueError(f"{where}: labels {kinds.tolist()}; the detector knows 0 to {labels - 1}.")
    height, width = sides
    edge = boxes.new_tensor([width, height, width, height]) + 1.0
    bad = ~torch.isfinite(boxes).all(1) | (boxes < -1.0).any(1) | (boxes > edge).any(1)
    bad |= (boxes[:, 2:] <= boxes[:, :2]).any(1)
    if bool(bad.any()):
        raise ValueError(
            f"{where}: box {boxes[bad][0].tolist()} is empty or leaves the picture, {width} x {height}; "
            "boxes are left, top, right, bottom in pixels."
        )
    return Things(boxes, kinds)
