"""Leave-one-out and leave-group-out predictions in closed form."""

from collections.abc import Callable

import torch
from torch import Tensor


def leave_out(inverse: Tensor, residual: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""Errors [m, C] and variances over s [m], noise included, when each row, or its group, is left out.

    .. math:: e_B = Q_{BB}^{-1} (Q r)_B, \qquad \mathrm{cov}_B = s \, Q_{BB}^{-1},

    where Q = (K + tau I)^-1 is `inverse` [m, m], r `residual` [m, C], and B a row, or one of the groups [m].
    """
    weights, diagonal = inverse @ residual, inverse.diagonal()
    if groups is None:
        return weights / diagonal[:, None], 1.0 / diagonal

    def left(rows: Tensor) -> tuple[Tensor, Tensor]:
        covariance = torch.linalg.inv(inverse[rows][:, rows])
        return covariance @ weights[rows], covariance.diagonal()

    return by_group(left, residual, groups)


def by_group(
    left: Callable[[Tensor], tuple[Tensor, Tensor]], residual: Tensor, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """Errors and variances that `left` returns for each group, at the positions of its rows."""
    errors, variances = torch.empty_like(residual), torch.empty_like(residual[:, 0])
    sizes = groups.unique(return_counts=True)[1].tolist()
    for rows in groups.argsort(stable=True).split(sizes):
        errors[rows], variances[rows] = left(rows)
    return errors, variances
