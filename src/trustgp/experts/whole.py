r"""One posterior of all rows and all outputs in the space of a sketch.

Experts know the rows nearby, and one combination of the outputs. The leverage of output c at x,

.. math:: h_c(x) = \phi_c(x)^\top \Big( \sum_{i, c'} \phi_{c'}(x_i) \phi_{c'}(x_i)^\top / \sigma_{c'}^2
    + \delta I \Big)^{-1} \phi_c(x) / \sigma_c^2 ,

comes from all rows and from each output's own gradient: its posterior over its noise variance.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import Self

MAX_DIM = 1024  # of a sketch: a matrix of its square is stored
RIDGE = 1e-5  # delta, over the largest eigenvalue
MIN_LEVERAGE = 1e-3  # over that of typical training rows: an output without a gradient is not certain
SMALL = 2.0**-48  # squares between 1e-10 and 1e67 times the typical ones fit into float32
MAX_LEFT_OUT = 0.99  # of the leverage of a training row that is left out


@dataclass(frozen=True)
class WholePosterior:
    """The eigenvectors of all rows' second moment."""

    basis: Tensor  # U [D, D], in the network's precision
    values: Tensor  # eigenvalues lambda [D], float64
    units: Tensor  # 1 / sigma of each output [C], float64
    typical: Tensor  # mean leverage of training rows, a scalar

    @classmethod
    def of(cls, moments: Tensor, noise: Tensor, rows: int, dtype: torch.dtype) -> Self:
        """From sums of phi phi^T over so many rows, of each output [C, D, D], and noise variances [C]."""
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
        """With the gradients of more rows [n, C, D]."""
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
        """The eigenvectors, times the deviation of the weights there, over that of typical training rows, in
        the `_largest` unit [D, D]; float32 products of a GPU may be TF32."""
        scale = (self.typical * (self.values + RIDGE * self.values[-1])).rsqrt() * (SMALL * self._largest)
        return (self.basis.double() * scale).to(torch.float64 if scale.is_cuda else self.basis.dtype)

    @cached_property
    def _relative(self) -> Tensor:
        """Units over the largest, 1 for an output without one, in the precision of the root [C, 1]."""
        return torch.where(self.units > 0, self.units / self._largest, 1.0)[:, None].to(self._root.dtype)

    @cached_property
    def _restored(self) -> Tensor:
        """By which squares of `_inside` become leverage, over that of typical training rows [C]."""
        return (self.units > 0).double() / SMALL**2

    def _inside(self, by_output: Tensor) -> Tensor:
        """Gradients of n rows [n, C, D] along the eigenvectors, times the deviation of the weights there and
        their output's unit, over those of typical training rows, times `SMALL`."""
        root = self._root
        flat = by_output.reshape(-1, root.shape[0]).to(root.dtype)  # faster than products row by row
        return torch.mm(flat, root).view(by_output.shape).mul_(self._relative)

    def leverage(self, by_output: Tensor) -> Tensor:
        """h of the gradients of n rows [n, C, D], float64, shape [n, C]."""
        squares = self._inside(by_output).double().square().sum(dim=2)
        return squares * (self._restored * self.typical)

    def __call__(self, by_output: Tensor) -> Tensor:
        """log h over that of typical training rows, float64, shape [n, C]."""
        return self._log(self.leverage(by_output))

    def left_out(self, by_output: Tensor, weights: Tensor | None = None) -> Tensor:
        """The same of training rows with weights w [n], each left out: h / (1 - w h)."""
        leverage = self.leverage(by_output)
        weights = (leverage.new_ones(1) if weights is None else weights.to(leverage))[:, None]
        inside = (weights * leverage).clamp_max(MAX_LEFT_OUT)
        return self._log(inside / (1.0 - inside) / weights)

    def latent(self, by_output: Tensor, *, covariance: bool = True) -> dict[str, Tensor]:
        """What it adds to a `LatentPrediction`, by field, with or without the covariance of outputs."""
        if not covariance or len(self.units) == 1:
            return {"log_leverage": self(by_output)}
        inside = self._inside(by_output)
        products = torch.bmm(inside, inside.mT).double()
        ratio = products.diagonal(dim1=1, dim2=2) * self._restored
        return {"log_leverage": ratio.clamp_min(MIN_LEVERAGE).log(), "covariance": products.flatten(1)}

    def _log(self, leverage: Tensor) -> Tensor:
        return (leverage / self.typical).clamp_min(MIN_LEVERAGE).log()


class ContrastPosterior(WholePosterior):
    r"""The same of differences of logits, :math:`\psi_j = \phi_j - \phi_1` between the leading classes of a
    row, which share one unit. Gradients are those of a fixed combination of the logits, then psi; of one or
    two logits the former is psi."""

    @classmethod
    def of(cls, moments: Tensor, noise: Tensor, rows: int, dtype: torch.dtype) -> Self:
        """From sums over so many rows, [k, D, D]; that of the combination, and noise, are not used."""
        units = torch.ones_like(moments[:, 0, 0])
        units[0] = float(len(moments) == 1)
        return super().of(moments, units, rows, dtype)

    def latent(self, by_output: Tensor, *, covariance: bool = True) -> dict[str, Tensor]:
        """The covariance of psi [n, (k - 1)^2], and the logarithm of the combination's variance [n, 1], over
        the mean of training rows."""
        inside = self._inside(by_output).double() / SMALL  # [n, k, D]
        psi = inside[:, min(1, len(self.units) - 1) :]
        level = inside[:, 0].square().sum(dim=1, keepdim=True).clamp_min(MIN_LEVERAGE)
        return {"covariance": (psi @ psi.mT).flatten(1), "log_leverage": level.log()}
