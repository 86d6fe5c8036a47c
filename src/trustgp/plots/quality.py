"""Is the error bar right? Calibration, sparsification, and predictions against the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..metrics import interval_width
from ..metrics.evaluation import Evaluation, known, parts
from .style import BLUE, GREEN, GREY, INK, RED, numbers


def draw_calibration(
    axes: Any, evaluation: Evaluation, *, output: str | None = None, colour: str = BLUE, label: str = ""
) -> None:
    """Observed against promised coverage; on the diagonal the error bar is honest, below it too small.

    Several methods may be drawn on the same axes, one call each.

    Args:
        axes: Of matplotlib.
        evaluation: From `trustgp.evaluate`.
        output: The name of one output; None: the average, and thin lines for the outputs.
        colour: Of the line.
        label: In the legend.
    """
    levels, curve = numbers(evaluation.levels), curve_of(evaluation, evaluation.observed, output)
    if not axes.lines:
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--", label="honest")
    if output is None and len(evaluation.outputs) > 1:
        axes.plot(levels, numbers(evaluation.observed), color=colour, linewidth=0.7, alpha=0.35)
    axes.fill_between(levels, levels, curve, color=colour, alpha=0.15, linewidth=0)
    axes.plot(levels, curve, color=colour, linewidth=1.8, label=label or None)
    axes.set(
        xlim=(0, 1), ylim=(0, 1), xlabel="promised: level of the interval", ylabel="observed: share inside"
    )


def draw_sparsification(
    axes: Any,
    evaluation: Evaluation,
    *,
    output: str | None = None,
    colour: str = BLUE,
    label: str = "ranked by std",
    references: bool = True,
) -> None:
    """Root mean squared error of the rows that are kept when the least certain are set aside.

    Args:
        axes: Of matplotlib.
        evaluation: From `trustgp.evaluate`.
        output: The name of one output; None: the average of their squared errors.
        colour: Of the line.
        label: In the legend.
        references: Draw the oracle's curve (rows ranked by their errors) and that of a random order.
    """
    kept = numbers(evaluation.kept)
    risk, oracle = (curve_of(evaluation, v, output) for v in (evaluation.risk, evaluation.oracle_risk))
    if references:
        rmse = np.sqrt(evaluation.scores[output or "all"].mse)
        axes.plot(
            kept, np.full_like(kept, rmse), color=GREY, linewidth=1, linestyle="--", label="random order"
        )
        axes.plot(kept, np.sqrt(oracle), color=GREEN, linewidth=1.2, label="oracle")
    axes.plot(kept, np.sqrt(risk), color=colour, linewidth=1.8, label=label or None)
    axes.set(xlim=(0, 1), xlabel="share of rows kept, the surest first", ylabel="RMSE of what is kept")
    axes.set_ylim(bottom=0)


def draw_parity(
    axes: Any,
    evaluation: Evaluation,
    *,
    output: str | None = None,
    colour: str = BLUE,
    label: str = "",
    most: int = 300,
) -> None:
    """Prediction with its 95 % interval against the target; intervals that miss it are red.

    Rows without a finite prediction cannot be drawn.

    Args:
        axes: Of matplotlib.
        evaluation: From `trustgp.evaluate`.
        output: The name of one output; None: the first.
        colour: Of the dots and intervals that hold their target.
        label: In the legend.
        most: Rows drawn; of more, so many are picked evenly along the targets.
    """
    column = column_of(evaluation, output or next(iter(evaluation.outputs)))
    mean, variance = (values[:, column].detach().cpu() for values in known(evaluation.prediction))
    target = evaluation.targets[:, column].detach().cpu()
    rows = torch.isfinite(mean) & torch.isfinite(variance)
    chosen = _spread(target[rows], most)
    truth, centre = (values[rows][chosen] for values in (target, mean))
    around, excess = (
        values[:, column].detach().cpu()[rows][chosen] for values in parts(evaluation.prediction)
    )
    half = interval_width(around, excess=excess) / 2
    missed = (truth.double() - centre.double()).abs() > half
    style: dict[str, Any] = {"fmt": "o", "markersize": 2.5, "elinewidth": 0.7, "alpha": 0.5}
    for some, shade, name in ((~missed, colour, label), (missed, RED, "")):
        x, y, bar = (numbers(values[some]) for values in (truth, centre, half))
        axes.errorbar(x, y, yerr=bar, color=shade, ecolor=shade, label=name or None, **style)
    ends = [float(target.min()), float(target.max())]
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle="--")
    axes.set(xlabel="target", ylabel="prediction and 95 % interval")


def curve_of(evaluation: Evaluation, values: Tensor, output: str | None) -> np.ndarray:
    """One output's curve, or the average, from all outputs' [L, C]; shape [L]."""
    if output is None:
        return numbers(values.mean(1))
    return numbers(values[:, column_of(evaluation, output)])


def column_of(evaluation: Evaluation, output: str) -> int:
    """Where an output stands; an unknown name is a ValueError that lists the known ones."""
    names = list(evaluation.outputs)
    if output not in names:
        raise ValueError(f"output={output!r}; this evaluation has {names}.")
    return names.index(output)


def _spread(values: Tensor, most: int) -> Tensor:
    """Indices of at most so many values, evenly along their order."""
    order = values.argsort(stable=True)
    if len(order) <= most:
        return order
    return order[torch.linspace(0, len(order) - 1, most).round().long()]
