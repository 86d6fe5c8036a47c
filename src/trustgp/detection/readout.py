r"""How well a linear read-out of what a query has seen is known, for each class.

Where a detector says class c, the Gaussian process is one of linear functions of what was seen, s, with a
mean of its own: its kernel is :math:`\delta_{c c'} (1 + s^\top P^{-1} s')`, an expert for each class. From
n_c training rows the posterior variance at s is, over what it is at its own rows on average,

.. math:: u(s, c) = (s - m_c)^\top S_c^{-1} (s - m_c) / d, \quad
          S_c = \frac{\sum_{i \in c} (s_i - m_c)(s_i - m_c)^\top + \nu W}{n_c + \nu}, \quad
          W = (1 - \rho) \bar S + \rho \, \bar\sigma^2 I .

The prior W is what all classes have in common: their pooled covariance, shrunk towards a sphere. Its weight
nu, in rows, and rho are those under which held-out rows are likeliest. u is 1 on average where all is as in
training, and grows with the square of the distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

WEIGHTS = (0.01, 0.1, 1.0, 10.0)  # nu, over the numbers of what is seen
SPHERES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # rho
PRIOR_ROWS = 1.0  # of the common mean, in that of each class
LEAST = 1e-12  # of the spread of what is seen, over its size: a detector that sees the same everywhere


@dataclass(frozen=True)
class SeenSums:
    """Sums over what was seen, by class; they add up, so that pictures may come one after another."""

    count: Tensor  # rows, [C]
    total: Tensor  # sum of s, [C, d]
    square: Tensor  # sum of s s^T, [C, d, d]

    @classmethod
    def zero(cls, classes: int, width: int) -> SeenSums:
        """Before any row, float64."""
        shapes = (classes,), (classes, width), (classes, width, width)
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def include(self, seen: Tensor, kinds: Tensor) -> None:
        """Add rows [m, d] and the class of each, int64 [m], in place: with many classes a copy is large."""
        for kind in kinds.unique().tolist():
            own = seen[kinds == kind].to(self.total)
            self.count[kind] += len(own)
            self.total[kind] += own.sum(dim=0)
            self.square[kind] += own.T @ own


@dataclass(frozen=True)
class Readout:
    """The posterior: m_c [C, d], and R_c [C, d, d] with R_c R_c^T = S_c^-1 / d."""

    centre: Tensor
    root: Tensor

    def __call__(self, seen: Tensor, kinds: Tensor) -> Tensor:
        """u of rows [k, d] and their classes [k], float64, [k]."""
        centre, root = (part.to(seen.device) for part in (self.centre, self.root))
        found = seen.new_empty(len(seen), dtype=torch.float64)
        for kind in kinds.unique().tolist():  # one by one: R of every row would be d times as large as s
            own = kinds == kind
            away = seen[own].double() - centre[kind].double()
            found[own] = (away @ root[kind].double()).square().sum(dim=1)
        return found

    @property
    def nbytes(self) -> int:
        return self.centre.nbytes + self.root.nbytes

    @classmethod
    def fit(cls, sums: SeenSums, held: Tensor, kinds: Tensor) -> Readout:
        """From the sums of training rows, and what was seen in held-out rows [k, d] of classes [k]."""
        prior = _Prior.of(sums)
        held = held.double().to(sums.total.device)

        def loss(shrinkage: tuple[float, float]) -> float:
            return _loss(*prior.posterior(sums, *shrinkage), held, kinds.to(held.device))

        centre, spread = prior.posterior(sums, *min(product(WEIGHTS, SPHERES), key=loss))
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(spread)) / spread.shape[-1]
        return cls(centre.float(), torch.linalg.cholesky(inverse).float().contiguous())


@dataclass(frozen=True)
class _Prior:
    """What all classes have in common."""

    mean: Tensor  # of all rows, [d]
    within: Tensor  # covariance about the mean of the class, [d, d]
    between: Tensor  # covariance about the mean of all, [d, d]

    @classmethod
    def of(cls, sums: SeenSums) -> _Prior:
        count = sums.count.clamp_min(1.0)
        mean = sums.total.sum(dim=0) / sums.count.sum()
        means = sums.total / count[:, None]
        square = sums.square.sum(dim=0) / sums.count.sum()
        within = square - (sums.count[:, None] * means).T @ means / sums.count.sum()
        return cls(mean, within, square - torch.outer(mean, mean))

    def posterior(self, sums: SeenSums, weight: float, sphere: float) -> tuple[Tensor, Tensor]:
        """Means m_c [C, d] and covariances S_c [C, d, d]; a class without rows is as wide as all together."""
        width, eye = len(self.mean), torch.eye(len(self.mean)).to(self.mean)
        rows = sums.count[:, None, None]
        about = (sums.total + PRIOR_ROWS * self.mean) / (sums.count + PRIOR_ROWS)[:, None]
        cross = sums.total[:, :, None] * about[:, None]
        scatter = sums.square - cross - cross.mT + rows * about[:, :, None] * about[:, None]
        common = torch.where(rows > 0, self.within, self.between)
        variance = common.diagonal(dim1=1, dim2=2).mean(dim=1)
        variance = variance.clamp_min(
            LEAST * float(self.mean.square().mean()) + torch.finfo(torch.float64).tiny
        )
        common = (1.0 - sphere) * common + sphere * variance[:, None, None] * eye
        total = rows + weight * width
        return about, (scatter + weight * width * common) / total


def _loss(centre: Tensor, spread: Tensor, held: Tensor, kinds: Tensor) -> float:
    """Minus the log likelihood of held-out rows [k, d], over their number; infinite where rounding rules."""
    factor, failed = torch.linalg.cholesky_ex(spread)
    if bool(failed.any()):
        return float("inf")
    total = 0.0
    for kind in kinds.unique().tolist():
        away = held[kinds == kind] - centre[kind]
        white = torch.linalg.solve_triangular(factor[kind], away.T, upper=False)
        total += float(0.5 * white.square().sum() + len(away) * factor[kind].diagonal().log().sum())
    return total / max(1, len(held))
