"""The linear system of one expert: dual, one unknown per row, or primal, one per feature column."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ..data.chunking import chunks, evenly
from ..data.trees import moved
from ..math import low_rank
from ..math.evidence import Prior, factorise, maximise_evidence
from ..math.leave_out import leave_out
from ..tangents.base import Features
from .posteriors import Posterior, SpanPosterior, make_posterior


@dataclass(frozen=True)
class Solution:
    """Solution of the linear system of an expert with m rows."""

    tau: Tensor  # noise ratio, a scalar
    scale: Tensor  # s [B]
    jitter: Tensor  # added to the diagonal besides tau, a scalar
    posterior: Posterior
    # errors [m, B] and variances / s [m] of values [m, B], each row predicted from the others, or from those
    # of other groups [m]
    leave_out: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
    prior: Tensor  # k(x, x) / s [m]

    def unit(self, variances: Tensor) -> Tensor:
        """Variances / s of left-out rows, without the noise [m]; rounding may take 1 / Q_ii below tau."""
        return (variances - self.tau).clamp_min(0.0)


@dataclass(frozen=True)
class DualSystem:
    """m rows of an expert, its own first, and their Gram matrix."""

    seen: Tensor  # [m]
    features: Any  # `Features` of them, the expert's columns selected
    gram: Tensor  # K between them [m, m]

    def borrow(self, candidates: Tensor, border: Any, most: int) -> Self:
        """System with `most` more rows: the candidates, with features `border`, of largest variance."""
        below, corner = border.gram(self.features), border.gram(border)
        noise = low_rank.selection_noise(self.gram)
        covariance = low_rank.condition(corner, below.T, self.gram, noise)
        few = low_rank.pivoted_cholesky_rows(covariance, most, noise)
        chosen = few.to(below.device)
        below, corner = below[chosen], corner[chosen][:, chosen]
        gram = torch.cat([torch.cat([self.gram, below.T], dim=1), torch.cat([below, corner], dim=1)])
        return self._joined(candidates[few], border.take(chosen), gram)

    def _joined(self, rows: Tensor, added: Any, gram: Tensor) -> Self:
        features = type(added).cat([self.features, added])
        return replace(self, seen=torch.cat([self.seen, rows]), features=features, gram=gram)

    def solve(self, columns: Tensor, targets: Tensor, residual: Tensor, prior: Prior | None) -> Solution:
        """Solution with its hyperparameters, posterior and leave-one-out predictions.

        `columns` are the feature columns that the expert keeps (empty: all), `targets` and `residual` t and
        r of its rows [m, B]; `prior` is common to all experts (None: maximise this expert's evidence).
        """
        if prior is None:
            tau, scale, factor, jitter, spectrum = maximise_evidence(self.gram, targets)
        else:
            (tau, scale), spectrum = prior.at(targets), None
            factor, added = factorise(self.gram, tau)
            jitter = tau.new_tensor(added)
        inverse, diag = torch.cholesky_inverse(factor), self.features.diag()
        weights = inverse @ residual
        posterior = make_posterior(self.features, columns, factor, weights, tau + jitter, spectrum)
        return Solution(tau, scale, jitter, posterior, partial(leave_out, inverse), diag)

    def parts(self, device: torch.device) -> Iterable[Features]:
        """Features of the rows, on the device, in chunks."""
        return [self.features]


@dataclass(frozen=True)
class PrimalSystem(DualSystem):
    """The primal system, for explicit features of fewer columns than rows; `gram` is Phi^T Phi [d, d]."""

    def borrow(self, candidates: Tensor, border: Any, most: int) -> Self:
        """System with evenly spread candidates: with so many rows the choice hardly matters."""
        chosen = evenly(len(candidates), most)
        added = border.take(chosen.to(self.gram.device))
        gram = self.gram + low_rank.column_sums(added.explicit(), self.gram.device)
        return self._joined(candidates[chosen], added, gram)

    def solve(self, columns: Tensor, targets: Tensor, residual: Tensor, prior: Prior | None) -> Solution:
        kernel = low_rank.LowRank.of(self.features.explicit(), self.gram)
        level, values = self.gram.trace() / len(self.seen), kernel.values
        tau, scale = prior.at(targets) if prior else low_rank.low_rank_evidence(kernel, targets, level)
        spanned = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
        basis, shrinkage = kernel.rotation[:, spanned].to(kernel.phi.dtype), (tau / (values + tau))[spanned]
        posterior = SpanPosterior(columns, basis, shrinkage, kernel.weights(tau, residual))
        diag = torch.cat([part.diag() for part in self.parts(values.device)])
        return Solution(tau, scale, torch.zeros_like(tau), posterior, partial(kernel.leave_out, tau), diag)

    def parts(self, device: torch.device) -> Iterable[Features]:
        parts = (self.features.take(index) for index in chunks(len(self.seen)))
        return (moved(part, lambda kept: kept.to(device)) for part in parts)


def prefer_primal(width: int | None, rows: int) -> bool:
    """Whether there are fewer feature columns (None: they are not explicit) than rows."""
    return width is not None and width < rows


def select_rows(rows: Tensor, features: Features, device: torch.device) -> DualSystem:
    """Primal or dual system of an expert's own rows, whichever is smaller."""
    phi = features.explicit()
    if phi is not None and prefer_primal(phi.shape[1], len(rows)):
        return PrimalSystem(rows, features, low_rank.column_sums(phi, device))
    return DualSystem(rows, features, features.gram(features))
