"""The witness as it was written before its cells had posteriors: one loop over rows, no shared code."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def witness_answer(table: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance, novelty and precision of float64 rows, from the tensors of a witness's file."""
    sizes = table["sizes"].tolist()
    own = table["own"].double()[:, None]
    logs = table["kappa"].log()
    average = (own * logs).sum(dim=0) / own.sum()
    kappa = ((own * logs + 20.0 * average) / (own + 20.0)).exp()
    points = (inputs - table["offset"]) / table["spread"]
    rows = [_row(table, sizes, kappa, point) for point in points]
    mean, variance, novelty = (torch.stack(lot) for lot in zip(*rows, strict=True))
    known = (1.0 - novelty) * (table["reach"] / novelty.clamp_min(1e-300)).clamp_max(1.0)
    return mean, variance, novelty, known[:, None] / variance


def _row(
    table: dict[str, Tensor], sizes: list[int], kappa: Tensor, point: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [C], variance [C] and novelty of one scaled point."""
    cell = int((table["centroids"] - point).square().sum(dim=1).argmin())
    start, m = sum(sizes[:cell]), sizes[cell]
    held, weights = table["inputs"][start : start + m], table["weights"][start : start + m]
    apart = (held - point).square().sum(dim=1).sqrt() / table["length"]
    cross = torch.exp(-0.5 * apart.square())
    if "root" in table:
        ranks = table["ranks"].tolist()
        first = sum(a * b for a, b in zip(sizes[:cell], ranks[:cell], strict=True))
        root = table["root"][first : first + m * ranks[cell]].view(m, ranks[cell]).double()
        taken = (root.T @ cross).square().sum()
    else:
        factor = _factor(table["factor"], sizes, cell)
        taken = torch.linalg.solve(factor, cross).square().sum()
    novelty = (1.0 - taken).clamp(0.0, 1.0)
    mean = table["centre"][cell] + cross @ weights
    variance = kappa[cell] * table["scale"][cell] * (novelty + table["tau"][cell])
    return mean, torch.maximum(variance, table["floor"]), novelty


def _factor(flat: Tensor, sizes: list[int], cell: int) -> Tensor:
    """A lower triangle out of those laid end to end, row by row."""
    start, m = sum(math.comb(size + 1, 2) for size in sizes[:cell]), sizes[cell]
    factor = torch.zeros(m, m, dtype=torch.float64)
    for line in range(m):
        factor[line, : line + 1] = flat[start : start + line + 1]
        start += line + 1
    return factor
