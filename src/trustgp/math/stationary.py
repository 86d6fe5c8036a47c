"""A stationary kernel on vectors, and the one length and noise ratio that suit several sets of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from .evidence import profile_losses

# In multiples of the median distance, and of the kernel's diagonal. Below 1e-8 float64 could no longer
# take the variance as a difference.
LENGTHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4)
RATIOS = (1e-8, 1e-6, 1e-4, 1e-2)


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Between all rows of [n, d] and [m, d], shape [n, m].

    From the differences themselves: |x|^2 + |x'|^2 - 2 x.x' would lose what is small beside |x|, and with it
    the kernel's positive definiteness where one row lies far from all others.
    """
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def squared_exponential(first: Tensor, second: Tensor, length: Tensor) -> Tensor:
    """exp(-|x - x'|^2 / (2 l^2)) of all rows of [n, d] and [m, d], shape [n, m]."""
    # in place: of matrices this large there should be few
    return distances(first, second).div_(length).square_().mul_(-0.5).exp_()


def choose_length(
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    typical: Tensor,
    *,
    each: Callable[[Callable, Sequence[float]], Iterable[list[float]]] = map,
) -> tuple[Tensor, Tensor]:
    """The length l and noise ratio tau with the highest evidence on all sets together, from a grid.

    Every set of inputs [m, d] and centred targets [m, C] keeps its own scale of each output (in closed form);
    what they share is how smooth they are. The unit of the lengths is a `typical` distance between rows, and
    `each` is like `map`, results in order: lengths may be tried side by side.
    """

    def losses_of(length: float) -> list[float]:
        ratios = typical.new_tensor(RATIOS).log()
        losses = torch.zeros_like(ratios)
        for rows, values in zip(inputs, targets, strict=True):
            losses += profile_losses(squared_exponential(rows, rows, length * typical), values, ratios)
        return losses.tolist()

    best, chosen = float("inf"), (LENGTHS[-1], RATIOS[-1])
    for length, losses in zip(LENGTHS, each(losses_of, LENGTHS), strict=True):
        for loss, ratio in zip(losses, RATIOS, strict=True):
            if loss < best:
                best, chosen = loss, (length, ratio)
    return chosen[0] * typical, typical.new_tensor(chosen[1])
