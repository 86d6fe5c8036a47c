r"""The posterior of one expert, in the forms it may keep; with less to hold, never of a smaller variance.

All give, per row and before the prior scale s, the unit variance

.. math:: |\text{part of } J(x) \text{ outside the rows' span}|^2
          + \sum_i \tfrac{\tau}{\lambda_i + \tau} (v_i^\top J(x))^2 .

A direction v_i that is left out counts as outside the span: with 1 in place of tau / (lambda_i + tau).
"""

from __future__ import annotations

import torch
from torch import Tensor


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

    With orthonormal columns V [d, r] and `shrink` tau / (lambda + tau) [r], float64, as what comes out.
    """
    inside = phi @ basis  # [n, r]
    outside = torch.addmm(phi, inside, basis.T, alpha=-1)  # [n, d]
    lost = torch.linalg.vector_norm(outside, dim=1, dtype=torch.float64)
    return lost.square() + inside.double().square() @ shrink.double()


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
