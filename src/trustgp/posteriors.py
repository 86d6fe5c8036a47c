"""What an expert keeps to answer with: one of four states, one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .math import posterior
from .math.compression import root_variance
from .math.evidence import Evidence
from .tangents.base import Features


@dataclass(frozen=True)
class Answer:
    """What an expert says about n rows, before scales and calibration.

    Args:
        unit: Posterior variance over s, shape [n].
        prior: k(x, x) / s, shape [n].
        shift: Residual mean m(x), shape [n, B].
    """

    unit: Tensor
    prior: Tensor
    shift: Tensor


@dataclass(frozen=True)
class GramPosterior:
    """Keeps the rows' features and a factor: for features whose rows are never written out.

    Args:
        features: Of the m rows.
        factor: L with L L^T = K + tau I, shape [m, m], float64.
        weights: (K + tau I)^-1 r, shape [m, B], float64.
    """

    features: Features
    factor: Tensor
    weights: Tensor

    def __call__(self, features: Features) -> Answer:
        cross, prior = features.gram(self.features), features.diag()
        unit = posterior.gram_variance(prior, cross, self.factor)
        return Answer(unit, prior, cross @ self.weights)

    def whitening(self) -> Tensor:
        """W such that |W k(x)|^2 is what the rows take from the prior: L^-1, shape [m, m], float64."""
        return posterior.inverse_factor(self.factor)


@dataclass(frozen=True)
class RootPosterior:
    """Keeps the rows' features and few directions, in place of a factor: of a compressed expert.

    Args:
        features: Of the m rows.
        root: R with R R^T <= (K + N)^-1, shape [m, r], float64 or float32.
        weights: Of the rows in the residual mean, shape [m, B], float64.
    """

    features: Features
    root: Tensor
    weights: Tensor

    def __call__(self, features: Features) -> Answer:
        cross, prior = features.gram(self.features), features.diag()
        return Answer(root_variance(prior, cross, self.root), prior, cross @ self.weights)

    def whitening(self) -> Tensor:
        """W such that |W k(x)|^2 is what the rows take from the prior: R^T, shape [r, m], float64."""
        return self.root.T.double()


@dataclass(frozen=True)
class SpanPosterior:
    """Keeps a basis of the rows' span: for explicit features.

    Args:
        columns: The feature columns it keeps; empty: all.
        basis: V, shape [d, r], in the network's precision, or in float16 where it was compressed.
        shrink: tau / (lambda + tau), shape [r].
        weights: Phi^T (K + tau I)^-1 r, shape [d, B].
    """

    columns: Tensor
    basis: Tensor
    shrink: Tensor
    weights: Tensor

    def __call__(self, features: Features) -> Answer:
        phi = _explicit(features.select(self.columns))
        unit = posterior.span_variance(phi, self.basis.double(), self.shrink)
        return Answer(unit, phi.square().sum(dim=1), phi @ self.weights)


@dataclass(frozen=True)
class PriorPosterior:
    """Of an expert that could not be solved: it knows nothing, and says so.

    Args:
        weights: Of no row, shape [0, B].
    """

    weights: Tensor

    def __call__(self, features: Features) -> Answer:
        prior = features.diag()
        return Answer(prior, prior, prior.new_zeros(len(features), self.weights.shape[1]))


def make_posterior(
    features: Features, columns: Tensor, evidence: Evidence, weights: Tensor
) -> GramPosterior | SpanPosterior:
    """The state that suits the features.

    Args:
        features: Of the expert's rows, its columns selected.
        columns: Those columns; empty: all.
        evidence: Gives tau and the factor.
        weights: (K + tau I)^-1 r, shape [m, B].
    """
    if features.explicit() is None:
        return GramPosterior(features, evidence.factor, weights)
    phi = _explicit(features)
    basis, shrink = posterior.span(phi, evidence.tau + evidence.jitter)
    stored = features.explicit()
    assert stored is not None
    return SpanPosterior(columns, basis.to(stored.dtype), shrink, phi.T @ weights)


def landmark_posterior(
    features: Features, columns: Tensor, factor: Tensor, weights: Tensor
) -> GramPosterior | SpanPosterior:
    """The state of an expert that holds landmarks: they answer like rows with correlated noise.

    Args:
        features: Of the landmarks, the expert's columns selected.
        columns: Those columns; empty: all.
        factor: L with L L^T = K_zz + noise, shape [r, r], float64.
        weights: Of the landmarks, shape [r, B].
    """
    stored = features.explicit()
    if stored is None:
        return GramPosterior(features, factor, weights)
    phi = _explicit(features)
    basis, shrink = posterior.noisy_span(phi, factor)
    return SpanPosterior(columns, basis.to(stored.dtype), shrink, phi.T @ weights)


def _explicit(features: Features) -> Tensor:
    phi = features.explicit()
    if phi is None:
        raise TypeError("this expert was made from explicit features and is asked about others.")
    return phi.to(torch.float64)
