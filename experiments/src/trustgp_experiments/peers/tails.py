"""Heavy tails for any method: a factor and degrees of freedom for each output, fitted on validation rows.

The tails are those of trustgp: a Student-t, mixed with outliers as rare as the training rows allow.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from trustgp.data.rows import read_rows
from trustgp.likelihoods.prediction import Prediction
from trustgp.math.calibration import OutlierPrior
from trustgp.math.calibration_fit import FOLDS, INITIAL_DF, MANY_ROWS, MIN_DF, PRIOR_STD, PRIOR_STDS
from trustgp.math.predictive import MAX_DF, log_density
from trustgp.math.search import MAX_LOG_STEP, minimise_from_zero, with_gradient

STEPS, FOLD_STEPS = 100, 15  # of the final search, and of each search that chooses the pull
MAX_ROWS = 2**13  # validation rows used in the search, at most


@dataclass(frozen=True)
class Tails:
    """Parameters that give a normal distribution the tails of a `trustgp.Prediction`. Made by `fit`."""

    factor: Tensor  # of the variance of each output                      [C], float64
    df: Tensor  # degrees of freedom of each output                       [C]
    share: Tensor  # pi, of outliers among rows                           []
    spread: Tensor  # W, the variance of their errors                     [C]

    @classmethod
    def fit(cls, error: Tensor, variance: Tensor, outliers: OutlierPrior | None) -> Self:
        """Fit factor and df to errors and variances [n, C] by maximum likelihood, all outputs at once.

        A prior pulls their logarithms towards the start, as in trustgp's calibration; with few rows its
        strength is chosen by cross-validation over `FOLDS` folds.
        """
        nothing = torch.zeros((), dtype=torch.float64)
        share, spread = (nothing, nothing.expand(error.shape[1])) if outliers is None else outliers[:2]
        error, variance = error.double().cpu(), variance.double().cpu()
        finite = torch.isfinite(error) & torch.isfinite(variance) & (variance > 0)
        chosen = finite.all(dim=1).nonzero()[:, 0]
        if len(chosen) > MAX_ROWS:
            order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))
            chosen = chosen[order[:MAX_ROWS]]
        error, variance = error[chosen], variance[chosen]
        start = cls(torch.ones_like(spread), torch.full_like(spread, INITIAL_DF), share.cpu(), spread.cpu())
        return start._search(error, variance, start._pull(error, variance))

    def losses(self, error: Tensor, variance: Tensor) -> Tensor:
        """Negative log density [n, C] of errors [n, C], given their variances [n, C] before scaling."""
        scale = variance * self.factor * (self.df - 2.0) / self.df
        return -log_density(error, torch.zeros_like(error), scale, self.df, self.share, self.spread)

    def on(self, plain: Prediction) -> Prediction:
        """Prediction with the same mean, scaled variances and tails."""
        values = (self.factor, self.df, self.share * self.spread)
        shaped = (each if plain.mean.ndim == 2 else each[0] for each in values)
        factor, df, rare = (each.to(plain.epistemic).expand_as(plain.epistemic) for each in shaped)
        parts = {name: getattr(plain, name) * factor for name in ("epistemic", "aleatoric", "excess")}
        return replace(plain, **parts, df=df, rare=rare, outlier_share=float(self.share))

    def _search(self, error: Tensor, variance: Tensor, pull: float, steps: int = STEPS) -> Self:
        """Most likely tails of the rows under a prior of standard deviation `pull`; it starts here."""
        outputs = len(self.factor)

        def at(free: Tensor) -> Self:
            grown = free.clamp(-MAX_LOG_STEP, MAX_LOG_STEP).exp()
            df = (MIN_DF + (self.df - MIN_DF) * grown[outputs:]).clamp_max(MAX_DF)
            return replace(self, factor=self.factor * grown[:outputs], df=df)

        def loss(free: Tensor) -> Tensor:
            penalty = 0.5 * free.square().sum() / (pull**2 * error.numel())
            return penalty + at(free).losses(error, variance).mean()

        best = minimise_from_zero(with_gradient(loss), 2 * outputs, max_iter=steps) if len(error) else None
        return self if best is None else at(torch.from_numpy(best))

    def _pull(self, error: Tensor, variance: Tensor) -> float:
        n = len(error)
        if n >= MANY_ROWS:
            return PRIOR_STD
        if n < 2 * FOLDS:
            return PRIOR_STDS[0]
        fold = torch.arange(n) * FOLDS // n

        def left(pull: float) -> float:
            total = 0.0
            for k in range(FOLDS):
                rest, left_out = fold != k, fold == k
                tails = self._search(error[rest], variance[rest], pull, FOLD_STEPS)
                total += float(tails.losses(error[left_out], variance[left_out]).sum())
            return total

        return min(PRIOR_STDS, key=left)


def rare_of(rows: Any) -> OutlierPrior | None:
    """Prior of outliers from the targets of training rows; None for a single row."""
    return OutlierPrior.of(read_rows(rows, name="train").targets)
