r"""Many rows through few: what m rows say, kept in terms of r of them, the landmarks.

With the landmarks' kernel :math:`K_{zz} = L L^\top` and :math:`\Phi = K_{nz} L^{-\top}`, shape [m, r], the
kernel of the rows is taken as

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


@dataclass(frozen=True)
class LowRank:
    """The kernel of m rows through r landmarks.

    Args:
        factor: L, shape [r, r].
        rotation: V, shape [r, r].
        values: Lambda, ascending, shape [r].
        rotated: Phi V, whose columns are orthogonal, shape [m, r].
    """

    factor: Tensor
    rotation: Tensor
    values: Tensor
    rotated: Tensor

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
    """The kernel of m rows through r landmarks.

    Args:
        gram: K_zz, shape [r, r], float64.
        cross: K_zn, shape [r, m].
    """
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

    Args:
        kernel: Of the rows.
        targets: Pseudo-targets t, shape [m, B].
        level: The kernel's mean diagonal, over which tau is searched.
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
