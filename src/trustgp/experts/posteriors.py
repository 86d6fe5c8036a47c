"""Posteriors of experts: by a Gram matrix, by a basis, or the prior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ..math import posterior
from ..tangents.base import Features, KernelRows
from ..tangents.rows import RowFeatures
from .features import NO_COLUMNS


@dataclass(frozen=True)
class LatentMoments:
    """Predicted moments of n rows, before scales and calibration."""

    unit: Tensor  # posterior variance over s [n]
    prior: Tensor  # k(x, x) / s [n]
    residual_mean: Tensor  # m(x) [n, B]


class Posterior:
    """The state of an expert; the exported graph of each kind is in `export.module.graph`."""

    weights: Tensor  # of the rows or columns in the residual mean [..., B], float64
    features: Any  # of the rows that it stores, `KernelRows`; None: it stores none
    columns: Tensor  # the feature columns it keeps; empty: all
    failed = False  # whether it only has the prior
    signed = False  # whether rounding may take a variance below zero
    directions = 0  # how many it keeps; 0: it keeps rows, or nothing

    def __call__(self, features: Any) -> LatentMoments:
        """Predicted moments of rows, from `Features` of the kind that the posterior was made from."""
        raise NotImplementedError

    def root_features(self, features: Any) -> Tensor | None:
        r"""Rows :math:`S^{1/2} \phi(x)` whose products are the covariances over s, float64 [n, d]; None
        where features are not explicit, or where experts keep different columns."""
        return None

    def covariance(self, features: Any) -> Tensor:
        """Posterior covariance between rows over s, float64 [n, n]."""
        return features.gram(features)

    def truncate(self, rank: int | None) -> Posterior:
        """Posterior with its `rank` best determined directions, if it keeps directions; None: all."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to save besides the features; in a file, each is concatenated over the experts."""
        return {}  # a file marks a failed expert


@dataclass(frozen=True)
class GramPosterior(Posterior):
    """Posterior that keeps the rows' features and a Cholesky factor: for features that are not explicit."""

    features: Any  # of the m rows, `KernelRows`
    factor: Tensor  # L with L L^T = K + tau I [m, m], float64
    weights: Tensor  # (K + tau I)^-1 r [m, B], float64
    columns = NO_COLUMNS
    signed = True

    def __call__(self, features: KernelRows) -> LatentMoments:
        cross, prior = features.gram(self.features), features.diag()
        unit = posterior.gram_variance(prior, cross, self.factor)
        return LatentMoments(unit, prior, cross @ self.weights)

    def covariance(self, features: KernelRows) -> Tensor:
        white = torch.linalg.solve_triangular(self.factor, self.features.gram(features), upper=False)
        return features.gram(features) - white.T @ white

    def whitening(self) -> Tensor:
        """W = L^-1 [m, m], float64; the rows reduce the prior variance at x by |W k(x)|^2."""
        eye = torch.eye(len(self.weights), dtype=torch.float64, device=self.factor.device)
        return torch.linalg.solve_triangular(self.factor.double(), eye, upper=False)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to save: the lower triangle of the factor, and the weights."""
        lower = torch.ones_like(self.factor, dtype=torch.bool).tril()
        return {"factor": self.factor[lower], "weights": self.weights}


@dataclass(frozen=True)
class SpanPosterior(Posterior):
    """Posterior that keeps a basis of the rows' span: for explicit features."""

    columns: Tensor  # the feature columns it keeps; empty: all
    basis: Tensor  # V [d, r], in the network's precision
    shrinkage: Tensor  # tau / (lambda + tau) [r]
    weights: Tensor  # Phi^T (K + tau I)^-1 r [d, B]
    features = None

    @property
    def directions(self) -> int:
        """Number r of directions that it keeps."""
        return len(self.shrinkage)

    def __call__(self, features: Features) -> LatentMoments:
        features = features.select(self.columns)
        phi = features.explicit()
        if phi is None:
            raise TypeError("this expert was fitted to explicit features; pass those of its tangents.")
        basis, wide = self.basis, features.wide if isinstance(features, RowFeatures) else phi.double()
        if phi.is_cuda:  # float32 products may be TF32
            phi, basis = wide, basis.double()
        root = self.shrinkage.sqrt().to(phi.dtype)[None, None]
        unit = posterior.span_variance(phi[None], basis[None], root)[0]
        return LatentMoments(unit, wide.square().sum(dim=1), wide @ self.weights)

    def root_features(self, features: Features) -> Tensor | None:
        return None if len(self.columns) else self._root_features(features)

    def covariance(self, features: Features) -> Tensor:
        root = self._root_features(features.select(self.columns))
        return root @ root.T

    def _root_features(self, features: Any) -> Tensor:
        phi, basis = features.wide, self.basis.double()
        return phi - ((phi @ basis) * (1.0 - self.shrinkage.sqrt())) @ basis.T

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "basis": self.basis.clone()}  # not all of the stack that it may be a view of

    def extended(self, phi: Tensor, residual: Tensor, tau: Tensor) -> Self:
        r"""Posterior with more rows, of features [k, d] and r [k, B], at its noise ratio tau.

        :math:`\sum \phi \phi^\top = V \Lambda V^\top` and :math:`\sum \phi r` follow from the basis and the
        weights; the new rows are added to both sums.
        """
        phi, old, weights = phi.double(), self.basis.double(), self.weights
        ratios = 1.0 / self.shrinkage.clamp_min(torch.finfo(torch.float64).tiny) - 1.0  # lambda / tau
        sums = weights + old @ (ratios[:, None] * (old.T @ weights)) + phi.T @ residual / tau
        basis, shrinkage = posterior.span(torch.cat([(ratios * tau).sqrt()[:, None] * old.T, phi]), tau)
        weights = sums - basis @ ((1.0 - shrinkage)[:, None] * (basis.T @ sums))
        return replace(self, basis=basis.to(self.basis.dtype), shrinkage=shrinkage, weights=weights)

    def truncate(self, rank: int | None) -> Self:
        if rank is None or rank >= self.directions:
            return self
        kept = self.shrinkage.argsort(stable=True)[:rank].sort().values
        return replace(self, basis=self.basis[:, kept].clone(), shrinkage=self.shrinkage[kept])

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to save: the basis, flattened, its rank, and the others."""
        ranks, columns = torch.tensor([self.directions], dtype=torch.int64), self.columns.cpu()
        table = {"ranks": ranks, "columns": columns, "basis": self.basis.flatten()}
        return table | {"shrink": self.shrinkage, "weights": self.weights}


@dataclass(frozen=True)
class PriorPosterior(Posterior):
    """Prior in place of the posterior of an expert that could not be solved."""

    weights: Tensor  # of no row [0, B]
    features = None
    columns = NO_COLUMNS
    failed = True

    def __call__(self, features: KernelRows) -> LatentMoments:
        prior = features.diag()
        return LatentMoments(prior, prior, prior.new_zeros(len(features), self.weights.shape[1]))

    def root_features(self, features: Any) -> Tensor | None:
        return features.wide if isinstance(features, RowFeatures) else None


def make_posterior(
    features: Features,
    columns: Tensor,
    factor: Tensor,
    weights: Tensor,
    tau: Tensor,
    spectrum: tuple[Tensor, Tensor] | None = None,
) -> GramPosterior | SpanPosterior:
    """Posterior of m rows from their features, of which `columns` are selected; empty: all.

    The factor L has L L^T = K + tau I [m, m], float64, any jitter included; the weights [m, B] are those of
    the rows in the residual mean. For `spectrum` see `math.posterior.span`.
    """
    stored = features.explicit()
    if stored is None:
        return GramPosterior(features, factor, weights)
    phi = stored.double()
    basis, shrinkage = posterior.span(phi, tau, spectrum)
    return SpanPosterior(columns, basis.to(stored.dtype), shrinkage, phi.T @ weights)
