r"""One posterior of all rows and all outputs in the space of a sketch.

An expert has only the rows nearby, and one combination of the outputs. The leverage of output c at x,

.. math:: h_c(x) = \phi_c(x)^\top \Big( \sum_{i, c'} \phi_{c'}(x_i) \phi_{c'}(x_i)^\top / \sigma_{c'}^2
    + \delta I \Big)^{-1} \phi_c(x) / \sigma_c^2 ,

comes from all rows and from each output's own gradient: its posterior variance over its noise variance.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import Self

MAX_DIM = 1024  # columns of a sketch: a square matrix of this size is stored
RIDGE = 1e-5  # delta, over the largest eigenvalue
MIN_LEVERAGE = 1e-3  # over that of typical training rows: an output without a gradient is not certain
SMALL = 2.0**-48  # squares between 1e-10 and 1e67 times the typical ones fit into float32
MAX_LEFT_OUT = 0.99  # of the leverage of a training row that is left out


@dataclass(frozen=True)
class WholePosterior:
    """Posterior of all rows and outputs: eigenvectors of the second moment of their gradients."""

    basis: Tensor  # U [D, D], in the network's precision
    values: Tensor  # eigenvalues lambda [D], float64
    units: Tensor  # 1 / sigma of each output [C], float64
    typical: Tensor  # mean leverage of training rows, a scalar

    @classmethod
    def of(cls, moments: Tensor, noise: Tensor, rows: int, dtype: torch.dtype) -> Self:
        """Posterior from each output's sum of phi phi^T over `rows` rows [C, D, D] and noise variance [C]."""
        positive = noise > 0
        units = torch.where(positive, noise, 1.0).rsqrt() * positive  # an output without errors has no unit
        total = (units.square()[:, None, None] * moments).sum(dim=0)
        return cls._of(total, units, rows * positive.sum(), dtype)

    @classmethod
    def _of(cls, total: Tensor, units: Tensor, count: Tensor, dtype: torch.dtype) -> Self:
        values, basis = torch.linalg.eigh(total)
        values = values.clamp_min(0.0)
        typical = (values / (values + RIDGE * values[-1])).sum() / count
        return cls(basis.to(dtype).contiguous(), values, units, typical)

    def extended(self, by_output: Tensor) -> Self:
        """Posterior with the gradients of more rows [n, C, D] added."""
        basis, rows = self.basis.double(), (by_output.double() * self.units[:, None]).flatten(0, 1)
        count = (self.values / (self.values + RIDGE * self.values[-1])).sum() / self.typical
        total = (basis * self.values) @ basis.T + rows.T @ rows
        return self._of(total, self.units, count + len(by_output) * (self.units > 0).sum(), self.basis.dtype)

    @cached_property
    def _largest(self) -> Tensor:
        """The largest unit, or 1 where no output has one, a scalar."""
        return torch.where((self.units > 0).any(), self.units.max(), 1.0)

    @cached_property
    def _root(self) -> Tensor:
        """Eigenvectors [D, D], each times the standard deviation of the weights along it, in the `_largest`
        unit, over the root of `typical`, times `SMALL`; float64 on a GPU, whose float32 may be TF32."""
        scale = (self.typical * (self.values + RIDGE * self.values[-1])).rsqrt() * (SMALL * self._largest)
        return (self.basis.double() * scale).to(torch.float64 if scale.is_cuda else self.basis.dtype)

    @cached_property
    def _relative(self) -> Tensor:
        """Units over the largest one [C, 1], 1 for an output without a unit, in the precision of the root."""
        return torch.where(self.units > 0, self.units / self._largest, 1.0)[:, None].to(self._root.dtype)

    @cached_property
    def _restored(self) -> Tensor:
        """Factors [C] from the squares of `_inside` to the leverage over that of typical training rows."""
        return (self.units > 0).double() / SMALL**2

    def _inside(self, by_output: Tensor) -> Tensor:
        """Gradients of n rows [n, C, D] times the `_root` and their output's `_relative` unit: the squares of
        the D numbers add up to the leverage over that of typical training rows, times `SMALL`^2."""
        root = self._root
        flat = by_output.reshape(-1, root.shape[0]).to(root.dtype)  # faster than products row by row
        return torch.mm(flat, root).view(by_output.shape).mul_(self._relative)

    def leverage(self, by_output: Tensor) -> Tensor:
        """Leverage h of n rows from their gradients [n, C, D], float64, shape [n, C]."""
        squares = self._inside(by_output).double().square().sum(dim=2)
        return squares * (self._restored * self.typical)

    def __call__(self, by_output: Tensor) -> Tensor:
        """Log of the leverage over that of typical training rows, `typical`, float64, shape [n, C]."""
        return self._log(self.leverage(by_output))

    def left_out(self, by_output: Tensor, weights: Tensor | None = None) -> Tensor:
        """Log of h / (1 - w h), over `typical`, for training rows of weights w [n], each left out."""
        leverage = self.leverage(by_output)
        weights = (leverage.new_ones(1) if weights is None else weights.to(leverage))[:, None]
        inside = (weights * leverage).clamp_max(MAX_LEFT_OUT)
        return self._log(inside / (1.0 - inside) / weights)

    def latent(self, by_output: Tensor, *, covariance: bool = True) -> dict[str, Tensor]:
        """Fields that it adds to a `LatentPrediction`, with or without the covariance of outputs."""
        if not covariance or len(self.units) == 1:
            return {"log_leverage": self(by_output)}
        inside = self._inside(by_output)
        products = torch.bmm(inside, inside.mT).double()
        ratio = products.diagonal(dim1=1, dim2=2) * self._restored
        return {"log_leverage": ratio.clamp_min(MIN_LEVERAGE).log(), "covariance": products.flatten(1)}

    def _log(self, leverage: Tensor) -> Tensor:
        return (leverage / self.typical).clamp_min(MIN_LEVERAGE).log()


class ContrastPosterior(WholePosterior):
    r"""Posterior of differences of logits, :math:`\psi_j = \phi_j - \phi_1` between the leading classes of a
    row, which share one unit. The first gradient is that of a fixed combination of the logits, the others
    are psi; with one or two logits, the only gradient is psi."""

    @classmethod
    def of(cls, moments: Tensor, noise: Tensor, rows: int, dtype: torch.dtype) -> Self:
        """Posterior from sums over `rows` rows [k, D, D]; `noise` is not used, nor the first sum if k > 1."""
        units = torch.ones_like(moments[:, 0, 0])
        units[0] = float(len(moments) == 1)
        return super().of(moments, units, rows, dtype)

    def latent(self, by_output: Tensor, *, covariance: bool = True) -> dict[str, Tensor]:
        """Covariance of psi [n, (k - 1)^2] and logarithm of the combination's variance [n, 1], both over the
        mean leverage of training rows."""
        inside = self._inside(by_output).double() / SMALL  # [n, k, D]
        psi = inside[:, min(1, len(self.units) - 1) :]
        level = inside[:, 0].square().sum(dim=1, keepdim=True).clamp_min(MIN_LEVERAGE)
        return {"covariance": (psi @ psi.mT).flatten(1), "log_leverage": level.log()}
