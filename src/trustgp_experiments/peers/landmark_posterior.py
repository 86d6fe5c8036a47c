r"""The posterior of a sparse Gaussian process on landmarks: the deterministic training conditional.

With the landmarks' kernel :math:`K_{mm} = L L^\top` and features :math:`\psi(x) = L^{-1} k_m(x)`, all rows
enter through :math:`\sum_i \psi(x_i) \psi(x_i)^\top = V \Lambda V^\top` alone, and the variance is

.. math:: s \big( k(x, x) - |\psi(x)|^2 + \sum_j \tfrac{\tau}{\lambda_j + \tau} (v_j^\top \psi(x))^2 \big) :

the prior's part outside the landmarks' span, which no row can reduce, and what the rows leave inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows
from trustgp.experts.expert import SELECTION_NOISE
from trustgp.experts.features import NO_COLUMNS, chunk_rows, features_of
from trustgp.experts.posteriors import LatentMoments
from trustgp.math.evidence import factorise
from trustgp.math.selection import pivoted_cholesky_rows
from trustgp.tangents.base import Features, TangentMap

JITTER = 1e-8  # on the landmarks' kernel, over its mean diagonal: the least tau that experts use, too


@dataclass(frozen=True)
class Projected:
    """Rows as the landmarks see them, whatever tau is.

    Args:
        inside: V^T psi, shape [n, m].
        outside: k(x, x) - |psi|^2, shape [n].
        prior: k(x, x), shape [n].
    """

    inside: Tensor
    outside: Tensor
    prior: Tensor


@dataclass(frozen=True)
class LandmarkPosterior:
    """What a sparse GP answers with at one noise ratio.

    Args:
        sums: Of all rows.
        shrink: tau / (lambda + tau), shape [m].
        weights: Of the residual mean in the basis V, shape [m, C].
    """

    sums: LandmarkSums
    shrink: Tensor
    weights: Tensor
    columns = NO_COLUMNS  # as a `Posterior` says that it keeps all
    failed = False

    def __call__(self, features: Features) -> LatentMoments:
        return self.answer(self.sums.project(features))

    def answer(self, rows: Projected) -> LatentMoments:
        """Unit variance, prior and residual mean."""
        unit = rows.outside + (self.shrink * rows.inside.square()).sum(dim=1)
        return LatentMoments(unit, rows.prior, rows.inside @ self.weights)


@dataclass(frozen=True)
class LandmarkSums:
    """All that the rows leave behind, none of it as long as they are; float64.

    Args:
        features: Of the m landmarks.
        factor: L, shape [m, m].
        values, basis: Eigenpairs of the sum of psi psi^T: lambda [m], V [m, m].
        targets, residual: V^T times the sums of psi t^T and of psi r^T, each [m, C].
        power: Sum of t^2, shape [C].
        level: Mean of k(x, x), a scalar.
        rows: n, a scalar.
    """

    features: Features
    factor: Tensor
    values: Tensor
    basis: Tensor
    targets: Tensor
    residual: Tensor
    power: Tensor
    level: Tensor
    rows: Tensor

    def scale(self, tau: float) -> Tensor:
        r"""The evidence's scale :math:`s_c = t_c^\top (\Psi \Psi^\top + \tau I)^{-1} t_c / n`, shape [C]."""
        explained = (self.targets.square() / (self.values + tau)[:, None]).sum(dim=0)
        scale = (self.power - explained) / (tau * self.rows)
        # where the rows leave nothing unexplained, the difference is rounding, of either sign
        return torch.maximum(scale, 1e-12 * self.power / (tau * self.rows) + torch.finfo(scale.dtype).tiny)

    def posterior(self, tau: float) -> LandmarkPosterior:
        """The posterior at one noise ratio."""
        grown = self.values + tau
        return LandmarkPosterior(self, tau / grown, self.residual / grown[:, None])

    def project(self, features: Features) -> Projected:
        """Some rows in the basis of the landmarks' span, and what lies outside it."""
        psi, prior = whitened(features, self.features, self.factor), features.diag()
        # a difference, so in float64; what falls below zero is for the caller to see
        return Projected(psi @ self.basis, prior - psi.square().sum(dim=1), prior)


def choose_landmarks(
    tangents: TangentMap, rows: Rows, landmarks: int, candidates: int, seed: int
) -> Features:
    """Features of the landmarks: of random candidates the most uncertain first, a pivoted Cholesky.

    Args:
        tangents: Makes features.
        rows: All training rows.
        landmarks: m; all candidates if there are fewer.
        candidates: How many rows to choose from.
        seed: Of the candidates.
    """
    if landmarks < 1:
        raise ValueError(f"landmarks={landmarks}; at least 1 is needed.")
    wanted = max(landmarks, candidates)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:wanted]
    features = features_of(tangents, rows.take(chosen), NO_COLUMNS)
    gram = features.gram(features)
    noise = SELECTION_NOISE * float(gram.diagonal().mean())
    return features.take(pivoted_cholesky_rows(gram, landmarks, noise))


def whitened(features: Features, landmarks: Features, factor: Tensor) -> Tensor:
    """psi(x) = L^-1 k_m(x), shape [n, m], float64."""
    cross = features.gram(landmarks)
    return torch.linalg.solve_triangular(factor, cross.T, upper=False).T


def accumulate(tangents: TangentMap, landmarks: Features, rows: Rows) -> LandmarkSums:
    """One pass over all rows, chunk by chunk; nothing of the rows' length is kept.

    Args:
        tangents: Makes features.
        landmarks: Of m rows.
        rows: All training rows.
    """
    gram = landmarks.gram(landmarks)
    factor, _ = factorise(gram, JITTER * float(gram.diagonal().mean()))
    outputs = rows.targets.shape[1]
    square, both = torch.zeros_like(gram), gram.new_zeros(len(gram), 2 * outputs)
    power, level = gram.new_zeros(outputs), gram.new_zeros(())
    for index in chunks(len(rows), chunk_rows(tangents)):
        features = tangents(rows.take(index))
        psi = whitened(features, landmarks, factor)
        targets, residual = (part.to(psi) for part in _targets(tangents, rows, index))
        square.addmm_(psi.T, psi)
        both.addmm_(psi.T, torch.cat([targets, residual], dim=1))
        power += targets.square().sum(dim=0)
        level += features.diag().sum() / len(rows)
    values, basis = torch.linalg.eigh(square)
    targets, residual = (basis.T @ both).chunk(2, dim=1)
    n = torch.tensor(float(len(rows))).to(gram)
    return LandmarkSums(landmarks, factor, values.clamp_min(0.0), basis, targets, residual, power, level, n)


def _targets(tangents: TangentMap, rows: Rows, index: Tensor) -> tuple[Tensor, Tensor]:
    """Pseudo-targets t = J theta + r and residuals r of some rows, each [b, C], float64."""
    network, inputs = tangents.network, rows.take(index)
    outputs = network.matrix(inputs).double()
    residual = rows.targets[index.to(rows.targets.device)].to(outputs) - outputs
    return network.directional(inputs, tangents.direction(NO_COLUMNS)).double() + residual, residual
