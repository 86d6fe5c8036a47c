"""Where does the answering expert change along a line, and by how much does the error bar jump there?"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trustgp import plots

from .claim import change
from .grid import Grid

# Distance of the two sides of a border, in lengths of the line: so large that rounding cannot confuse
# them, and so small that the slope of the error bar changes it by a factor far below any jump of interest.
DISTANCE = 1e-5


@dataclass(frozen=True)
class Borders:
    """Where the expert changes: line [b], place in [0, 1] on it [b], the points on its two sides [b, d]."""

    line: Tensor
    place: Tensor
    left: Tensor
    right: Tensor

    def __len__(self) -> int:
        return len(self.line)


def find_borders(
    expert_of: Callable[[Tensor], Tensor], starts: Tensor, ends: Tensor, *, cells: int = 64
) -> Borders:
    """Borders between experts along straight lines [l, d], each located by bisection.

    The expert (from points [n, d] to its number [n]) is looked up on a grid; where it changes from one grid
    point to the next, the cell is halved until the border is known well within `DISTANCE`. A jump between the
    two sides is then a discontinuity, not a slope. A cell that several borders share gives one of them.
    """
    line = torch.arange(len(starts)).repeat_interleave(cells + 1)
    place = torch.linspace(0, 1, cells + 1, dtype=torch.float64).repeat(len(starts))
    expert = expert_of(_points(starts, ends, line, place)).cpu()
    changed = ((expert[1:] != expert[:-1]) & (line[1:] == line[:-1])).nonzero().flatten()
    line, low, high, first = line[changed], place[changed], place[changed + 1], expert[changed]
    halvings = math.ceil(math.log2(8 / (DISTANCE * cells)))
    for _ in range(halvings if len(changed) else 0):
        middle = (low + high) / 2
        same = expert_of(_points(starts, ends, line, middle)).cpu() == first
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    return both_sides(starts, ends, line, (low + high) / 2)


def both_sides(starts: Tensor, ends: Tensor, line: Tensor, place: Tensor) -> Borders:
    """The points half of `DISTANCE` before and after places [b] in [0, 1] on some of the lines."""
    shift = DISTANCE / 2
    left, right = (_points(starts, ends, line, (place + s).clamp(0, 1)) for s in (-shift, shift))
    return Borders(line, place, left, right)


def jump_factors(left: Tensor, right: Tensor) -> Tensor:
    """max(a/b, b/a) >= 1 of positive numbers a, b on the two sides of a border; the shape of both."""
    return torch.maximum(left / right, right / left)


def jump_words(grid: Grid, names: Mapping[str, str], mean: str, largest: str, *at: str) -> list[str]:
    """How the mean and the largest jump of each variant, the last axis, differ from the first's."""

    def from_first(variant: str, measure: str) -> str:
        before, after = (grid.values((*at, name), measure) or () for name in (next(iter(names)), variant))
        return change(before, after)

    return [
        f"With {names[name]}, the mean jump of the std {from_first(name, mean)}; the largest "
        f"{from_first(name, largest)}."
        for name in list(names)[1:]
    ]


def draw_borders(axes: Any, places: Iterable[float]) -> None:
    """Dotted lines at the borders between experts."""
    for place in places:
        axes.axvline(place, color=plots.GREY, linewidth=0.8, linestyle=(0, (2, 2)))


def _points(starts: Tensor, ends: Tensor, line: Tensor, place: Tensor) -> Tensor:
    start, end = starts[line].double(), ends[line].double()
    return (start + place[:, None] * (end - start)).to(starts.dtype)
