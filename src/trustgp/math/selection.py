"""Active selection: which rows an expert keeps, most uncertain first."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .evidence import factorise

# Noise ratio assumed while rows are chosen, before the evidence has spoken, over the mean diagonal.
SELECTION_NOISE = 1e-4
CONTENDERS = 128  # rows among which the next ones are chosen together


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


def pivoted_cholesky_rows(covariance: Tensor, count: int, noise: float) -> Tensor:
    r"""Rows in the order of largest posterior variance given the rows chosen before.

    A pivoted Cholesky factorisation of K + tau I: choosing row p with pivot
    :math:`\pi = v_p + \tau` lowers every variance by the square of
    :math:`\ell = (K_{\cdot p} - L L_p^\top) / \sqrt\pi`. No row is taken twice; ties go to the first.

    Variances only fall, so among the most uncertain rows of the moment the next ones can be chosen without
    a look at the others, until one of these may be more uncertain. They are taken together, which makes
    large products of many small ones.

    Args:
        covariance: Covariance of the candidates, shape [n, n].
        count: How many rows to choose; all of them, in order, if there are fewer.
        noise: tau.

    Returns:
        Chosen indices, shape [min(count, n)], int64.
    """
    n, done, chosen = len(covariance), 0, []
    count = min(count, n)
    variance = covariance.diagonal().clone()
    columns = covariance.new_empty(count, n)
    while done < count:
        top = variance.topk(min(n - done, CONTENDERS + 1))
        bound = float(top.values[-1]) if n - done > CONTENDERS else -math.inf
        rows = top.indices[:CONTENDERS].sort().values  # ties go to the first
        known = columns[:done, rows]
        block = covariance[rows][:, rows] - known.T @ known
        winners, corner = _contest(block.cpu().numpy(), min(count - done, len(rows)), noise, bound)
        taken = rows[torch.from_numpy(winners).to(rows.device)]
        fresh = covariance[taken] - columns[:done, taken].T @ columns[:done]
        lower = torch.from_numpy(corner).to(covariance)
        fresh = torch.linalg.solve_triangular(lower, fresh, upper=False)
        columns[done : done + len(taken)] = fresh
        variance -= fresh.square().sum(dim=0)
        variance[taken] = -math.inf
        chosen.append(taken)
        done += len(taken)
    return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64, device=covariance.device)


def _contest(block: np.ndarray, count: int, noise: float, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """The next rows among a few, while none elsewhere can have a variance above theirs; at least one.

    Args:
        block: Posterior covariance of the few, shape [k, k].
        count: The most to choose.
        noise: tau.
        bound: The largest variance elsewhere.

    Returns:
        The chosen rows, shape [p], and their factor of K + tau I, lower, shape [p, p].
    """
    variance = block.diagonal().copy()
    columns = np.zeros((count, len(block)))
    chosen: list[int] = []
    for step in range(count):
        pivot = int(variance.argmax())
        if step and variance[pivot] < bound:
            break
        root = math.sqrt(max(float(variance[pivot]), 0.0) + noise)
        columns[step] = (block[pivot] - columns[:step, pivot] @ columns[:step]) / root
        variance -= columns[step] ** 2
        variance[pivot] = -math.inf
        columns[step, pivot] = root
        chosen.append(pivot)
    return np.array(chosen), np.tril(columns[: len(chosen), chosen].T)
