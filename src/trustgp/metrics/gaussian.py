"""Scores of predictions of real numbers against targets.

Mean, positive variance and target have one shape, [n] or [n, C].
"""

import math

import torch
from torch import Tensor

from ..likelihoods.prediction import Prediction
from .ranking import same_shape

NUM_LEVELS = 100  # of a coverage curve: those of uncertainty-toolbox, 0 and 1 among them


def gaussian_nll(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    r"""Negative log density of the targets, elementwise, in nats, float64.

    .. math:: \tfrac12 ( \log 2\pi v + (y - \mu)^2 / v )
    """
    same_shape(mean=mean, variance=variance, target=target)
    if bool((variance <= 0).any()):
        raise ValueError(f"variance falls to {float(variance.min()):.3g}; it must be positive.")
    error, spread = target.double() - mean.double(), variance.double()
    cost = 0.5 * (torch.log(2 * math.pi * spread) + error.square() / spread)
    return _infinite_where_not_finite(cost, mean, variance)


def squared_error(mean: Tensor, target: Tensor) -> Tensor:
    """(y - mean)^2, elementwise, float64; infinite where there is no finite mean."""
    same_shape(mean=mean, target=target)
    return _infinite_where_not_finite((target.double() - mean.double()).square(), mean)


def coverage(prediction: Prediction, target: Tensor, *, level: float = 0.95) -> Tensor:
    """Share of targets inside the interval of `level`, in (0, 1); ideally `level`."""
    lower, upper = prediction.interval(level)
    same_shape(prediction=lower, target=target)
    return ((lower <= target) & (target <= upper)).double().mean()


def coverage_curve(
    prediction: Prediction, target: Tensor, *, levels: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Share of targets inside the interval about the mean, for each level and output.

    .. math:: \text{observed}(p) = \tfrac1n \#\{ i : P(|Y_i - \mu_i| \le |y_i - \mu_i|) \le p \}

    Args:
        prediction: Prediction of n rows and C outputs.
        target: Shape [n] or [n, C].
        levels: Values of p in [0, 1], shape [L]; None: 100 values, evenly from 0 to 1.

    Returns:
        The levels [L], and the observed coverage, shape [L] or [L, C]; float64. A row without a finite mean
        is in no interval, not even in that of level 1.
    """
    mean = prediction.mean
    same_shape(mean=mean, target=target)
    levels = torch.arange(NUM_LEVELS).double() / (NUM_LEVELS - 1) if levels is None else levels
    levels = levels.to(mean.device, torch.float64)
    if not bool(((levels >= 0) & (levels <= 1)).all()):
        raise ValueError(f"levels lie in [{float(levels.min())}, {float(levels.max())}]; they are shares.")
    needed = prediction.distribution.within((target.double() - mean.double()).abs())
    needed = torch.where(torch.isfinite(mean), needed, torch.nan)  # NaN: no level suffices
    ordered = [column[~column.isnan()].sort().values for column in needed.reshape(len(mean), -1).T]
    observed = [torch.searchsorted(column, levels, right=True).double() / len(mean) for column in ordered]
    return levels, torch.stack(observed, dim=1).reshape(len(levels), *mean.shape[1:])


def calibration_error(levels: Tensor, observed: Tensor) -> Tensor:
    """Mean absolute gap of observed and nominal coverage (`coverage_curve`), [] or [C]; ideally 0."""
    if levels.ndim != 1 or observed.ndim not in (1, 2) or len(levels) != len(observed):
        shapes = f"levels {tuple(levels.shape)} and observed {tuple(observed.shape)}"
        raise ValueError(f"{shapes}; [L] and [L] or [L, C] are needed.")
    gaps = observed.double() - levels.double().reshape(-1, *(1,) * (observed.ndim - 1))
    return gaps.abs().mean(dim=0)


def _infinite_where_not_finite(cost: Tensor, *inputs: Tensor) -> Tensor:
    return torch.where(torch.stack([torch.isfinite(values) for values in inputs]).all(0), cost, torch.inf)
