r"""Kernels of low rank, row selection, and principal components of a kernel.

With explicit features :math:`\Phi`, shape [m, r], of fewer columns than rows, and
:math:`\Phi^\top \Phi = V \Lambda V^\top`, the evidence, the left-out rows and the posterior have closed
forms in the noise ratio tau.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..data.chunking import byte_chunks
from .evidence import factorise, finite_eigh, spectral_evidence
from .leave_out import by_group

# Noise ratio over the mean diagonal while rows are selected, before the evidence is maximised.
SELECTION_NOISE = 1e-4
ONE_STEP_BYTES = {"cuda": 2**28}  # of rows that a device processes in one step, where launches dominate


@dataclass(frozen=True)
class LowRank:
    """The kernel of m rows with r columns; only a chunk of rows at a time is converted to float64."""

    phi: Tensor  # Phi [m, r], in any precision, on any device, or in a mapped file
    rotation: Tensor  # V [r, r], float64
    values: Tensor  # Lambda, ascending [r], float64

    @classmethod
    def of(cls, phi: Tensor, sums: Tensor) -> Self:
        """Kernel from Phi and Phi^T Phi [r, r], float64."""
        values, rotation = finite_eigh(sums)
        return cls(phi, rotation, values)

    def weights(self, tau: Tensor, residual: Tensor) -> Tensor:
        """(Phi^T Phi + tau I)^-1 Phi^T r, shape [r, B]."""
        white = self.rotation / (self.values + tau).sqrt()
        return white @ (white.T @ column_sums(self.phi, white.device, residual))

    def solve(self, tau: Tensor, residual: Tensor) -> Tensor:
        """(K + tau I)^-1 r, shape [m, B]."""
        weights = self.weights(tau, residual)
        return (residual - torch.cat([part @ weights for part in _parts(self.phi, weights)])) / tau

    def leave_out(self, tau: Tensor, residual: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor]:
        r"""Errors [m, B], and variances over s with the noise [m], when each row, or its group, is left out.

        .. math:: Q_{BB}^{-1} = \tau (I - W W^\top)^{-1} = \tau (I + W (I - W^\top W)^{-1} W^\top), \quad
                  W = \Phi_B V (\Lambda + \tau I)^{-1/2}, \quad
                  \tau Q_{ii} = 1 - \phi_i^\top (\Phi^\top \Phi + \tau I)^{-1} \phi_i
        """
        weights, white = self.solve(tau, residual), self.rotation / (self.values + tau).sqrt()
        if groups is None:
            leverage = torch.cat([(part @ white).square().sum(dim=1) for part in _parts(self.phi, white)])
            free = (1.0 - leverage).clamp_min(torch.finfo(white.dtype).eps)
            return tau * weights / free[:, None], tau / free

        def left(rows: Tensor) -> tuple[Tensor, Tensor]:
            phi, own = self.phi[rows.to(self.phi.device)], weights[rows]
            eye = torch.eye(min(phi.shape), dtype=white.dtype, device=white.device)
            if len(phi) <= len(white):
                inside = phi.to(white) @ white
                spread = torch.linalg.inv(eye - inside @ inside.T)
                return tau * spread @ own, tau * spread.diagonal()
            inner = eye - white.T @ column_sums(phi, white.device) @ white
            core = white @ torch.linalg.solve(inner, white.T)
            inside = core @ column_sums(phi, white.device, own)
            errors = torch.cat([part @ inside for part in _parts(phi, core)])
            variances = torch.cat([(part @ core * part).sum(dim=1) for part in _parts(phi, core)])
            return tau * (own + errors), tau * (1.0 + variances)

        return by_group(left, residual, groups)


def _parts(phi: Tensor, like: Tensor) -> Iterator[Tensor]:
    """Rows [m, d], chunk by chunk, in the precision and on the device of another tensor."""
    whole = phi.nbytes <= ONE_STEP_BYTES.get(phi.device.type, 0)
    return (part.to(like) for part in ((phi,) if whole else byte_chunks(phi)))


def column_sums(phi: Tensor, device: torch.device, values: Tensor | None = None) -> Tensor:
    """Phi^T Phi [d, d] of rows [m, d], or Phi^T y [d, B] of values [m, B], float64."""
    total, start = torch.zeros((), dtype=torch.float64, device=device), 0
    for part in _parts(phi, total):
        total = total + part.T @ (part if values is None else values[start : start + len(part)])
        start += len(part)
    return total


def low_rank_evidence(kernel: LowRank, targets: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    r"""tau and the scales s_c [B] that maximise the marginal likelihood under :math:`\Phi \Phi^\top`.

    .. math:: s_c = \tfrac1m \Big( \sum_i \frac{(u_i^\top t_c)^2}{\lambda_i + \tau}
              + \frac{|t_c|^2 - \sum_i (u_i^\top t_c)^2}{\tau} \Big), \quad
              \tfrac12 \Big( m \sum_c \log s_c + B \big( \sum_i \log(\lambda_i + \tau)
              + (m - r) \log \tau \big) \Big) \to \min

    with pseudo-targets t [m, B]; tau is in a range about `level`, the kernel's mean diagonal, a scalar.
    """
    m, r = kernel.phi.shape
    kept = kernel.values > kernel.values[-1:] * r * torch.finfo(targets.dtype).eps
    divisor = torch.where(kept, kernel.values, 1.0)[:, None]
    turned = kernel.rotation.T @ column_sums(kernel.phi, targets.device, targets)
    energy = torch.where(kept[:, None], turned.square() / divisor, 0.0)
    other = (targets.square().sum(dim=0) - energy.sum(dim=0)).clamp_min(0.0)
    # the rest of the targets has the eigenvalue 0
    return spectral_evidence(
        nn.functional.pad(kernel.values, (0, 1)), torch.cat([energy, other[None]]), m, level
    )


def selection_noise(gram: Tensor) -> float:
    """The noise tau assumed while rows of the kernel K [m, m] are selected."""
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
    :math:`\ell = (K_{\cdot p} - L L_p^\top) / \sqrt\pi`. No row is chosen twice; ties go to the first.
    `covariance` is that of the candidates [n, n], `noise` is tau; the result is the chosen indices, shape
    [min(count, n)], int64, on the CPU.
    """
    left = covariance.cpu().numpy()  # many small steps, slower on a GPU
    variance, chosen = left.diagonal().copy(), np.empty(min(count, len(left)), dtype=np.int64)
    columns = np.empty((len(chosen), len(left)))  # L^T
    for step in range(len(chosen)):
        pivot = chosen[step] = variance.argmax()
        root = math.sqrt(max(variance[pivot], 0.0) + noise)
        columns[step] = (left[pivot] - columns[:step, pivot] @ columns[:step]) / root
        variance -= columns[step] ** 2
        variance[pivot] = -math.inf
    return torch.from_numpy(chosen)


def principal_components(gram: Tensor, components: int) -> tuple[Tensor, Tensor]:
    r"""Coefficients A and offset o such that a row's components are :math:`z(x) = k(x, S) A - o`.

    A holds the leading eigenvectors of the centred Gram matrix over the roots of their eigenvalues; its
    columns sum to zero, so centring a new row reduces to the constant offset o. `gram` is the kernel on
    S [m, m]; A is [m, q] and o [q], with q below `components` where the kernel has fewer directions.
    """
    column_mean = gram.mean(dim=0)
    centred = gram - column_mean - column_mean[:, None] + gram.mean()
    values, vectors = torch.linalg.eigh(centred)
    values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
    # relative to the kernel itself: the centred kernel of identical rows is only rounding
    keep = values > gram.diagonal().max() * len(gram) * torch.finfo(gram.dtype).eps
    vectors = vectors[:, keep]
    # The sign of an eigenvector is arbitrary: fix it, so that the same kernel gives the same gate.
    top = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)) if keep.any() else vectors[:1]
    coefficients = vectors * torch.sign(top) / values[keep].sqrt()
    coefficients = coefficients - coefficients.mean(dim=0)
    return coefficients, column_mean @ coefficients


def squared_masses(gram: Tensor, labels: Tensor, n: int) -> tuple[Tensor, Tensor]:
    r"""Sums of the squared kernel of n rows, between experts and of all pairs, estimated without bias from m.

    .. math:: w B, \quad w O + D n / m, \quad w = \frac{n (n - 1)}{m (m - 1)}

    with B the squared kernel between experts, O that of all pairs of two rows, D that of the diagonal: a
    pair is drawn less often than a row. With m = n both are exact. `gram` [m, m] is the kernel of rows drawn
    at random, and `labels` [m] the expert of each.
    """
    m, squared = len(gram), gram.square()
    diagonal = squared.diagonal().sum()
    between = (squared * (labels[:, None] != labels[None, :])).sum()
    weight = n * (n - 1) / (m * (m - 1)) if m > 1 else 0.0
    return weight * between, weight * (squared.sum() - diagonal) + diagonal * n / m


def mass_between(gram: Tensor, labels: Tensor, n: int) -> Tensor:
    r"""Share of the squared kernel mass of n rows between experts: the paper's bound, from m of the rows.

    .. math:: \|K - \mathrm{blockdiag}(K)\|_F^2 / \|K\|_F^2 \in [0, 1]
    """
    between, total = squared_masses(gram, labels, n)
    return torch.where(total > 0, between / total, torch.zeros_like(total))
