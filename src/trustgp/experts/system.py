"""The equations of one expert: of all rows it sees, through landmarks, or in the columns of its features."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from ..data.chunking import chunks, evenly
from ..data.trees import moved
from ..math import low_rank
from ..math.calibration import leave_groups_out, leave_one_out
from ..math.evidence import Prior, factorise, maximise_evidence
from ..tangents.base import Features
from .posteriors import Posterior, SpanPosterior, make_posterior


@dataclass(frozen=True)
class Solution:
    """What comes out of the equations of m rows."""

    tau: Tensor  # noise ratio, a scalar
    scale: Tensor  # s [B]
    jitter: Tensor  # what had to be added to the diagonal besides tau, a scalar
    posterior: Posterior
    left_out: tuple[Tensor, Tensor]  # each row predicted from the others: y - f - m [m, B], variance / s [m]
    leave_groups_out: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # the same, of values and groups
    prior: Tensor  # k(x, x) / s [m]
    outside: Tensor  # what landmarks do not span is unknown wherever one asks, so of a left-out row, too [m]

    def unit(self, variances: Tensor) -> Tensor:
        """Variances / s of left-out rows without the noise [m]; 1 / Q_ii >= tau but for rounding."""
        return (variances - self.tau).clamp_min(0.0) + self.outside


@dataclass(frozen=True)
class Selection:
    """m rows that an expert sees, and all of which it holds; its own first."""

    seen: Tensor  # rows that count [m]
    held: Tensor  # rows that it holds [r]
    kept: Tensor  # those of its own that it holds, as positions among its own
    features: Any  # `Features` of the rows it sees, the expert's columns selected
    held_features: Any  # and of those it holds
    gram: Tensor  # K between the held rows [r, r]

    def borrow(self, candidates: Tensor, border: Any, most: int) -> Self:
        """With those candidates, whose features are given, that the held rows leave most uncertain."""
        below, corner = border.gram(self.features), border.gram(border)
        aside = below if self.held is self.seen else below[:, self.kept.to(below.device)]
        noise = low_rank.selection_noise(self.gram)
        covariance = low_rank.condition(corner, aside.T, self.gram, noise)
        few = low_rank.pivoted_cholesky_rows(covariance, most, noise)
        chosen = few.to(below.device)
        aside, corner = aside[chosen], corner[chosen][:, chosen]
        gram = _framed(self.gram, aside.T, aside, corner)
        return self._joined(candidates[few], border.take(chosen), gram, below[chosen])

    def _joined(self, rows: Tensor, added: Any, gram: Tensor, below: Tensor) -> Self:
        seen, held = (torch.cat([before, rows]) for before in (self.seen, self.held))
        features = more = type(added).cat([self.features, added])
        if self.held_features is not self.features:
            more = type(added).cat([self.held_features, added])
        return replace(self, seen=seen, held=held, features=features, held_features=more, gram=gram)

    def solve(self, columns: Tensor, targets: Tensor, residual: Tensor, prior: Prior | None) -> Solution:
        """Evidence, posterior, and left-out rows.

        From the feature `columns` that the expert keeps (empty: all), pseudo-targets t and r of the rows it
        sees [m, B], and the scale and noise ratio that all experts share; None: this one finds its own.
        """
        if prior is None:
            tau, scale, factor, jitter = maximise_evidence(self.gram, targets)
        else:
            tau, scale = prior.at(targets)
            factor, added = factorise(self.gram, tau)
            jitter = tau.new_tensor(added)
        inverse, diag = torch.cholesky_inverse(factor), self.features.diag()
        posterior = make_posterior(self.features, columns, factor, inverse @ residual, tau + jitter)
        left_out, groups = leave_one_out(inverse, residual), partial(leave_groups_out, inverse)
        return Solution(tau, scale, jitter, posterior, left_out, groups, diag, torch.zeros_like(diag))

    def parts(self, device: torch.device) -> Iterable[Features]:
        """The features on the device, as many at a time as may be looked at together."""
        return [self.features]


@dataclass(frozen=True)
class Landmarks(Selection):
    """The same where it holds only some of the rows, and sees the others through these."""

    cross: Tensor  # K between held and seen rows [r, m]

    def _joined(self, rows: Tensor, added: Any, gram: Tensor, below: Tensor) -> Self:
        found, old = super()._joined(rows, added, gram, below), len(self.held)
        right, corner = found.gram[:old, old:], found.gram[old:, old:]
        return replace(found, cross=_framed(self.cross, right, below, corner))

    def solve(self, columns: Tensor, targets: Tensor, residual: Tensor, prior: Prior | None) -> Solution:
        kernel, diag = low_rank.low_rank(self.gram, self.cross), self.features.diag()
        evidence = low_rank.low_rank_evidence
        tau, scale = prior.at(targets) if prior else evidence(kernel, targets, diag.mean())
        posterior = make_posterior(self.held_features, columns, *kernel.posterior(tau, residual))
        outside = (diag - kernel.phi.square().sum(dim=1)).clamp_min(0.0)
        left_out, groups = kernel.leave_one_out(tau, residual), partial(kernel.leave_groups_out, tau)
        return Solution(tau, scale, torch.zeros_like(tau), posterior, left_out, groups, diag, outside)


@dataclass(frozen=True)
class Columns(Selection):
    """The same by sums over the rows, for explicit features of fewer columns; `gram` is Phi^T Phi [d, d]."""

    def borrow(self, candidates: Tensor, border: Any, most: int) -> Self:
        r"""By the covariance that is left, :math:`\tau \Psi (\Phi^\top \Phi + \tau I)^{-1} \Psi^\top`."""
        noise = low_rank.SELECTION_NOISE * float(self.gram.trace()) / len(self.seen)
        factor, _ = factorise(self.gram, noise)
        root = torch.linalg.solve_triangular(factor, border.explicit().to(factor).T, upper=False)
        chosen = low_rank.pivoted_root_rows(noise**0.5 * root, most, noise)
        added = border.take(chosen)
        gram = self.gram + low_rank.column_sums(added.explicit(), factor.device)
        return self._joined(candidates[chosen.cpu()], added, gram, gram[:0])

    def solve(self, columns: Tensor, targets: Tensor, residual: Tensor, prior: Prior | None) -> Solution:
        kernel = low_rank.LowRank.of(self.features.explicit(), self.gram)
        level, values = self.gram.trace() / len(self.seen), kernel.values
        tau, scale = prior.at(targets) if prior else low_rank.low_rank_evidence(kernel, targets, level)
        spanned = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
        basis, shrinkage = kernel.rotation[:, spanned].to(kernel.phi.dtype), (tau / (values + tau))[spanned]
        posterior = SpanPosterior(columns, basis, shrinkage, kernel.weights(tau, residual))
        diag = torch.cat([part.diag() for part in self.parts(values.device)])
        left_out, groups = kernel.leave_one_out(tau, residual), partial(kernel.leave_groups_out, tau)
        none, outside = torch.zeros_like(tau), torch.zeros_like(diag)
        return Solution(tau, scale, none, posterior, left_out, groups, diag, outside)

    def parts(self, device: torch.device) -> Iterable[Features]:
        parts = (self.features.take(index) for index in chunks(len(self.seen)))
        return (moved(part, lambda kept: kept.to(device)) for part in parts)


def by_columns(width: int | None, rows: int, most: int) -> bool:
    """Whether feature columns (None: they are not explicit) are fewer than an expert's rows, and no more than
    it may hold: then they stand for all rows, and which of these are held matters no more."""
    return width is not None and width < rows and width <= most


def select_rows(rows: Tensor, features: Features, most: int, device: torch.device) -> Selection:
    """Of an expert's own rows all count; at most so many are held, the most informative ones."""
    every, phi = torch.arange(len(rows)), features.explicit()
    if phi is not None and by_columns(phi.shape[1], len(rows), most):
        kept = every if len(rows) <= most else evenly(len(rows), most)
        return Columns(rows, rows[kept], kept, features, features, low_rank.column_sums(phi, device))
    gram = features.gram(features)
    if len(gram) <= most:
        return Selection(rows, rows, every, features, features, gram)
    kept = low_rank.pivoted_cholesky_rows(gram, most, low_rank.selection_noise(gram))
    chosen = kept.to(gram.device)
    cross = gram[chosen]
    return Landmarks(rows, rows[kept], kept, features, features.take(chosen), cross[:, chosen], cross)


def _framed(body: Tensor, right: Tensor, below: Tensor, corner: Tensor) -> Tensor:
    """A matrix with columns and rows added."""
    return torch.cat([torch.cat([body, right], dim=1), torch.cat([below, corner], dim=1)])
