r"""Many rows through few: which rows are kept, and components and posterior in terms of them.

With the kernel :math:`K_{zz} = L L^\top` of the r landmarks, and :math:`\Phi = K_{nz} L^{-\top}`, shape
[m, r], the kernel of the rows is taken as

.. math:: \tilde K = \Phi \Phi^\top = K_{nz} K_{zz}^{-1} K_{zn},

never more than the kernel itself. With :math:`\Phi^\top \Phi = V \Lambda V^\top` the evidence, the left-out
rows and the posterior have closed forms in the noise ratio tau. What the landmarks do not span counts as
unknown:

.. math:: \tfrac{\mathrm{var}(x)}{s} = k(x, x)
          - k_z(x)^\top \big( K_{zz}^{-1} - \tau (\tau K_{zz} + K_{zn} K_{nz})^{-1} \big) k_z(x) .

The matrix in the middle is the inverse of :math:`K_{zz} + \tau K_{zz} (K_{zn} K_{nz})^{-1} K_{zz}`: the
landmarks answer like rows of their own with correlated noise, the less the more rows lie near them. Where
all rows are landmarks that is :math:`K + \tau I`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .evidence import HIGHEST, LOWEST, FactorisationError, factorise, least_on_grid

# Of the mean diagonal: rows that repeat each other may all be landmarks.
NUGGET = 1e-10
# What a direction that no row shows may count, as noise over signal.
FAINTEST = 1e12
# Noise ratio assumed while rows are chosen, before the evidence has spoken, over the mean diagonal.
SELECTION_NOISE = 1e-4
CONTENDERS = 128  # rows among which the next ones are chosen together


@dataclass(frozen=True)
class LowRank:
    """The kernel of m rows through r landmarks."""

    factor: Tensor  # L [r, r]
    rotation: Tensor  # V [r, r]
    values: Tensor  # Lambda, ascending [r]
    rotated: Tensor  # Phi V, whose columns are orthogonal [m, r]

    def __len__(self) -> int:
        return len(self.rotated)

    def inverse(self, tau: Tensor) -> Tensor:
        """Q = (K~ + tau I)^-1, shape [m, m]."""
        some = self.rotated / (self.values + tau).sqrt()
        return (torch.eye(len(self), dtype=some.dtype, device=some.device) - some @ some.T) / tau

    def leave_one_out(self, tau: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Errors [m, B], and variances over s with the noise [m], of rows predicted from the others."""
        some = self.rotated / (self.values + tau).sqrt()
        leverage = some.square().sum(dim=1)
        free = (1.0 - leverage).clamp_min(torch.finfo(some.dtype).eps)  # tau Q_ii
        return (residual - some @ (some.T @ residual)) / free[:, None], tau / free

    def posterior(self, tau: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The factor of K_zz + tau K_zz (K_zn K_nz)^-1 K_zz, shape [r, r], and the weights [r, B].

        The weights give the residual mean k_z(x)^T (tau K_zz + K_zn K_nz)^-1 K_zn r.
        """
        noise = tau / self.values.clamp_min(float(tau) / FAINTEST)
        inner = (self.rotation * noise) @ self.rotation.T
        inner.diagonal().add_(1.0)
        factor = self.factor @ torch.linalg.cholesky(inner)
        inside = self.rotation @ ((self.rotated.T @ residual) / (self.values + tau)[:, None])
        return factor, torch.linalg.solve_triangular(self.factor.T, inside, upper=True)


def low_rank(gram: Tensor, cross: Tensor) -> LowRank:
    """The kernel of m rows through r landmarks, from K_zz [r, r], float64, and K_zn [r, m]."""
    factor, _ = factorise(gram, NUGGET * float(gram.diagonal().mean()))
    phi = torch.linalg.solve_triangular(factor, cross, upper=False).T
    values, rotation = torch.linalg.eigh(phi.T @ phi)
    if not bool(torch.isfinite(values).all()):
        raise FactorisationError("the kernel is not finite: the network's gradients overflow here.")
    return LowRank(factor, rotation, values.clamp_min(0.0), phi @ rotation)


def low_rank_evidence(kernel: LowRank, targets: Tensor, level: float) -> tuple[Tensor, Tensor]:
    r"""tau and the scales s_c [B] of the largest marginal likelihood under :math:`\tilde K`.

    .. math:: s_c = \tfrac1m \Big( \sum_i \frac{(u_i^\top t_c)^2}{\lambda_i + \tau}
              + \frac{|t_c|^2 - \sum_i (u_i^\top t_c)^2}{\tau} \Big), \quad
              \tfrac12 \Big( m \sum_c \log s_c + B \big( \sum_i \log(\lambda_i + \tau)
              + (m - r) \log \tau \big) \Big) \to \min

    with pseudo-targets t [m, B]; tau is searched over `level`, the kernel's mean diagonal.
    """
    m, r = kernel.rotated.shape
    seen = kernel.values > kernel.values[-1:] * max(m, r) * torch.finfo(targets.dtype).eps
    divisor = torch.where(seen, kernel.values, 1.0)[:, None]
    energy = torch.where(seen[:, None], (kernel.rotated.T @ targets).square() / divisor, 0.0)
    rest = (targets.square().sum(dim=0) - energy.sum(dim=0)).clamp_min(0.0)
    # few numbers, looked at many times: a GPU would take longer to be asked than to answer
    known, shares, left = (tensor.cpu().numpy() for tensor in (kernel.values, energy, rest))

    def scale_at(tau: float) -> np.ndarray:
        scale = (1.0 / (known + tau) @ shares + left / tau) / m
        return np.maximum(scale, 1e-12 * scale.mean() + np.finfo(scale.dtype).tiny)

    def loss(log_tau: float) -> float:
        tau = math.exp(log_tau)
        log_determinant = np.log(known + tau).sum() + (m - r) * log_tau
        return float(0.5 * (m * np.log(scale_at(tau)).sum() + targets.shape[1] * log_determinant))

    level = level or 1.0  # no gradient at all: only the noise is left
    tau = math.exp(least_on_grid(loss, math.log(LOWEST * level), math.log(HIGHEST * level)))
    return targets.new_tensor(tau), torch.from_numpy(scale_at(tau)).to(targets)


def selection_noise(gram: Tensor) -> float:
    """The noise tau that is assumed while rows of the kernel K [m, m] are chosen."""
    return SELECTION_NOISE * float(gram.diagonal().mean())


def condition(gram: Tensor, cross: Tensor, given: Tensor, noise: float) -> Tensor:
    r"""Posterior covariance of n candidates, given noisy observations of m other rows.

    .. math:: K_{cc} - K_{co} (K_{oo} + \tau I)^{-1} K_{oc}, \quad
        \text{from } K_{cc} [n, n], K_{oc} [m, n], K_{oo} [m, m], \tau
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
    large products of many small ones. From the candidates' covariance [n, n] and tau come the chosen indices,
    shape [min(count, n)], int64.
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

    From the few's posterior covariance [k, k], the most to choose, tau, and the largest variance elsewhere
    come the chosen rows [p], and their factor of K + tau I, lower [p, p].
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


def principal_components(gram: Tensor, components: int) -> tuple[Tensor, Tensor]:
    r"""Coefficients A and offset o such that a row's components are :math:`z(x) = k(x, S) A - o`.

    A holds the leading eigenvectors of the centred Gram matrix over the roots of their eigenvalues; its
    columns sum to zero, so centring a new row reduces to the constant offset o. From the kernel on S [m, m]
    come A [m, q] and o [q]; fewer than q `components` where the kernel has fewer directions.
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
    r"""Share of the squared kernel mass K [n, n] between experts, given by row [n]: the paper's bound.

    .. math:: \|K - \mathrm{blockdiag}(K)\|_F^2 / \|K\|_F^2 \in [0, 1]
    """
    squared = gram.square()
    within = labels[:, None] == labels[None, :]
    total = squared.sum()
    return torch.where(total > 0, (squared * ~within).sum() / total, torch.zeros_like(total))
