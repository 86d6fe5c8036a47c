"""How good is an error bar? Scores of predictions against targets: tensors in, tensors out.

Every row is scored. A row whose variance is infinite costs an infinite likelihood; none is dropped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .prediction import Prediction


def gaussian_nll(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    r"""Negative log density of the targets, elementwise, in nats, float64.

    .. math:: \tfrac12 ( \log 2\pi v + (y - \mu)^2 / v )

    Args:
        mean: Shape [n] or [n, C].
        variance: Positive, the same shape.
        target: The same shape.
    """
    _same_shape(mean=mean, variance=variance, target=target)
    if bool((variance <= 0).any()):
        raise ValueError(f"variance falls to {float(variance.min()):.3g}; it must be positive.")
    spread, error = variance.double(), target.double() - mean.double()
    return 0.5 * (torch.log(2 * math.pi * spread) + error.square() / spread)


def mse(mean: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over all rows and outputs, a float64 scalar."""
    _same_shape(mean=mean, target=target)
    return (target.double() - mean.double()).square().mean()


def interval_coverage(lower: Tensor, upper: Tensor, target: Tensor) -> Tensor:
    """Share of targets inside [lower, upper], over all rows and outputs, a float64 scalar."""
    _same_shape(lower=lower, upper=upper, target=target)
    return ((lower <= target) & (target <= upper)).double().mean()


def coverage(prediction: Prediction, target: Tensor, *, level: float = 0.95) -> Tensor:
    """Share of targets inside the central interval of `level`; an honest error bar gives `level`.

    Args:
        prediction: Of n rows.
        target: The shape of `prediction.mean`.
        level: Of the interval, in (0, 1).
    """
    return interval_coverage(*prediction.interval(level), target)


def sharpness(prediction: Prediction, *, level: float = 0.95) -> Tensor:
    """Mean width of the central interval of `level`, a float64 scalar: of two honest bars, the smaller."""
    lower, upper = prediction.interval(level)
    return (upper.double() - lower.double()).mean()


def auroc(in_scores: Tensor, out_scores: Tensor) -> Tensor:
    r"""Area under the ROC curve of a novelty score, a float64 scalar; 0.5 is chance.

    .. math:: P(s_{out} > s_{in}) + \tfrac12 P(s_{out} = s_{in})

    Args:
        in_scores: Scores of familiar rows, shape [n].
        out_scores: Scores of foreign rows, which should be higher, shape [m].
    """
    familiar, foreign = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores")
    ordered = familiar.sort().values
    below = torch.searchsorted(ordered, foreign, right=False).double()
    not_above = torch.searchsorted(ordered, foreign, right=True).double()
    return (below + not_above).mean() / (2 * len(ordered))


def fpr95(in_scores: Tensor, out_scores: Tensor) -> Tensor:
    """Share of foreign rows that pass when the threshold lets 95 % of the familiar rows pass.

    Args:
        in_scores: Scores of familiar rows, shape [n].
        out_scores: Scores of foreign rows, which should be higher, shape [m].
    """
    familiar, foreign = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores")
    needed = -(-95 * len(familiar) // 100)  # whole rows: 0.95 n in floats may round up past it
    threshold = familiar.sort().values[needed - 1]
    return (foreign <= threshold).double().mean()


def _scores(scores: Tensor, name: str) -> Tensor:
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"{name} have shape {tuple(scores.shape)}; one score a row is needed, shape [n].")
    if bool(scores.isnan().any()):
        raise ValueError(f"{name} hold {int(scores.isnan().sum())} NaN; every row needs a score.")
    return scores.double()


def _same_shape(**tensors: Tensor) -> None:
    """Raise unless all shapes agree; broadcasting [n] against [n, 1] would score n^2 pairs."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"shapes differ: {text}; they must agree.")
