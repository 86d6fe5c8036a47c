"""Borders at which the expert that answers changes along a line, and jumps of the error bar there."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Distance of the two sides of a border, in lengths of the line: so large that rounding cannot confuse
# them, and so small that the slope of the error bar changes it by a factor far below any jump of interest.
DISTANCE = 1e-5


def find_borders(
    expert_of: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, *, cells: int
) -> tuple[Tensor, Tensor]:
    """Points [b, d] before and after each border between experts on a straight line, whose ends are [1, d].

    `expert_of` maps points [n, d] to expert numbers [n] and is evaluated on a grid; where the expert changes
    between grid points, the cell is halved until the border is known well within `DISTANCE`. A jump between
    the two sides is then a discontinuity, not a slope. A cell that has several borders gives one of them.
    """

    def points(place: Tensor) -> Tensor:
        return (start.double() + place[:, None] * (end.double() - start.double())).to(start.dtype)

    place = torch.linspace(0, 1, cells + 1, dtype=torch.float64)
    expert = expert_of(points(place)).cpu()
    changed = (expert[1:] != expert[:-1]).nonzero().flatten()
    low, high, first = place[changed], place[changed + 1], expert[changed]
    halvings = math.ceil(math.log2(8 / (DISTANCE * cells)))
    for _ in range(halvings if len(changed) else 0):
        middle = (low + high) / 2
        same = expert_of(points(middle)).cpu() == first
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    before, after = (((low + high) / 2 + shift).clamp(0, 1) for shift in (-DISTANCE / 2, DISTANCE / 2))
    return points(before), points(after)


def jump_factors(left: Tensor, right: Tensor) -> Tensor:
    """Factors max(a/b, b/a) >= 1 of positive numbers a, b on the two sides of a border, in their shape."""
    return torch.maximum(left / right, right / left)
