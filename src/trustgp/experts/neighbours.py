"""Patchwork: neighbours of experts, and the rows that they share."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

DEFAULT_FRACTION, MIN_BORROWED = 0.1, 25  # rows from each neighbour: share of an average expert's, minimum
MIN_VOTES = 2  # rows on a border; a single row between two experts is chance


@dataclass(frozen=True)
class Patchwork:
    """Rows that an expert borrows from its neighbours, so that the error bar has no steps.

    Args:
        neighbours: Maximum number of neighbours of each expert; 0 gives independent local experts.
        fraction: Rows from each neighbour, as a share of an average expert's rows; None: a tenth, and at
            least 25 rows: very few would make the steps larger.

    Examples:
        >>> alone = trustgp.Patchwork(neighbours=0)
        >>> model = trustgp.fit(network, train, patchwork=alone, progress=False)
    """

    neighbours: int = 4
    fraction: float | None = None

    def __post_init__(self) -> None:
        if self.neighbours < 0:
            raise ValueError(f"neighbours={self.neighbours}; pass 0 or more.")
        if self.fraction is not None and not 0.0 <= self.fraction <= 1.0:
            raise ValueError(f"fraction={self.fraction}; it must lie between 0 and 1.")


def neighbour_lists(nearest: Tensor, second: Tensor, centroids: Tensor, neighbours: int) -> list[list[int]]:
    """Neighbours of each expert: by votes of the rows on their border, then across gaps in the data.

    Experts i and j are neighbours when they are the nearest and second-nearest centroid of enough rows;
    this works in any dimension. A border inside a gap has no rows, so remaining places go to experts with no
    third one between: the midpoint of the two centroids [M, q] has just these two as its nearest.
    """
    count = len(centroids)
    if count < 2 or neighbours == 0:
        return [[] for _ in range(count)]
    votes = torch.bincount(nearest * count + second, minlength=count**2).view(count, count)
    votes = votes + votes.T
    lists = []
    for i in range(count):
        order = votes[i].argsort(descending=True, stable=True)
        order = order[(votes[i, order] >= MIN_VOTES) & (order != i)]
        voted = order[:neighbours].tolist()
        across = (j for j in _facing(i, centroids) if j not in voted)
        lists.append(voted + list(islice(across, neighbours - len(voted))))
    return lists


def _facing(expert: int, centroids: Tensor) -> Iterator[int]:
    """Yield the experts with no third one between theirs and this centroid, the closest first."""
    own = centroids[expert]
    distance = (centroids - own).square().sum(dim=1)
    for j in distance.argsort(stable=True).tolist():
        middle = (own + centroids[j]) / 2
        nearer = (centroids - middle).square().sum(dim=1) < distance[j] / 4 * (1 - 1e-9)
        if j != expert and not bool(nearer.any()):
            yield j


def border_rows(rows: Tensor, points: Tensor, expert: Tensor, neighbour: Tensor, count: int) -> Tensor:
    """The `count` of a neighbour's rows [k] that lie nearest to the border: the candidates to borrow.

    The border lies between the two centroids [q]; `points` are the components of all rows [n, q].
    """
    own = points[rows]
    excess = (own - expert).square().sum(dim=1).sqrt() - (own - neighbour).square().sum(dim=1).sqrt()
    return rows[excess.argsort(stable=True)[:count]].sort().values


CANDIDATES = 2  # border rows offered for each row that is borrowed


def lend_rows(patchwork: Patchwork, n: int, num_experts: int) -> int:
    """Number of rows borrowed from each neighbour: a share of an average expert's rows."""
    least = min(MIN_BORROWED, math.ceil(n / num_experts)) if patchwork.fraction is None else 0
    share = DEFAULT_FRACTION if patchwork.fraction is None else patchwork.fraction
    return max(least, math.ceil(share * n / num_experts)) if patchwork.neighbours else 0
