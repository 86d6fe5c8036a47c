"""What an expert keeps to answer with, or less of it in a compressed model: one of four states, one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from ..math import calibration, posterior
from ..math.evidence import factorise
from ..math.low_rank import selection_noise
from ..tangents.base import Features, KernelRows
from ..tangents.factors import HalfFactors, half_scales
from .features import NO_COLUMNS

PROBED = 8  # rows of the kernel that are made to see whether it can be read off the factor
SAME = 1e-9  # of the kernel's mean diagonal


@dataclass(frozen=True)
class Sizes:
    """What is left of a model; None: all."""

    rows: int | None = None  # of an expert, at most
    rank: int | None = None  # directions of an expert, at most
    half: bool = False  # whether features and bases are kept in float16, roots in float32
    gate: int | None = None  # rows of a gate, at most
    witness: int | None = None  # directions of a cell of the witness, at most; 0: the witness is left out

    def __str__(self) -> str:
        limits = {field.name: getattr(self, field.name) for field in fields(self)}
        words = [f"{name}={value}" for name, value in limits.items() if name != "half" and value is not None]
        return ", ".join([*words, *(["float16"] if self.half else [])]) or "as it is"

    def packer(self, lots: Sequence[Any]) -> Callable[[Any], Any]:
        """What stores features of rows, given all that are to be stored alike."""
        if not (self.half and lots):
            return lambda features: features
        scales = half_scales(lots)
        return lambda features: HalfFactors.pack(features, scales)


@dataclass(frozen=True)
class LatentMoments:
    """What an expert says about n rows, before scales and calibration."""

    unit: Tensor  # posterior variance over s [n]
    prior: Tensor  # k(x, x) / s [n]
    residual_mean: Tensor  # m(x) [n, B]


class Posterior:
    """What an expert keeps: it answers, shrinks and saves itself.

    What differs from kind to kind is asked here; the graph of each is in `export.module.graph`.
    """

    weights: Tensor  # of the rows or columns in the residual mean [..., B], float64
    features: Any  # of the rows that it holds, `KernelRows`; None: it holds none
    columns: Tensor  # the feature columns it keeps; empty: all
    failed = False  # whether there is nothing to answer with but the prior

    @property
    def size(self) -> int:
        """How many rows or directions it holds; a limit above changes nothing."""
        return len(self.weights)

    def __call__(self, features: Any) -> LatentMoments:
        """About some rows, `Features` of the kind it was made from."""
        raise NotImplementedError

    def shrink(self, sizes: Sizes, pack: Callable[[Any], Any]) -> tuple[Posterior, Tensor | None]:
        """With less to hold, and which of its rows stay; None: all of them. What was dropped stays away."""
        return self, None

    def narrowed(self) -> Posterior | None:
        """With a root in float32, where it has one; None: too much would be lost."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds beside the features, each to be laid end to end with the other experts'."""
        return {}  # a file marks a failed expert


class _RowPosterior(Posterior):
    """Answers by the kernel with the rows that it holds."""

    columns = NO_COLUMNS

    def __call__(self, features: KernelRows) -> LatentMoments:
        cross, prior = features.gram(self.features), features.diag()
        return LatentMoments(self._variance(prior, cross), prior, cross @ self.weights)

    def _variance(self, prior: Tensor, cross: Tensor) -> Tensor:
        """Over s, from k(x, x) [n] and k(x, rows) [n, m], shape [n]."""
        raise NotImplementedError


@dataclass(frozen=True)
class GramPosterior(_RowPosterior):
    """Keeps the rows' features and a factor: for features whose rows are never written out."""

    features: Any  # of the m rows, `KernelRows`
    factor: Tensor  # L with L L^T = K + tau I [m, m], float64
    weights: Tensor  # (K + tau I)^-1 r [m, B], float64

    def _variance(self, prior: Tensor, cross: Tensor) -> Tensor:
        return posterior.gram_variance(prior, cross, self.factor)

    def whitening(self) -> Tensor:
        """W = L^-1 such that |W k(x)|^2 is what the rows take from the prior, shape [m, m], float64."""
        eye = torch.eye(self.size, dtype=torch.float64, device=self.factor.device)
        return torch.linalg.solve_triangular(self.factor.double(), eye, upper=False)

    def shrink(self, sizes: Sizes, pack: Callable[[Any], Any]) -> tuple[Posterior, Tensor]:
        """The rows that tell most, for the variance; all of them, through those, for the mean."""
        noisy = self.factor @ self.factor.T  # K + N
        gram = noiseless_gram(self.features, noisy)
        chosen = chosen_rows(gram, sizes.rows)
        features = pack(self.features.take(chosen))
        apart, rounded = gram[chosen], gram[chosen][:, chosen]
        noise = noisy[chosen][:, chosen] - rounded
        if sizes.half:  # what rounding has moved a row by counts as noise
            apart, rounded = features.gram(self.features), features.gram(features)
            here = apart[torch.arange(len(chosen), device=chosen.device), chosen]
            shifted = gram.diagonal()[chosen] + rounded.diagonal() - 2.0 * here
            noise.diagonal().add_(shifted.clamp_min(0.0))
        factor, _ = factorise(rounded + noise, 0.0)
        if len(chosen) == len(gram):
            weights = torch.cholesky_solve(noisy @ self.weights, factor)
        else:
            weights = posterior.projected(apart.T, rounded, gram @ self.weights)
        if sizes.rank is None:
            return GramPosterior(features, factor, weights), chosen
        return RootPosterior(features, posterior.low_rank_root(factor, rounded, sizes.rank), weights), chosen

    def rooted(self, most: int | None) -> RootPosterior:
        """The same rows and mean with at most so many directions in place of the factor; None: all."""
        if most is None or most >= self.size:
            return RootPosterior(self.features, self.whitening().T, self.weights)
        gram = noiseless_gram(self.features, self.factor @ self.factor.T)
        return RootPosterior(self.features, posterior.low_rank_root(self.factor, gram, most), self.weights)

    def tensors(self) -> dict[str, Tensor]:
        """Of the factor its triangle."""
        lower = torch.ones_like(self.factor, dtype=torch.bool).tril()
        return {"factor": self.factor[lower], "weights": self.weights}


@dataclass(frozen=True)
class RootPosterior(_RowPosterior):
    """Keeps the rows' features and few directions, in place of a factor: of a compressed expert."""

    features: Any  # of the m rows, `KernelRows`
    root: Tensor  # R with R R^T <= (K + N)^-1 [m, r], float64 or float32
    weights: Tensor  # [m, B], float64

    def _variance(self, prior: Tensor, cross: Tensor) -> Tensor:
        return posterior.root_variance(prior, cross, self.root)

    def whitening(self) -> Tensor:
        """W = R^T, as above, shape [r, m]."""
        return self.root.T.double()

    def rooted(self, most: int | None) -> RootPosterior:
        """Itself, as `shrink`."""
        return self

    def narrowed(self) -> Self | None:
        """Its root in float32, where that takes next to nothing from the variance."""
        root = posterior.narrowed(self.root, self.features.gram(self.features))
        return None if root is None else replace(self, root=root)

    def tensors(self) -> dict[str, Tensor]:
        """Of the root its rank besides."""
        ranks = torch.tensor([self.root.shape[1]], dtype=torch.int64)
        return {"ranks": ranks, "root": self.root.flatten(), "weights": self.weights}


@dataclass(frozen=True)
class SpanPosterior(Posterior):
    """Keeps a basis of the rows' span: for explicit features."""

    columns: Tensor  # the feature columns it keeps; empty: all
    basis: Tensor  # V [d, r], in the network's precision, or in float16 where it was compressed
    shrinkage: Tensor  # tau / (lambda + tau) [r]
    weights: Tensor  # Phi^T (K + tau I)^-1 r [d, B]
    features = None

    @property
    def size(self) -> int:
        """Directions."""
        return len(self.shrinkage)

    def __call__(self, features: Features) -> LatentMoments:
        phi = features.select(self.columns).explicit()
        if phi is None:
            raise TypeError("this expert was made from explicit features and is asked about others.")
        phi = phi.double()
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
class PriorPosterior(Posterior):
    """Of an expert that could not be solved: it knows nothing, and says so."""

    weights: Tensor  # of no row [0, B]
    features = None
    columns = NO_COLUMNS
    failed = True

    def __call__(self, features: KernelRows) -> LatentMoments:
        prior = features.diag()
        return LatentMoments(prior, prior, prior.new_zeros(len(features), self.weights.shape[1]))


def noiseless_gram(rows: KernelRows, noisy: Tensor) -> Tensor:
    """K of some rows, shape [m, m]: K + N less N where that is diagonal, else made again."""
    diag, some = rows.diag(), torch.arange(min(PROBED, len(noisy)), device=noisy.device)
    gram = noisy.clone()
    gram.diagonal().copy_(diag)
    probe = rows.take(some).gram(rows)
    if bool(((probe - gram[some]).abs() <= SAME * diag.mean()).all()):
        return gram
    return rows.gram(rows)


def chosen_rows(gram: Tensor, most: int | None) -> Tensor:
    """At most so many rows, those that tell most given those before, in ascending order: own rows first."""
    if most is None or most >= len(gram):
        return torch.arange(len(gram), device=gram.device)
    return posterior.variance_reduction_rows(gram, most, selection_noise(gram)).sort().values


def with_posteriors(experts: Sequence[Any], posteriors: Sequence[Posterior], sizes: Sizes) -> list[Any]:
    """Experts or cells with other posteriors; roots in float32 where all bear it: a file has them alike."""
    narrow = [state.narrowed() for state in posteriors] if sizes.half else posteriors
    pairs = zip(experts, posteriors if None in narrow else narrow, strict=True)
    return [replace(expert, posterior=posterior) for expert, posterior in pairs]


def log_kappas(experts: Sequence[Any]) -> Tensor:
    """Leave-one-out scales of experts or cells, steadied where one has few rows of its own, shape [M, B]."""
    kappa = torch.stack([expert.kappa for expert in experts])
    own = torch.stack([expert.own for expert in experts])
    return calibration.steady_log_kappa(kappa.log(), own.to(kappa.device))


def make_posterior(
    features: Features, columns: Tensor, factor: Tensor, weights: Tensor, tau: Tensor | None = None
) -> GramPosterior | SpanPosterior:
    """The state that suits the features of m rows, or landmarks, whose `columns` are selected; empty: all.

    The factor L has L L^T = K + N [m, m], float64, the weights [m, B] are those of the rows in the residual
    mean, and N = tau I, any jitter included; without tau the noise is correlated, as of landmarks.
    """
    stored = features.explicit()
    if stored is None:
        return GramPosterior(features, factor, weights)
    phi = stored.double()
    basis, shrinkage = posterior.noisy_span(phi, factor) if tau is None else posterior.span(phi, tau)
    return SpanPosterior(columns, basis.to(stored.dtype), shrinkage, phi.T @ weights)
