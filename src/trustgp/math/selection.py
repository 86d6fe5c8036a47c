"""Active selection: which rows an expert keeps, most uncertain first."""

from __future__ import annotations

import torch
from torch import Tensor

from .evidence import factorise


def condition(gram: Tensor, cross: Tensor, given: Tensor, noise: float) -> Tensor:
    r"""Posterior covariance of candidates, given noisy observations of other rows.

    .. math:: K_{cc} - K_{co} (K_{oo} + \tau I)^{-1} K_{oc}

    Args:
        gram: K_cc, shape [n, n].
        cross: K_oc, shape [m, n].
        given: K_oo, shape [m, m].
        noise: tau.
    """
    factor, _ = factorise(given, noise)
    white = torch.linalg.solve_triangular(factor, cross, upper=False)
    return gram - white.T @ white


def greedy_rows(covariance: Tensor, count: int, noise: float) -> Tensor:
    r"""Rows in the order of largest posterior variance given the rows chosen before.

    A pivoted Cholesky factorisation of K + tau I: choosing row p with pivot
    :math:`\pi = v_p + \tau` lowers every variance by the square of
    :math:`\ell = (K_{\cdot p} - L L_p^\top) / \sqrt\pi`. No row is taken twice; ties go to the first.

    Args:
        covariance: Covariance of the candidates, shape [n, n].
        count: How many rows to choose; all of them, in order, if there are fewer.
        noise: tau.

    Returns:
        Chosen indices, shape [min(count, n)], int64.
    """
    n = len(covariance)
    count = min(count, n)
    variance = covariance.diagonal().clone()
    columns = covariance.new_zeros(count, n)
    chosen = torch.empty(count, dtype=torch.int64, device=covariance.device)
    taken = torch.zeros(n, dtype=torch.bool, device=covariance.device)
    for step in range(count):
        pivot = torch.where(taken, -torch.inf, variance).argmax()
        chosen[step] = pivot
        taken[pivot] = True
        column = covariance[:, pivot] - columns[:step, pivot] @ columns[:step]
        columns[step] = column / (variance[pivot].clamp_min(0.0) + noise).sqrt()
        variance = variance - columns[step].square()
    return chosen
