"""Pictures as a user has them: a tensor, one of them, a list, or what a Hugging Face processor gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..data.rows import finite_rows

LISTS = (list, tuple)
PIXELS, MASK = "pixel_values", "pixel_mask"  # what a processor calls them
Pictures = Tensor | list[Tensor]  # [n, channels, height, width], or one each where their sizes differ
MOST, PIXELS_AT_ONCE = 32, 2**22  # pictures, and pixels, that go through a detector at a time
Answer = TypeVar("Answer")


def as_pictures(images: Any, *, channels: int, size: tuple[int, int] | None = None) -> Pictures:
    """Pictures of floats, all of a size where one is given; from a tensor, one picture, a list, or a
    processor's mapping with "pixel_values" and perhaps "pixel_mask"."""
    if isinstance(images, Mapping):
        images = pixel_values(images)
    if isinstance(images, LISTS):
        if not images:
            return torch.zeros(0, channels, *(size or (0, 0)))
        strange = [type(one).__name__ for one in images if shape_of(one) is None]
        if strange:
            raise ValueError(
                f"pictures are a list with a {strange[0]}; tensors [{channels}, height, width] are needed."
            )
        shapes = sorted({tuple(one.shape) for one in images})
        if len(shapes) > 1:
            if size is not None:
                raise ValueError(f"pictures have different shapes {shapes}; the model was fitted on {size}.")
            return [as_pictures(one, channels=channels)[0] for one in images]
        images = torch.stack(list(images))
    shape = shape_of(images)
    if shape is None or len(shape) not in (3, 4):
        raise ValueError(
            f"pictures are {shape or type(images).__name__}; a tensor [n, {channels}, height, width] or a "
            "list is needed."
        )
    images = images if images.ndim == 4 else images[None]
    if not images.is_floating_point():
        raise ValueError(
            f"pictures are {images.dtype}; scale them to floats as the detector was trained on: with its "
            "image processor, or images.float() / 255 less its mean, over its standard deviation."
        )
    if images.shape[1] != channels:
        raise ValueError(f"pictures have {images.shape[1]} channels; the detector takes {channels}.")
    if size is not None and len(images) and tuple(images.shape[2:]) != size:
        raise ValueError(f"pictures are {tuple(images.shape[2:])} pixels; the model was fitted on {size}.")
    return images


def pixel_values(given: Mapping) -> Any:
    """The pictures of a processor's mapping; where they were padded below and right, without that."""
    if PIXELS not in given:
        raise ValueError(f"pictures are a mapping with {', '.join(map(repr, given))}; '{PIXELS}' is needed.")
    images, mask = given[PIXELS], given.get(MASK)
    if mask is None or (isinstance(mask, Tensor) and bool(mask.bool().all())):
        return images
    alone = (shape_of(images) or ())[1:] == shape_of(mask)
    pairs = zip([images] if alone else images, [mask] if alone else mask, strict=True)
    cropped = [_cropped(image, torch.as_tensor(one).bool()) for image, one in pairs]
    return cropped[0] if alone else cropped


def _cropped(image: Tensor, mask: Tensor) -> Tensor:
    """The part of a picture that its mask [height, width] shows."""
    height, width = int(mask.any(dim=1).sum()), int(mask.any(dim=0).sum())
    if not height or not bool(mask[:height, :width].all()) or tuple(mask.shape) != tuple(image.shape[-2:]):
        raise ValueError(
            f"a '{MASK}' {tuple(mask.shape)} of a picture {tuple(image.shape)} is no whole rectangle at its "
            "top left; processors pad below and right."
        )
    return image[..., :height, :width]


def finite_pictures(pictures: Pictures) -> Tensor:
    """Which hold no NaN and no infinity, bool, [n]."""
    if isinstance(pictures, Tensor):
        return finite_rows(pictures)
    return torch.cat([finite_rows(one[None]).cpu() for one in pictures])


def at_once(height: int, width: int) -> int:
    """How many pictures of a size go through a detector at a time."""
    return max(1, min(MOST, PIXELS_AT_ONCE // (height * width)))


def by_size(pictures: Pictures | Sequence[Tensor]) -> Iterator[list[int]]:
    """Numbers of pictures of one size, as many as go through a detector at a time."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(pictures):
        groups.setdefault(tuple(one.shape[-2:]), []).append(number)
    for (height, width), numbers in groups.items():
        step = at_once(height, width)
        yield from (numbers[i : i + step] for i in range(0, len(numbers), step))


def for_each(pictures: Pictures, work: Callable[[Tensor], Sequence[Answer]]) -> list[Answer]:
    """What `work` says of each picture, of which it takes some of one size [k, channels, height, width]."""
    found: dict[int, Answer] = {}
    for numbers in by_size(pictures):
        if isinstance(pictures, Tensor):  # all of one size, so the numbers are in a row
            some = pictures[numbers[0] : numbers[-1] + 1]
        else:
            some = torch.stack([pictures[i] for i in numbers])
        found |= zip(numbers, work(some), strict=True)
    return [found[i] for i in range(len(pictures))]


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Of a tensor; None: it is none."""
    return tuple(value.shape) if isinstance(value, Tensor) else None
