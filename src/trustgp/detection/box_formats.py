"""Boxes in the formats in which people have them: brought to corners in pixels, or refused with what they
look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics.boxes import corners

FORMATS = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre, width, height",
}
SLACK = 1.0  # pixels by which a box may leave its picture
TINY = 16  # pixels of a side: in a smaller picture boxes in pixels may lie between 0 and 1


@dataclass(frozen=True)
class BoxFormat:
    """What the four numbers of a box are, and in which unit."""

    name: str  # one of FORMATS
    relative: bool  # in shares of the picture's width and height, not in pixels

    def __str__(self) -> str:
        return f"{FORMATS[self.name]} " + ("as shares of the picture" if self.relative else "in pixels")

    @property
    def said(self) -> str:
        """How a user says it."""
        return f'Things(boxes, labels, format="{self.name}"' + (", relative=True)" if self.relative else ")")

    def corners(self, boxes: Tensor, sides: tuple[int, int]) -> Tensor:
        """Left, top, right, bottom in pixels of boxes [k, 4] of a picture of this height and width."""
        if self.relative:
            boxes = boxes * boxes.new_tensor([sides[1], sides[0]] * 2)
        if self.name == "xywh":
            return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)
        return corners(boxes) if self.name == "cxcywh" else boxes


@dataclass(frozen=True)
class PictureBoxes:
    """The boxes of one picture, as they were given."""

    values: Tensor  # [k, 4]
    format: BoxFormat
    sides: tuple[int, int]  # height and width of the picture

    def corners(self, format: BoxFormat | None = None) -> Tensor:
        """Left, top, right, bottom in pixels, [k, 4]; as if they had another format; None: their own."""
        return (format or self.format).corners(self.values, self.sides)

    def fits(self, format: BoxFormat | None = None) -> Tensor:
        """Which boxes are not empty and lie in the picture, or nearly, bool [k]."""
        found = self.corners(format)
        edge = found.new_tensor([self.sides[1], self.sides[0]] * 2) + SLACK
        inside = torch.isfinite(found) & (found >= -SLACK) & (found <= edge)
        return inside.all(dim=1) & (found[:, 2:] > found[:, :2]).all(dim=1)

    @property
    def within_one(self) -> bool:
        """Whether all numbers lie between 0 and 1, in a picture where pixels do not."""
        return min(self.sides) >= TINY and bool(((self.values >= 0) & (self.values <= 1)).all())


def checked_corners(given: Sequence[PictureBoxes], name: str, *, first: int = 0) -> list[Tensor]:
    """Left, top, right, bottom in pixels, [k, 4] for each picture; `name`, and the number of the first
    picture, are for errors.

    Boxes that cannot be what they are said to be are refused; where all of one format fit another one, the
    error says which, and how to say so.
    """
    for format in {one.format: None for one in given}:
        alike = [one for one in given if one.format == format and len(one.values)]
        if alike and not format.relative and all(one.within_one for one in alike):
            height, width = alike[0].sides
            raise ValueError(
                f"{name}: all boxes lie between 0 and 1, in pictures of {width} x {height} pixels; they are "
                f"to be {format}.{_suggested(alike)}"
            )
    for i, one in enumerate(given, start=first):
        bad = ~one.fits()
        if bool(bad.any()):
            height, width = one.sides
            alike = [other for other in given if other.format == one.format and len(other.values)]
            raise ValueError(
                f"{name}, picture {i}: box {one.values[bad][0].tolist()} is empty or leaves the picture, "
                f"{width} x {height}; boxes are {one.format}.{_suggested(alike)}"
            )
    return [one.corners() for one in given]


def _suggested(alike: Sequence[PictureBoxes]) -> str:
    """Formats that all boxes fit, and how to say them; empty: none."""
    others = (BoxFormat(name, relative) for relative in (False, True) for name in FORMATS)
    shares = all(one.within_one for one in alike)
    fitting = [
        other
        for other in others
        if other != alike[0].format
        and other.relative >= shares
        and all(bool(one.fits(other).all()) for one in alike)
    ]
    if not fitting:
        return ""
    count = sum(len(one.values) for one in alike)
    told = " or ".join(f"{other}: {other.said}" for other in fitting)
    return f" {f'All {count}' if count > 1 else 'It'} would fit as {told}."
