"""A symmetric matrix by its lower blocks: a Gram matrix of rows with themselves for about half the work."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

# Fewest rows of a block, and most blocks: few leave much work above the diagonal, small ones are slow.
BLOCK, MOST = 160, 8


def gram_blocks(rows: int, columns: int, *, same: bool) -> list[tuple[slice, slice]]:
    """The blocks to compute: all at once, or, of a matrix of rows with themselves, those on and below the
    diagonal.

    Args:
        rows, columns: Of the matrix.
        same: Whether it is symmetric.
    """
    if not same or rows <= BLOCK:
        return [(slice(0, rows), slice(0, columns))]
    edges = [*range(0, rows, max(BLOCK, math.ceil(rows / MOST))), rows]
    return [(slice(a, b), slice(0, b)) for a, b in pairwise(edges)]


def mirrored(matrix: Tensor, blocks: list[tuple[slice, slice]]) -> Tensor:
    """A matrix whose `gram_blocks` are known, made whole where it lies: shape [n, n]."""
    for rows, _ in blocks:
        corner = matrix[rows, rows]
        corner.copy_(torch.tril(corner) + torch.tril(corner, -1).T)
        matrix[: rows.start, rows] = matrix[rows, : rows.start].T
    return matrix
