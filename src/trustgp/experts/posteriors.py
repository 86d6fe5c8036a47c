"""What an expert keeps to answer with: one of four states, one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from ..math import posterior
from ..math.compression import low_rank_root, narrowed, projected, root_variance
from ..math.evidence import factorise
from ..tangents.base import Features, KernelRows
from .features import NO_COLUMNS
from .shrink import Sizes, chosen_rows, noiseless_gram


@dataclass(frozen=True)
class LatentMoments:
    """What an expert says about n rows, before scales and calibration.

    Args:
        unit: Posterior variance over s, shape [n].
        prior: k(x, x) / s, shape [n].
        residual_mean: m(x), shape [n, B].
    """

    unit: Tensor
    prior: Tensor
    residual_mean: Tensor


class Posterior(Protocol):
    """What an expert keeps: it answers, shrinks and saves itself.

    What differs from kind to kind is asked here; the graph of each is in `export.module.graph`.
    """

    @property
    def weights(self) -> Tensor:
        """Of the rows or columns in the residual mean, shape [..., B], float64."""
        ...

    @property
    def features(self) -> Any:
        """Of the rows that it holds, `KernelRows`; None: it holds none."""
        ...

    @property
    def columns(self) -> Tensor:
        """The feature columns it keeps; empty: all."""
        ...

    @property
    def failed(self) -> bool:
        """Whether there is nothing to answer with but the prior."""
        ...

    @property
    def size(self) -> int:
        """How many rows or directions it holds; a limit above changes nothing."""
        ...

    def __call__(self, features: Any) -> LatentMoments:
        """About some rows, `Features` of the kind it was made from."""
        ...

    def shrink(self, sizes: Sizes, pack: Callable[[Any], Any]) -> tuple[Posterior, Tensor | None]:
        """With less to hold, and which of its rows stay; None: all of them."""
        ...

    def narrowed(self) -> Posterior | None:
        """With a root in float32, where it has one; None: too much would be lost."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds beside the features, each to be laid end to end with the other experts'."""
        ...


class _Solved:
    """What most kinds have in common."""

    failed = False

    def narrowed(self) -> Self | None:
        """Itself: it has no root."""
        return self


class _RowPosterior(_Solved):
    """Answers by the kernel with the rows that it holds."""

    features: Any
    weights: Tensor
    columns = NO_COLUMNS

    @property
    def size(self) -> int:
        return len(self.weights)

    def __call__(self, features: KernelRows) -> LatentMoments:
        cross, prior = features.gram(self.features), features.diag()
        return LatentMoments(self._variance(prior, cross), prior, cross @ self.weights)

    def _variance(self, prior: Tensor, cross: Tensor) -> Tensor:
        """Over s, from k(x, x) [n] and k(x, rows) [n, m], shape [n]."""
        raise NotImplementedError

    def whitening(self) -> Tensor:
        """W such that |W k(x)|^2 is what the rows take from the prior, shape [r, m], float64."""
        raise NotImplementedError


@dataclass(frozen=True)
class GramPosterior(_RowPosterior):
    """Keeps the rows' features and a factor: for features whose rows are never written out.

    Args:
        features: Of the m rows, `KernelRows`.
        factor: L with L L^T = K + tau I, shape [m, m], float64.
        weights: (K + tau I)^-1 r, shape [m, B], float64.
    """

    features: Any
    factor: Tensor
    weights: Tensor

    def _variance(self, prior: Tensor, cross: Tensor) -> Tensor:
        return posterior.gram_variance(prior, cross, self.factor)

    def whitening(self) -> Tensor:
        """L^-1."""
        return posterior.inverse_factor(self.factor)

    def inverse(self) -> Tensor:
        """(K + N)^-1, shape [m, m]."""
        return torch.cholesky_inverse(self.factor)

    def shrink(self, sizes: Sizes, pack: Callable[[Any], Any]) -> tuple[Posterior, Tensor]:
        """The rows that tell most, for the variance; all of them, through those, for the mean."""
        noisy = self.factor @ self.factor.T  # K + N
        gram = noiseless_gram(self.features, noisy)
        chosen = chosen_rows(gram, sizes.rows)
        features = pack(self.features.take(chosen))
        rounded = features.gram(features) if sizes.half else gram[chosen][:, chosen]
        noise = noisy[chosen][:, chosen] - gram[chosen][:, chosen]
        if sizes.half:  # what rounding has moved a row by counts as noise
            apart = features.gram(self.features)
            here = apart[torch.arange(len(chosen), device=chosen.device), chosen]
            shifted = gram.diagonal()[chosen] + rounded.diagonal() - 2.0 * here
            noise.diagonal().add_(shifted.clamp_min(0.0))
        else:
            apart = gram[chosen]
        factor, _ = factorise(rounded + noise, 0.0)
        if len(chosen) == len(gram):
            weights = torch.cholesky_solve(noisy @ self.weights, factor)
        else:
            weights = projected(apart.T, rounded, gram @ self.weights)
        if sizes.rank is None:
            return GramPosterior(features, factor, weights), chosen
        return RootPosterior(features, low_rank_root(factor, rounded, sizes.rank), weights), chosen

    def rooted(self, most: int | None) -> RootPosterior:
        """The same rows and mean with at most so many directions in place of the factor; None: all."""
        if most is None or most >= self.size:
            return RootPosterior(self.features, self.whitening().T, self.weights)
        gram = noiseless_gram(self.features, self.factor @ self.factor.T)
        return RootPosterior(self.features, low_rank_root(self.factor, gram, most), self.weights)

    def tensors(self) -> dict[str, Tensor]:
        """Of the factor its triangle."""
        lower = torch.ones_like(self.factor, dtype=torch.bool).tril()
        return {"factor": self.factor[lower], "weights": self.weights}


@dataclass(frozen=True)
class RootPosterior(_RowPosterior):
    """Keeps the rows' features and few directions, in place of a factor: of a compressed expert.

    Args:
        features: Of the m rows, `KernelRows`.
        root: R with R R^T <= (K + N)^-1, shape [m, r], float64 or float32.
        weights: Of the rows in the residual mean, shape [m, B], float64.
    """

    features: Any
    root: Tensor
    weights: Tensor

    def _variance(self, prior: Tensor, cross: Tensor) -> Tensor:
        return root_variance(prior, cross, self.root)

    def whitening(self) -> Tensor:
        """R^T."""
        return self.root.T.double()

    def inverse(self) -> Tensor:
        """What is left of (K + N)^-1: R R^T, shape [m, m]."""
        return self.root.double() @ self.root.T.double()

    def rooted(self, most: int | None) -> RootPosterior:
        """Itself, as `shrink`."""
        return self

    def shrink(self, sizes: Sizes, pack: Callable[[Any], Any]) -> tuple[Posterior, None]:
        """Itself: what was dropped before does not come back."""
        return self, None

    def narrowed(self) -> Self | None:
        """Its root in float32, where that takes next to nothing from the variance."""
        root = narrowed(self.root, self.features.gram(self.features))
        return None if root is None else replace(self, root=root)

    def tensors(self) -> dict[str, Tensor]:
        """Of the root its rank besides."""
        ranks = torch.tensor([self.root.shape[1]], dtype=torch.int64)
        return {"ranks": ranks, "root": self.root.flatten(), "weights": self.weights}


@dataclass(frozen=True)
class SpanPosterior(_Solved):
    """Keeps a basis of the rows' span: for explicit features.

    Args:
        columns: The feature columns it keeps; empty: all.
        basis: V, shape [d, r], in the network's precision, or in float16 where it was compressed.
        shrinkage: tau / (lambda + tau), shape [r].
        weights: Phi^T (K + tau I)^-1 r, shape [d, B].
    """

    columns: Tensor
    basis: Tensor
    shrinkage: Tensor
    weights: Tensor

    features = None

    @property
    def size(self) -> int:
        """Directions."""
        return len(self.shrinkage)

    def __call__(self, features: Features) -> LatentMoments:
        phi = _explicit(features.select(self.columns))
        unit = posterior.span_variance(phi, self.basis.double(), self.shrinkage)
        return LatentMoments(unit, phi.square().sum(dim=1), phi @ self.weights)

    def shrink(self, sizes: Sizes, pack: Callable[[Any], Any]) -> tuple[Posterior, None]:
        """The directions of which most is known; the others count as unknown, so the variance grows."""
        most = min(limit for limit in (sizes.rows, sizes.rank, self.size) if limit is not None)
        kept = self.shrinkage.argsort(stable=True)[:most].sort().values
        basis = self.basis[:, kept]
        basis = basis.half() if sizes.half else basis
        return replace(self, basis=basis, shrinkage=self.shrinkage[kept]), None

    def tensors(self) -> dict[str, Tensor]:
        """Of the basis its rank besides."""
        return {
            "ranks": torch.tensor([self.size], dtype=torch.int64),
            "columns": self.columns.cpu(),
            "basis": self.basis.flatten(),
            "shrink": self.shrinkage,
            "weights": self.weights,
        }


@dataclass(frozen=True)
class PriorPosterior(_Solved):
    """Of an expert that could not be solved: it knows nothing, and says so.

    Args:
        weights: Of no row, shape [0, B].
    """

    weights: Tensor

    features = None
    columns = NO_COLUMNS
    failed = True
    size = 0

    def __call__(self, features: KernelRows) -> LatentMoments:
        prior = features.diag()
        return LatentMoments(prior, prior, prior.new_zeros(len(features), self.weights.shape[1]))

    def shrink(self, sizes: Sizes, pack: Callable[[Any], Any]) -> tuple[Posterior, None]:
        """Itself: there is nothing to drop."""
        return self, None

    def tensors(self) -> dict[str, Tensor]:
        """None: a file marks such an expert as failed."""
        return {}


def narrowed_alike(posteriors: Sequence[Posterior]) -> list[Posterior]:
    """Roots in float32 where every one bears it: a file holds them all alike."""
    found = [one for one in (state.narrowed() for state in posteriors) if one is not None]
    return found if len(found) == len(posteriors) else list(posteriors)


def make_posterior(
    features: Features, columns: Tensor, factor: Tensor, weights: Tensor, tau: Tensor | None = None
) -> GramPosterior | SpanPosterior:
    """The state that suits the features.

    Args:
        features: Of the expert's rows, or landmarks, its columns selected.
        columns: Those columns; empty: all.
        factor: L with L L^T = K + N, shape [m, m], float64.
        weights: Of the rows in the residual mean, shape [m, B].
        tau: N = tau I, any jitter included; None: the noise is correlated, as of landmarks.
    """
    stored = features.explicit()
    if stored is None:
        return GramPosterior(features, factor, weights)
    phi = _explicit(features)
    basis, shrinkage = posterior.noisy_span(phi, factor) if tau is None else posterior.span(phi, tau)
    return SpanPosterior(columns, basis.to(stored.dtype), shrinkage, phi.T @ weights)


def _explicit(features: Features) -> Tensor:
    phi = features.explicit()
    if phi is None:
        raise TypeError("this expert was made from explicit features and is asked about others.")
    return phi.to(torch.float64)
