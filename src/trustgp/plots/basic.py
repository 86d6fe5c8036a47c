"""Panels: bands around a line, and histograms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..likelihoods.prediction import Prediction
from ..metrics.evaluation import mean_and_variance
from .style import BLUE, INK, PALETTE, numbers


def draw_band(
    axes: Any, x: Tensor, mean: Tensor, half: Tensor, *, colour: str = BLUE, label: str = "", line: str = ""
) -> None:
    """Draw a line and the band mean - half .. mean + half around it, shape [n] each; x is ascending; `label`
    and `line` are the entries of the band and the line in the legend."""
    place, centre, width = (numbers(values) for values in (x, mean, half))
    style = {"color": colour, "alpha": 0.2, "linewidth": 0, "label": label or None}
    axes.fill_between(place, centre - width, centre + width, **style)
    axes.plot(place, centre, color=colour, linewidth=1.6, label=line or None)


def draw_bands(
    axes: Any,
    x: Tensor,
    prediction: Prediction,
    *,
    targets: Tensor | None = None,
    output: int = 0,
    colour: str = BLUE,
    label: str = "prediction",
) -> None:
    """Draw a prediction along one input: the mean, and bands of one, two and three standard deviations.

    Args:
        x: Where the prediction was made, in any order, shape [n] or [n, 1].
        targets: Targets to draw as dots, shape [n], [n, 1] or [n, C].
        output: Which output to draw.
    """
    mean, variance = (values[:, output] for values in mean_and_variance(prediction))
    if x.numel() != len(mean):
        raise ValueError(f"x has shape {tuple(x.shape)} for a prediction of {len(mean)} rows; one each.")
    place, order = x.detach().flatten().cpu().sort()
    centre, deviation = (numbers(values.detach().cpu()[order]) for values in (mean, variance.sqrt()))
    for sigma in (3, 2, 1):  # overlapping bands are darker
        low, high = centre - sigma * deviation, centre + sigma * deviation
        axes.fill_between(numbers(place), low, high, color=colour, alpha=0.16, linewidth=0)
    if targets is not None:
        dots = targets.reshape(len(mean), -1)
        dots = dots[:, min(output, dots.shape[1] - 1)]
        axes.scatter(numbers(x.flatten()), numbers(dots), s=10, color=INK, alpha=0.6, linewidths=0, zorder=3)
    axes.plot(numbers(place), centre, color=colour, linewidth=1.6, label=label or None)


def draw_histograms(
    axes: Any, samples: Mapping[str, Tensor], *, colours: Sequence[str] = PALETTE, bins: int = 60
) -> None:
    """Draw histograms of non-negative samples [n] by name, on a logarithmic scale; bars of each sum to one.

    Zeros have no place on such a scale: they are counted at the left end, with the smallest number above
    zero; infinite numbers are counted at the right end. The bins cover all other samples.
    """
    values = {name: numbers(sample) for name, sample in samples.items()}
    for name, sample in values.items():
        if len(sample) == 0 or not (sample >= 0).all():
            raise ValueError(f"{name}: a histogram needs at least one number, none of them negative or NaN.")
    every = np.concatenate(list(values.values()))
    within = every[(every > 0) & np.isfinite(every)]
    low, high = (within.min(), within.max()) if len(within) else (1.0, 1.0)
    if low == high:  # a single bar, with room on both sides
        low, high = low / 2, high * 2
    edges = np.geomspace(low, high, bins + 1)
    for (name, sample), colour in zip(values.items(), colours, strict=False):
        inside, share = np.clip(sample, edges[0], edges[-1]), np.full(len(sample), 1.0 / len(sample))
        axes.hist(inside, edges, weights=share, color=colour, alpha=0.65, label=name)
    axes.set_xscale("log", subs=[1.2, 1.5, 2, 3, 5, 7])  # ticks that have room for their labels
