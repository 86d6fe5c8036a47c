"""Heavy tails for any method: a factor and degrees of freedom for each output, fitted on validation rows.

They are those of trustgp: Student's t, and the rows that are far off which training rows cannot rule out.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from trustgp.data.rows import read_rows
from trustgp.likelihoods.prediction import Prediction
from trustgp.math.calibration import OutlierPrior
from trustgp.math.calibration_fit import FOLDS, INITIAL_DF, MANY_ROWS, MIN_DF, PRIOR_STD, PRIOR_STDS
from trustgp.math.predictive import MAX_DF, log_density
from trustgp.math.search import MAX_LOG_STEP, minimise_from_zero, with_gradient

STEPS, FOLD_STEPS = 100, 15  # of the search, and while the pull is chosen
MOST_ROWS = 2**13  # of the validation rows, that the search looks at


@dataclass(frozen=True)
class Tails:
    """What turns a normal distribution into one of `trustgp.Prediction` with tails. Made by `fit`."""

    factor: Tensor  # of the variance of each output                      [C], float64
    df: Tensor  # degrees of freedom of each output                       [C]
    share: Tensor  # pi, of rows that are far off                         []
    spread: Tensor  # W, the variance of what they are off by             [C]

    @classmethod
    def fit(cls, error: Tensor, variance: Tensor, outliers: OutlierPrior | None) -> Self:
        """Factor and df by maximum likelihood from errors and variances [n, C], all outputs at once.

        Logarithms are pulled towards where they start, as trustgp pulls those of its calibration: of few
        rows by as much as serves rows that are left out best, a third at a time.
        """
        nothing = torch.zeros((), dtype=torch.float64)
        share, spread = (nothing, nothing.expand(error.shape[1])) if outliers is None else outliers
        error, variance = error.double().cpu(), variance.double().cpu()
        known = (torch.isfinite(error) & torch.isfinite(variance) & (variance > 0)).all(dim=1)
        error, variance = error[known], variance[known]
        if len(error) > MOST_ROWS:
            some = torch.randperm(len(error), generator=torch.Generator().manual_seed(0))[:MOST_ROWS]
            error, variance = error[some], variance[some]
        start = cls(torch.ones_like(spread), torch.full_like(spread, INITIAL_DF), share.cpu(), spread.cpu())
        return start._search(error, variance, start._pull(error, variance))

    def losses(self, error: Tensor, variance: Tensor) -> Tensor:
        """Negative log density of errors that had these variances before, each [n, C]."""
        scale = variance * self.factor * (self.df - 2.0) / self.df
        return -log_density(error, None, scale, self.df, self.share, self.spread)

    def on(self, said: Prediction) -> Prediction:
        """The same mean; the variance scaled, with tails."""
        values = (self.factor, self.df, self.share * self.spread)
        shaped = (each if said.mean.ndim == 2 else each[0] for each in values)
        factor, df, rare = (each.to(said.epistemic).expand_as(said.epistemic) for each in shaped)
        parts = {name: getattr(said, name) * factor for name in ("epistemic", "aleatoric", "excess")}
        return replace(said, **parts, df=df, rare=rare, share=float(self.share))

    def _search(self, error: Tensor, variance: Tensor, pull: float, steps: int = STEPS) -> Self:
        """From here to where the rows are likeliest, the pull's standard deviation given."""
        outputs = len(self.factor)

        def at(free: Tensor) -> Self:
            grown = free.clamp(-MAX_LOG_STEP, MAX_LOG_STEP).exp()
            df = (MIN_DF + (self.df - MIN_DF) * grown[outputs:]).clamp_max(MAX_DF)
            return replace(self, factor=self.factor * grown[:outputs], df=df)

        def loss(free: Tensor) -> Tensor:
            held = 0.5 * free.square().sum() / (pull**2 * error.numel())
            return held + at(free).losses(error, variance).mean()

        if not len(error):
            return self
        found = minimise_from_zero(with_gradient(loss), 2 * outputs, max_iter=steps)
        return self if found is None else at(torch.from_numpy(found))

    def _pull(self, error: Tensor, variance: Tensor) -> float:
        """Its standard deviation."""
        n = len(error)
        if n >= MANY_ROWS:
            return PRIOR_STD
        if n < 2 * FOLDS:
            return PRIOR_STDS[0]
        fold = torch.arange(n) * FOLDS // n

        def left(pull: float) -> float:
            total = 0.0
            for k in range(FOLDS):
                most, rest = fold != k, fold == k
                found = self._search(error[most], variance[most], pull, FOLD_STEPS)
                total += float(found.losses(error[rest], variance[rest]).sum())
            return total

        return min(PRIOR_STDS, key=left)


def rare_of(rows: Any) -> OutlierPrior | None:
    """What so many rows with such targets cannot rule out."""
    return OutlierPrior.of(read_rows(rows, name="train").targets)
