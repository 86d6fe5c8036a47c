"""Pictures as a user has them: a tensor, one of them, a list, or what a Hugging Face processor gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LISTS = (list, tuple)
PIXELS, MASK = "pixel_values", "pixel_mask"  # what a processor calls them


def as_pictures(images: Any, *, channels: int, size: tuple[int, int] | None = None) -> Tensor:
    """Pictures [n, channels, height, width] of floats, of a size; from a tensor, one picture, a list, or a
    processor's mapping with "pixel_values"."""
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
            raise ValueError(f"pictures have different shapes {shapes}; bring them to one size.")
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
    """The pictures of a processor's mapping, as they are; padded ones are refused."""
    if PIXELS not in given:
        raise ValueError(f"pictures are a mapping with {', '.join(map(repr, given))}; '{PIXELS}' is needed.")
    mask = given.get(MASK)
    masks = [mask] if isinstance(mask, Tensor) else (() if mask is None else mask)
    if any(not bool(torch.as_tensor(one).bool().all()) for one in masks):
        raise ValueError(
            f"pictures are padded: '{MASK}' has zeros, and no mask is passed to the detector; let the "
            'processor bring all to one size: size={"height": ..., "width": ...}.'
        )
    return given[PIXELS]


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Of a tensor; None: it is none."""
    return tuple(value.shape) if isinstance(value, Tensor) else None
