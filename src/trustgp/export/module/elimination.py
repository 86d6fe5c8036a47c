"""Gaussian elimination in operations that every format has."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

PANEL = 8  # rows that are eliminated one by one, between products with all earlier ones


def panels_of(size: int) -> list[tuple[int, int]]:
    """First row of each panel of a matrix, and the row after its last."""
    return [(start, min(start + PANEL, size)) for start in range(0, size, PANEL)]


def inverse_products(panels: Sequence[Tensor]) -> Tensor:
    r""":math:`k^\top G^{-1} (k \; T)` of positive definite matrices G.

    With :math:`G = L D L^\top` it computes the rows of :math:`U = D^{-1} L^{-1} (G \; k \; T)`. G and
    what remains of it are symmetric: the column below a pivot is the row beside it, so only rows are stored.

    Args:
        panels: The rows of (G k T) from the diagonal on, by `panels_of`, shapes [n, b, p - start + 1 + C].

    Returns:
        Shape [n, 1, 1 + C].
    """
    rows, pivots = _eliminated(panels[0])
    unit, diagonal = torch.cat(rows, dim=1), torch.cat(pivots, dim=2)  # rows of U [n, i, w], D [n, 1, i]
    for before, panel in pairwise(panels):
        unit = unit[:, :, before.shape[1] :]
        rows, pivots = _eliminated(panel - _factors(unit, diagonal, panel.shape[1]) @ unit)
        unit, diagonal = torch.cat([unit, *rows], dim=1), torch.cat([diagonal, *pivots], dim=2)
    unit = unit[:, :, panels[-1].shape[1] :]
    return _factors(unit, diagonal, 1) @ unit


def _factors(unit: Tensor, diagonal: Tensor, size: int) -> Tensor:
    """Factors of the earlier rows of U that are subtracted from the next rows, shape [n, size, i]."""
    return unit[:, :, :size].mT * diagonal


def _eliminated(rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Rows of U [n, 1, w] and their entries of D [n, 1, 1], from the rows that elimination left [n, b, w]."""
    units, pivots, last = [], [], rows.shape[1] - 1
    for i in range(last + 1):
        row, rows = rows.split([1, last - i], dim=1) if i < last else (rows, rows)
        pivots.append(row[:, :, i : i + 1])
        units.append(row / pivots[-1])
        if i < last:
            rows = rows - rows[:, :, i : i + 1] * units[-1]
    return units, pivots
