"""The equations of one expert: exact where it holds all rows it sees, through landmarks where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..math.calibration import leave_one_out
from ..math.evidence import Prior, factorise, maximise_evidence
from ..math.low_rank import condition, low_rank, low_rank_evidence, pivoted_cholesky_rows, selection_noise
from ..tangents.base import Features
from .posteriors import Posterior, make_posterior


@dataclass(frozen=True)
class Selection:
    """m rows that an expert sees, and the r among them that it holds; its own first in both."""

    seen: Tensor  # rows that count [m]
    held: Tensor  # rows that it holds [r]
    kept: Tensor  # those of its own that it holds, as positions among its own
    seen_features: Features  # the expert's columns selected, in both
    held_features: Features
    gram: Tensor  # K between the held rows [r, r]
    cross: Tensor | None  # K between held and seen rows [r, m]; None: it holds all it sees

    @classmethod
    def of(cls, rows: Tensor, features: Features, most: int) -> Selection:
        """Of an expert's own rows all count; at most so many are held, the most informative ones."""
        gram = features.gram(features)
        if len(gram) <= most:
            return cls(rows, rows, torch.arange(len(rows)), features, features, gram, None)
        chosen = pivoted_cholesky_rows(gram, most, selection_noise(gram))
        kept, cross = chosen.cpu(), gram[chosen]
        return cls(rows, rows[kept], kept, features, features.take(chosen), cross[:, chosen], cross)

    def borrow(self, candidates: Tensor, border: Features, most: int) -> Selection:
        """With those candidates, whose features are given, that the held rows leave most uncertain."""
        aside, corner = self.held_features.gram(border), border.gram(border)
        noise = selection_noise(self.gram)
        chosen = pivoted_cholesky_rows(condition(corner, aside, self.gram, noise), most, noise)
        added, aside, corner = border.take(chosen), aside[:, chosen], corner[chosen][:, chosen]
        rows = candidates[chosen.cpu()]
        held_features = seen_features = type(border).cat([self.held_features, added])
        cross = None
        if self.cross is not None:
            seen_features = type(border).cat([self.seen_features, added])
            cross = _framed(self.cross, aside, added.gram(self.seen_features), corner)
        return replace(
            self,
            seen=torch.cat([self.seen, rows]),
            held=torch.cat([self.held, rows]),
            seen_features=seen_features,
            held_features=held_features,
            gram=_framed(self.gram, aside, aside.T, corner),
            cross=cross,
        )


def _framed(body: Tensor, right: Tensor, below: Tensor, corner: Tensor) -> Tensor:
    """A matrix with columns and rows added."""
    return torch.cat([torch.cat([body, right], dim=1), torch.cat([below, corner], dim=1)])


@dataclass(frozen=True)
class Solution:
    """What comes out of the equations of m rows."""

    tau: Tensor  # noise ratio, a scalar
    scale: Tensor  # s [B]
    jitter: Tensor  # what had to be added to the diagonal besides tau, a scalar
    posterior: Posterior
    left_out: tuple[Tensor, Tensor]  # each row predicted from the others: y - f - m [m, B], variance / s [m]
    outside: Tensor  # what landmarks do not span is unknown wherever one asks, so of a left-out row, too [m]
    inverse: Callable[[], Tensor]  # (K + tau I)^-1 [m, m]

    def unit(self, variances: Tensor) -> Tensor:
        """Variances / s of left-out rows without the noise [m]; 1 / Q_ii >= tau but for rounding."""
        return (variances - self.tau).clamp_min(0.0) + self.outside


def solve(
    rows: Selection, columns: Tensor, targets: Tensor, residual: Tensor, prior: Prior | None
) -> Solution:
    """Evidence, posterior, and left-out rows.

    From the feature `columns` that the expert keeps (empty: all), pseudo-targets t and r of the rows it sees
    [m, B], and the scale and noise ratio that all experts share; None: this one finds its own.
    """
    shared = None
    if prior is not None:
        shared = prior.tau.to(rows.gram), prior.scale.to(rows.gram).repeat(targets.shape[1])
    diag = rows.seen_features.diag()
    if rows.cross is None:
        if shared is None:
            tau, scale, factor, jitter = maximise_evidence(rows.gram, targets)
        else:
            (tau, scale), (factor, added) = shared, factorise(rows.gram, float(shared[0]))
            jitter = tau.new_tensor(added)
        dense = torch.cholesky_inverse(factor)
        weights, noise = dense @ residual, tau + jitter
        left_out, outside, inverse = leave_one_out(dense, residual), torch.zeros_like(diag), lambda: dense
    else:
        kernel = low_rank(rows.gram, rows.cross)
        tau, scale = shared or low_rank_evidence(kernel, targets, float(diag.mean()))
        jitter, noise = tau.new_zeros(()), None
        factor, weights = kernel.posterior(tau, residual)
        outside = (diag - kernel.rotated.square().sum(dim=1)).clamp_min(0.0)
        left_out, inverse = kernel.leave_one_out(tau, residual), partial(kernel.inverse, tau)
    posterior = make_posterior(rows.held_features, columns, factor, weights, noise)
    return Solution(tau, scale, jitter, posterior, left_out, outside, inverse)
