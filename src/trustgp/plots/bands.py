"""A function of one input, with its error bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..likelihoods.prediction import Prediction
from ..metrics.evaluation import known
from .style import BLUE, INK, numbers


def draw_bands(
    axes: Any,
    x: Tensor,
    prediction: Prediction,
    *,
    targets: Tensor | None = None,
    output: int = 0,
    sigmas: Sequence[float] = (1, 2, 3),
    colour: str = BLUE,
    label: str = "prediction",
) -> None:
    """A prediction along one input: the mean, and bands of so many standard deviations around it.

    Args:
        axes: Of matplotlib.
        x: Where the prediction was made, in any order, shape [n] or [n, 1].
        prediction: Of these n rows.
        targets: Drawn as dots, shape [n], [n, 1] or [n, C].
        output: Which output to draw.
        sigmas: Half the width of each band, in standard deviations.
        colour: Of line and bands; where bands overlap it is deeper.
        label: Of the line, in the legend.
    """
    mean, variance = (values[:, output] for values in known(prediction))
    if x.numel() != len(mean):
        raise ValueError(f"x has shape {tuple(x.shape)} for a prediction of {len(mean)} rows; one each.")
    place, order = x.detach().flatten().cpu().sort()
    centre, deviation = (numbers(values.detach().cpu()[order]) for values in (mean, variance.sqrt()))
    for sigma in sorted(sigmas, reverse=True):
        low, high = centre - sigma * deviation, centre + sigma * deviation
        axes.fill_between(numbers(place), low, high, color=colour, alpha=0.16, linewidth=0)
    if targets is not None:
        dots = targets.reshape(len(mean), -1)
        dots = dots[:, min(output, dots.shape[1] - 1)]
        axes.scatter(numbers(x.flatten()), numbers(dots), s=10, color=INK, alpha=0.6, linewidths=0, zorder=3)
    axes.plot(numbers(place), centre, color=colour, linewidth=1.6, label=label or None)
