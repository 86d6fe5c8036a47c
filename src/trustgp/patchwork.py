"""Patchwork: which experts are neighbours, and how many rows they lend each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FEWEST_VOTES = 2  # rows on a border; one row between two experts is chance


@dataclass(frozen=True)
class Patchwork:
    """An expert also sees a few rows of its neighbours, so that the error bar has no steps.

    Args:
        neighbours: At most so many neighbours for each expert; 0 gives independent local experts.
        fraction: Rows from each neighbour, as a share of an average expert's rows.
    """

    neighbours: int = 4
    fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.neighbours < 0:
            raise ValueError(f"neighbours={self.neighbours}; 0 or more are possible.")
        if not 0.0 <= self.fraction <= 1.0:
            raise ValueError(f"fraction={self.fraction}; it must lie between 0 and 1.")


def neighbour_lists(nearest: Tensor, second: Tensor, num_experts: int, neighbours: int) -> list[list[int]]:
    """Neighbours of each expert, by votes of the rows on their border, most votes first.

    Experts i and j are neighbours when they are the nearest and second-nearest centroid of enough rows;
    this needs no geometry and works in any dimension.

    Args:
        nearest: Nearest expert of each row, shape [n].
        second: Second-nearest expert of each row, shape [n].
        num_experts: M.
        neighbours: How many to keep for each expert.
    """
    if num_experts < 2 or neighbours == 0:
        return [[] for _ in range(num_experts)]
    votes = torch.bincount(nearest * num_experts + second, minlength=num_experts**2)
    votes = votes.view(num_experts, num_experts)
    votes = votes + votes.T
    order = votes.argsort(dim=1, descending=True, stable=True)[:, :neighbours]
    return [[int(j) for j in row if j != i and votes[i, j] >= FEWEST_VOTES] for i, row in enumerate(order)]


def border_rows(expert: int, neighbour: int, nearest: Tensor, second: Tensor) -> Tensor:
    """Rows of `neighbour` that would go to `expert` next: the candidates to be lent."""
    return ((nearest == neighbour) & (second == expert)).nonzero().flatten()
