r"""The posterior variance of one expert, from a Gram matrix or from a basis, truncated or not.

`gram_variance` and `span_variance` give, per row and before the prior scale s, the unit variance

.. math:: |\text{part of } J(x) \text{ outside the rows' span}|^2
          + \sum_i \tfrac{\tau}{\lambda_i + \tau} (v_i^\top J(x))^2 .

A direction v_i that is left out counts as outside the span, with 1 in place of tau / (lambda_i + tau): a
truncated posterior never has a smaller variance.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gram_variance(prior: Tensor, cross: Tensor, factor: Tensor) -> Tensor:
    r"""Unit variance from a Gram matrix, as the difference :math:`k(x,x) - |L^{-1} k(x)|^2`.

    Equal to the sum of squares above up to rounding of k(x, x): float64 is required, and the caller must
    report values below zero. The arguments are k(x, x) [n] and k(x, rows) [n, m], both
    over s, and the lower factor L of K + tau I [m, m]; the result is [n].
    """
    if cross.dtype != torch.float64:
        raise TypeError(f"the difference needs float64, not {cross.dtype}.")
    white = torch.linalg.solve_triangular(factor, cross.T, upper=False)  # [m, n]
    return prior - white.square().sum(dim=0)


def span_variance(phi: Tensor, basis: Tensor, root: Tensor) -> Tensor:
    """Unit variance [B, n] from explicit features [B, n, d]: a sum of squares, so never negative in any
    precision.

    `basis` has orthonormal columns V [B, d, r], `root` is the root of tau / (lambda + tau) [B, 1, r], both in
    the features' precision; the variance is float64.
    """
    inside = torch.bmm(phi, basis)  # [B, n, r]
    outside = torch.baddbmm(phi, inside, basis.mT, alpha=-1)  # [B, n, d]
    parts = torch.cat([outside, inside * root], dim=2)
    return torch.linalg.vector_norm(parts, dim=2, dtype=torch.float64).square()


def span(phi: Tensor, tau: Tensor, spectrum: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    r"""Basis V [d, r] and shrinkage tau / (lambda + tau) [r] of the span of rows [m, d], float64.

    It comes from the smaller of :math:`\Phi \Phi^\top = U \Lambda U^\top`, whose Lambda and U may be given as
    `spectrum`, with :math:`V = \Phi^\top U \Lambda^{-1/2}`, and :math:`\Phi^\top \Phi = V \Lambda
    V^\top`. Directions whose eigenvalue is below rounding are left out.
    """
    wide = len(phi) <= phi.shape[1]
    values, basis = torch.linalg.eigh(phi.T @ phi) if not wide else spectrum or torch.linalg.eigh(phi @ phi.T)
    keep = values > values[-1:] * max(phi.shape) * torch.finfo(phi.dtype).eps
    values, basis = values[keep].flip(0), basis[:, keep].flip(1)
    if wide:
        basis = (phi.T @ basis) / values.sqrt()
        basis = basis @ (1.5 * torch.eye(len(values)).to(basis) - 0.5 * basis.T @ basis)  # against rounding
    return basis.contiguous(), tau / (values + tau)
