r"""The posterior of one expert, in the two forms an expert may keep.

Both give, per row and before the prior scale s, the unit variance

.. math:: |\text{part of } J(x) \text{ outside the rows' span}|^2
          + \sum_i \tfrac{\tau}{\lambda_i + \tau} (v_i^\top J(x))^2 .
"""

from __future__ import annotations

import torch
from torch import Tensor


def gram_variance(prior: Tensor, cross: Tensor, factor: Tensor) -> Tensor:
    r"""Unit variance from a Gram matrix, as the difference :math:`k(x,x) - |L^{-1} k(x)|^2`.

    Equal to the sum of squares above, but only exact to rounding of k(x, x): float64 is required, and
    the caller must not hide what falls below zero.

    Args:
        prior: k(x, x) / s, shape [n].
        cross: k(x, rows) / s, shape [n, m].
        factor: Lower Cholesky factor L of K + tau I, shape [m, m].

    Returns:
        Shape [n].
    """
    if cross.dtype != torch.float64:
        raise TypeError(f"the difference needs float64, not {cross.dtype}.")
    white = torch.linalg.solve_triangular(factor, cross.T, upper=False)  # [m, n]
    return prior - white.square().sum(dim=0)


def inverse_factor(factor: Tensor) -> Tensor:
    """L^-1 of a lower factor L [m, m], float64, shape [m, m]."""
    eye = torch.eye(len(factor), dtype=torch.float64, device=factor.device)
    return torch.linalg.solve_triangular(factor.double(), eye, upper=False)


def span_variance(phi: Tensor, basis: Tensor, shrink: Tensor) -> Tensor:
    r"""Unit variance from explicit features: a sum of squares, so never negative in any precision.

    Args:
        phi: Feature rows, shape [n, d].
        basis: Orthonormal columns V, shape [d, r].
        shrink: tau / (lambda + tau), shape [r].

    Returns:
        Shape [n].
    """
    inside = phi @ basis  # [n, r]
    outside = phi - inside @ basis.T  # [n, d]
    return outside.square().sum(dim=1) + (shrink * inside.square()).sum(dim=1)


def span(phi: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    r"""Basis and shrinkage of the rows' span, from :math:`\Phi \Phi^\top = U \Lambda U^\top`.

    Directions whose eigenvalue is lost in rounding are left out: they count as outside the span.

    Args:
        phi: Feature rows of the expert, shape [m, d].
        tau: Noise ratio, a scalar.

    Returns:
        basis V of shape [d, r] and shrink tau / (lambda + tau) of shape [r].
    """
    basis, eigenvalues = _row_space(phi)
    return basis, tau / (eigenvalues + tau)


def noisy_span(phi: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    r"""Basis and shrinkage of rows seen with correlated noise N, :math:`L L^\top = \Phi \Phi^\top + N`.

    What the rows tell is :math:`\Phi^\top (L L^\top)^{-1} \Phi = V G V^\top`, and 1 - G is left of the prior.

    Args:
        phi: Feature rows, shape [m, d].
        factor: L, shape [m, m].

    Returns:
        basis V of shape [d, r] and shrink 1 - G of shape [r].
    """
    basis, told = _row_space(torch.linalg.solve_triangular(factor, phi, upper=False))
    return basis, (1.0 - told).clamp_min(0.0)


def _row_space(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Directions of [m, d] that are not lost in rounding [d, r], and their squared singular values [r]."""
    _, singular, right = torch.linalg.svd(rows, full_matrices=False)
    keep = singular > singular[:1] * max(rows.shape) * torch.finfo(rows.dtype).eps
    return right[keep].T.contiguous(), singular[keep].square()
