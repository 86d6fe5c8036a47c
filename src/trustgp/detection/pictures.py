"""Pictures and what is in them, as a user has them: checked before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .matching import Things


def as_pictures(images: Any, *, channels: int, size: tuple[int, int] | None = None) -> Tensor:
    """Pictures [n, channels, height, width] of floating-point numbers.

    Args:
        images: A tensor [n, channels, height, width] or [channels, height, width], or a list of pictures.
        channels: That the detector takes.
        size: Height and width that they must have; None: any.
    """
    if isinstance(images, (list, tuple)):
        if not images:
            height, width = size or (0, 0)
            return torch.zeros(0, channels, height, width)
        shapes = {tuple(one.shape) for one in images}
        if len(shapes) > 1:
            raise ValueError(f"pictures have different shapes {sorted(shapes)}; bring them to one size.")
        images = torch.stack(list(images))
    if not isinstance(images, Tensor) or images.ndim not in (3, 4):
        found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(
            f"pictures are {found}; a tensor [n, {channels}, height, width] or a list is needed."
        )
    images = images if images.ndim == 4 else images[None]
    if not images.is_floating_point():
        raise ValueError(f"pictures are {images.dtype}; scale them to floats as the detector was trained on.")
    if images.shape[1] != channels:
        raise ValueError(f"pictures have {images.shape[1]} channels; the detector takes {channels}.")
    if size is not None and len(images) and tuple(images.shape[2:]) != size:
        raise ValueError(f"pictures are {tuple(images.shape[2:])} pixels; the model was fitted on {size}.")
    return images


def as_scenes(given: Any, *, channels: int, labels: int, name: str) -> tuple[Tensor, list[Things]]:
    """Pictures and their things.

    Args:
        given: A pair (images, things), or a Dataset or DataLoader of such pairs; things are `Things`, pairs
            (boxes, labels), or dicts with these keys; boxes in pixels: left, top, right, bottom.
        channels: That the detector takes.
        labels: Classes that it knows.
        name: What to call it in an error.
    """
    if isinstance(given, DataLoader):
        batches = list(given)
        images = torch.cat([as_pictures(batch[0], channels=channels) for batch in batches])
        things = [one for batch in batches for one in batch[1]]
    elif isinstance(given, Dataset):
        rows = [given[i] for i in range(len(given))]  # type: ignore[arg-type]
        images, things = as_pictures([row[0] for row in rows], channels=channels), [row[1] for row in rows]
    elif isinstance(given, Sequence) and len(given) == 2:
        images, things = as_pictures(given[0], channels=channels), list(given[1])
    else:
        raise ValueError(
            f"{name} is a {type(given).__name__}; (images, things), a Dataset or DataLoader is needed."
        )
    if len(images) == 0:
        raise ValueError(f"{name} holds no pictures.")
    if len(things) != len(images):
        raise ValueError(f"{name} has {len(images)} pictures, but things for {len(things)}.")
    height, width = images.shape[2:]
    return images, [_checked(one, i, height, width, labels, name) for i, one in enumerate(things)]


def _checked(one: Any, index: int, height: int, width: int, labels: int, name: str) -> Things:
    where = f"{name}, picture {index}"
    if isinstance(one, dict):
        one = Things(one["boxes"], one["labels"])
    elif isinstance(one, (tuple, list)):
        one = Things(*one)
    boxes = torch.as_tensor(one.boxes, dtype=torch.float32).reshape(-1, 4)
    kinds = torch.as_tensor(one.labels, dtype=torch.int64).reshape(-1)
    if len(boxes) != len(kinds):
        raise ValueError(f"{where}: {len(boxes)} boxes, but {len(kinds)} labels.")
    if len(kinds) and (int(kinds.min()) < 0 or int(kinds.max()) >= labels):
        raise ValueError(f"{where}: labels {kinds.tolist()}; the detector knows 0 to {labels - 1}.")
    edge = boxes.new_tensor([width, height, width, height]) + 1.0
    bad = ~torch.isfinite(boxes).all(1) | (boxes < -1.0).any(1) | (boxes > edge).any(1)
    bad |= (boxes[:, 2:] <= boxes[:, :2]).any(1)
    if bool(bad.any()):
        raise ValueError(
            f"{where}: box {boxes[bad][0].tolist()} is empty or leaves the picture, {width} x {height}; "
            "boxes are left, top, right, bottom in pixels."
        )
    return Things(boxes, kinds)
