"""Kernel PCA of the centred kernel on a subset of rows, and the bound of the division."""

from __future__ import annotations

import torch
from torch import Tensor


def principal_components(gram: Tensor, components: int) -> tuple[Tensor, Tensor]:
    r"""Coefficients A and offset o such that a row's components are :math:`z(x) = k(x, S) A - o`.

    A holds the leading eigenvectors of the centred Gram matrix over the roots of their eigenvalues; its
    columns sum to zero, so centring a new row reduces to the constant offset o.

    Args:
        gram: Kernel on the subset S, shape [m, m].
        components: q; fewer come back when the kernel has fewer directions.

    Returns:
        A of shape [m, q] and o of shape [q].
    """
    column_mean = gram.mean(dim=0)
    centred = gram - column_mean - column_mean[:, None] + gram.mean()
    values, vectors = torch.linalg.eigh(centred)
    values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
    # against the kernel itself: the centred kernel of identical rows is nothing but rounding
    keep = values > gram.diagonal().max() * len(gram) * torch.finfo(gram.dtype).eps
    vectors = vectors[:, keep]
    # The sign of an eigenvector is arbitrary: fix it, so that the same kernel gives the same gate.
    top = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)) if keep.any() else vectors[:1]
    coefficients = vectors * torch.sign(top) / values[keep].sqrt()
    coefficients = coefficients - coefficients.mean(dim=0)
    return coefficients, column_mean @ coefficients


def mass_between(gram: Tensor, labels: Tensor) -> Tensor:
    r"""Share of the squared kernel mass that falls between experts, the paper's approximation bound.

    .. math:: \|K - \mathrm{blockdiag}(K)\|_F^2 / \|K\|_F^2 \in [0, 1]

    Args:
        gram: K, shape [n, n].
        labels: Expert of each row, shape [n].
    """
    squared = gram.square()
    within = labels[:, None] == labels[None, :]
    total = squared.sum()
    return torch.where(total > 0, (squared * ~within).sum() / total, torch.zeros_like(total))
