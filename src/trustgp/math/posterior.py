r"""The posterior of one expert, in the forms it may keep; with less to hold, never of a smaller variance.

All give, per row and before the prior scale s, the unit variance

.. math:: |\text{part of } J(x) \text{ outside the rows' span}|^2
          + \sum_i \tfrac{\tau}{\lambda_i + \tau} (v_i^\top J(x))^2 .

An expert knows m rows with the kernel K and (correlated) noise N. What it has learnt takes
:math:`k(x)^\top (K + N)^{-1} k(x)` from the prior variance. Whoever conditions on less takes less:

* of the rows Z alone, :math:`k_Z(x)^\top (K_{ZZ} + N_{ZZ})^{-1} k_Z(x)`. Among all forms
  :math:`k_Z(x)^\top M k_Z(x)` that take at most as much as the m rows do, for every x, no other takes more
  when K is of full rank: it is the m rows' form, shorted to the span of Z (Anderson and Trapp, 1975);
* in r directions V with orthonormal columns, :math:`|V^\top L^{-1} k(x)|^2`, where L L^T = K + N.

The mean has no such side to err on: it is projected, so that all m rows count through those that stay.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .evidence import factorise

# Of the mean diagonal, against rounding: rows that repeat each other may all be kept.
RIDGE = 1e-10
# Directions that are fewer than one in SPARE are found by iteration, with some EXTRA, in so many ROUNDS.
SPARE, EXTRA, ROUNDS = 5, 16, 3
# Rows on which is judged what a row tells.
JUDGED = 256
# The most that float32 may change a variance, over the prior's.
SAFE = 1e-3
TRIES = 8


def gram_variance(prior: Tensor, cross: Tensor, factor: Tensor) -> Tensor:
    r"""Unit variance from a Gram matrix, as the difference :math:`k(x,x) - |L^{-1} k(x)|^2`.

    Equal to the sum of squares above, but only exact to rounding of k(x, x): float64 is required, and
    the caller must not hide what falls below zero. From k(x, x) [n], k(x, rows) [n, m], both over s, and the
    lower factor L of K + tau I [m, m]; shape [n].
    """
    if cross.dtype != torch.float64:
        raise TypeError(f"the difference needs float64, not {cross.dtype}.")
    white = torch.linalg.solve_triangular(factor, cross.T, upper=False)  # [m, n]
    return prior - white.square().sum(dim=0)


def span_variance(phi: Tensor, basis: Tensor, shrink: Tensor) -> Tensor:
    """Unit variance [n] from explicit features [n, d]: a sum of squares, so never negative in any precision.

    With orthonormal columns V [d, r] and `shrink` tau / (lambda + tau) [r].
    """
    inside = phi @ basis  # [n, r]
    outside = phi - inside @ basis.T  # [n, d]
    return outside.square().sum(dim=1) + (shrink * inside.square()).sum(dim=1)


def span(phi: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    r"""Basis V [d, r] and shrink tau / (lambda + tau) [r] of the span of rows [m, d].

    From :math:`\Phi \Phi^\top = U \Lambda U^\top`. Directions whose eigenvalue is lost in rounding are left
    out: they count as outside the span.
    """
    basis, eigenvalues = _row_space(phi)
    return basis, tau / (eigenvalues + tau)


def noisy_span(phi: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    r"""The same of rows [m, d] seen with correlated noise N, :math:`L L^\top = \Phi \Phi^\top + N`, L [m, m].

    What the rows tell is :math:`\Phi^\top (L L^\top)^{-1} \Phi = V G V^\top`, and 1 - G is left of the prior.
    """
    basis, told = _row_space(torch.linalg.solve_triangular(factor, phi, upper=False))
    return basis, (1.0 - told).clamp_min(0.0)


def _row_space(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Directions of [m, d] that are not lost in rounding [d, r], and their squared singular values [r]."""
    least = max(rows.shape) * torch.finfo(rows.dtype).eps  # of the largest singular value
    if rows.dtype == torch.float64 or len(rows) > rows.shape[1]:
        _, singular, right = torch.linalg.svd(rows, full_matrices=False)
        keep = singular > singular[:1] * least
        return right[keep].T.contiguous(), singular[keep].square()
    # squares in float64 hold all that float32 does, and are turned several times as fast
    wide = rows.double()
    squares, left = torch.linalg.eigh(wide @ wide.T)
    keep = (squares > squares[-1:] * least**2).nonzero().flatten().flip(0)
    right = (wide.T @ left[:, keep]) / squares[keep].sqrt()
    return right.to(rows.dtype), squares[keep].to(rows.dtype)


def variance_reduction_rows(gram: Tensor, count: int, noise: float) -> Tensor:
    r"""Rows in the order in which they tell most about all rows, given those chosen before.

    With C the posterior covariance of the rows, the next one is that with the largest

    .. math:: \sum_i C_{ip}^2 / (C_{pp} + \tau),

    by which the variances of all rows fall together (of at most `JUDGED` of them, evenly spread). The most
    uncertain row is often one that lies apart: it tells of itself alone. No row is taken twice; ties go to
    the first. From K [m, m] and tau come the chosen indices, shape [min(count, m)], int64.
    """
    m = len(gram)
    judged = torch.linspace(0, m - 1, min(m, JUDGED), device=gram.device).long()
    cross, variance = gram[judged], gram.diagonal().clone()
    columns, chosen = gram.new_empty(min(count, m), m), []
    for step in range(min(count, m)):
        gain = cross.square().sum(dim=0) / (variance.clamp_min(0.0) + noise)
        gain[chosen] = -1.0
        pivot = int(gain.argmax())
        root = math.sqrt(max(float(variance[pivot]), 0.0) + noise)
        column = (gram[pivot] - columns[:step, pivot] @ columns[:step]) / root
        cross.addr_(column[judged], column, alpha=-1.0)
        variance -= column.square()
        columns[step] = column
        chosen.append(pivot)
    return torch.tensor(chosen, dtype=torch.int64, device=gram.device)


def projected(cross: Tensor, gram: Tensor, values: Tensor) -> Tensor:
    r"""Weights w [r, B] of the kept rows that come nearest to given values g [n, B] at all rows.

    .. math:: \min_w |K_{nz} w - g|^2 + \epsilon \, w^\top K_{zz} w, \qquad
              (\epsilon K_{zz} + K_{zn} K_{nz}) w = K_{zn} g

    Solved through :math:`K_{zz} = L L^\top`, as a least-squares problem in :math:`L^\top w`: the normal
    equations would square the kernel's condition. `cross` is K_nz [n, r], `gram` K_zz [r, r].
    """
    level = float(gram.diagonal().mean())
    factor, _ = factorise(gram, RIDGE * level)
    phi = torch.linalg.solve_triangular(factor, cross.T, upper=False).T  # [n, r]
    ridge = (RIDGE * level * len(cross)) ** 0.5 * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    stacked = torch.cat([phi, ridge])
    target = torch.cat([values, values.new_zeros(len(gram), values.shape[1])])
    orthonormal, upper = torch.linalg.qr(stacked)
    inside = torch.linalg.solve_triangular(upper, orthonormal.T @ target, upper=True)
    return torch.linalg.solve_triangular(factor.T, inside, upper=True)


def low_rank_root(factor: Tensor, gram: Tensor, rank: int) -> Tensor:
    r"""R [m, r], :math:`R R^\top \le (L L^\top)^{-1}`, of the r <= m directions in which the rows tell most.

    .. math:: R = L^{-\top} V, \qquad L^{-1} K K L^{-\top} = V S V^\top,

    the r leading eigenvectors: they take most from the variances of the rows themselves. With N = tau I they
    are the leading eigenvectors of K, what Lanczos' iteration (LOVE) tends to. L, lower, and K are [m, m].
    """
    white = torch.linalg.solve_triangular(factor, gram, upper=False)
    vectors = _leading(white, rank)
    return torch.linalg.solve_triangular(factor.T, vectors, upper=True)


def _leading(white: Tensor, rank: int) -> Tensor:
    """About the leading left singular vectors of [m, m], orthonormal, shape [m, min(rank, m)].

    Few of many are found by iterating on a subspace, from some of the columns: what is promised holds for any
    orthonormal directions, so those found need only be good.
    """
    m = len(white)
    if SPARE * rank >= m:
        return torch.linalg.eigh(white @ white.T)[1].flip(1)[:, :rank]
    start = torch.linspace(0, m - 1, rank + EXTRA, device=white.device).long()
    space = torch.linalg.qr(white[:, start])[0]
    for _ in range(ROUNDS):
        space = torch.linalg.qr(white @ (white.T @ space))[0]
    left = torch.linalg.svd(space.T @ white, full_matrices=False)[0]
    return space @ left[:, :rank]


def narrowed(root: Tensor, gram: Tensor) -> Tensor | None:
    r"""R [m, r] in float32, shrunk until no row's variance falls by rounding; None: too much would be lost.

    .. math:: |\tilde R^\top k_i|^2 \le |R^\top k_i|^2, \quad
              |R^\top k_i|^2 - |\tilde R^\top k_i|^2 \le 10^{-3} k_{ii}
    """
    before, level = (gram @ root).square().sum(1), gram.diagonal().mean()
    margin = 0.0
    for _ in range(TRIES):
        small = (root * math.sqrt(1.0 - margin)).float()
        after = (gram @ small.double()).square().sum(1)
        moved = float(((before - after).abs() / level).amax())
        if not moved <= SAFE:
            return None
        if bool((after <= before).all()):
            return small
        margin = 2.0 * max(margin, moved)
    return None


def root_variance(prior: Tensor, cross: Tensor, root: Tensor) -> Tensor:
    r"""Unit variance :math:`k(x, x) - |R^\top k(x)|^2` [n] from k(x, x) [n], k(x, rows) [n, m] and R [m, r].

    See `posterior.gram_variance` for what holds; R may have any precision.
    """
    if cross.dtype != torch.float64:
        raise TypeError(f"the difference needs float64, not {cross.dtype}.")
    return prior - (cross @ root.to(cross)).square().sum(dim=1)
