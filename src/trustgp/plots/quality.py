"""The quality of an error bar: calibration, sparsification, parity.

An `evaluation` is a result of `trustgp.evaluate`, `output` the name of one of its outputs.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.chunking import evenly
from ..metrics.evaluation import Evaluation, finite, mean_and_variance
from .basic import draw_histograms
from .style import BLUE, GREEN, GREY, INK, ORANGE, RED, figure, numbers

DASHED: dict[str, Any] = {"linewidth": 1, "linestyle": "--"}
MAX_DOTS = 300  # predictions in a panel


def draw_calibration(
    axes: Any, evaluation: Evaluation, *, output: str | None = None, colour: str = BLUE, label: str = ""
) -> None:
    """Draw observed against nominal coverage; below the diagonal the error bar is too small.

    Several methods may be drawn on the same axes, one call each. Without `output` the average is drawn,
    with thin lines for the single outputs.
    """
    levels, curve = map(numbers, (evaluation.levels, _of_output(evaluation, evaluation.observed, output)))
    if not axes.lines:
        axes.plot([0, 1], [0, 1], color=INK, label="ideal", **DASHED)
    if output is None and len(evaluation.outputs) > 1:
        axes.plot(levels, numbers(evaluation.observed), color=colour, linewidth=0.7, alpha=0.35)
    axes.fill_between(levels, levels, curve, color=colour, alpha=0.15, linewidth=0)
    axes.plot(levels, curve, color=colour, linewidth=1.8, label=label or None)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set(xlabel="nominal coverage", ylabel="observed coverage")


def draw_sparsification(
    axes: Any,
    evaluation: Evaluation,
    *,
    output: str | None = None,
    colour: str = BLUE,
    label: str = "ranked by std",
) -> None:
    """Draw the root mean squared error of the rows that are kept when the least certain are left out.

    Without `output` the squared errors are averaged. The curves of the oracle (rows ranked by their errors)
    and of a random order are drawn once.
    """
    kept, squared = numbers(evaluation.kept), (evaluation.risk, evaluation.oracle_risk)
    risk, oracle = (numbers(_of_output(evaluation, values, output)) for values in squared)
    if not axes.lines:
        rmse = np.sqrt(evaluation.scores[output or "all"].mse)
        axes.plot(kept, np.full_like(kept, rmse), color=GREY, label="random order", **DASHED)
        axes.plot(kept, np.sqrt(oracle), color=GREEN, linewidth=1.2, label="oracle")
    axes.plot(kept, np.sqrt(risk), color=colour, linewidth=1.8, label=label or None)
    axes.set(xlim=(0, 1), xlabel="share of rows kept, the most certain first", ylabel="RMSE of kept rows")
    axes.set_ylim(bottom=0)


def draw_parity(axes: Any, evaluation: Evaluation, *, output: str | None = None) -> None:
    """Draw predictions with their 95 % intervals against targets; intervals that miss them are red.

    Rows without a finite prediction cannot be drawn. Of more than 300 rows, 300 are drawn, evenly along
    the sorted targets. Without `output` the first is drawn.
    """
    output = output or next(iter(evaluation.outputs))
    prediction = finite(evaluation.prediction)
    every = (evaluation.targets, prediction.mean, prediction.distribution.half_width(0.95))
    target, mean, width = (_of_output(evaluation, v, output).detach().cpu() for v in every)
    rows = torch.isfinite(mean) & torch.isfinite(width)
    chosen = target[rows].argsort(stable=True)[evenly(int(rows.sum()), MAX_DOTS)]
    truth, centre, half = (values[rows][chosen] for values in (target, mean, width))
    missed = (truth.double() - centre.double()).abs() > half
    style: dict[str, Any] = {"fmt": "o", "markersize": 2.5, "elinewidth": 0.7, "alpha": 0.5}
    for subset, shade in ((~missed, BLUE), (missed, RED)):
        x, y, bar = (numbers(values[subset]) for values in (truth, centre, half))
        axes.errorbar(x, y, yerr=bar, color=shade, ecolor=shade, **style)
    ends = [float(target.min()), float(target.max())]
    axes.plot(ends, ends, color=INK, **DASHED)
    axes.set(xlabel="target", ylabel="prediction and 95 % interval")


def _of_output(evaluation: Evaluation, values: Tensor, output: str | None) -> Tensor:
    """One output's column of [n, C], or the average of all; shape [n]."""
    names = list(evaluation.outputs)
    if output is not None and output not in names:
        raise ValueError(f"output={output!r}; this evaluation has {names}.")
    return values.mean(1) if output is None else values[:, names.index(output)]


def overview(
    evaluation: Evaluation, path: str | Path | None = None, *, output: str | None = None, dpi: int = 100
) -> Any:
    """Draw a figure: prediction against target, calibration, sparsification, and sizes of the error bar.

    Without `output` the panels show all outputs together, except prediction against target: the first.
    """
    first = output or next(iter(evaluation.outputs))
    scores = evaluation.scores[output or "all"]
    with figure(path, width=8.4, height=6.8, dpi=dpi) as drawn:
        (parity, calibration), (sparsification, sizes) = drawn.subplots(2, 2)
        draw_parity(parity, evaluation, output=first)
        several = len(evaluation.outputs) > 1
        parity.set_title(f"{first}: prediction against target" if several else "Prediction")
        draw_calibration(calibration, evaluation, output=output, label="observed")
        calibration.set_title(f"Calibration: {100 * scores.calibration_error:.1f} % off on average")
        draw_sparsification(sparsification, evaluation, output=output)
        sparsification.set_title("Sparsification: does std rank the errors?")
        predictions, title = {"these rows": evaluation.prediction}, "Size of the error bar"
        if evaluation.ood_prediction is not None:
            predictions["foreign rows"] = evaluation.ood_prediction
            title += f": AUROC {scores.auroc_std:.3f}"
        stds = {name: mean_and_variance(prediction)[1].sqrt() for name, prediction in predictions.items()}
        samples = {name: _of_output(evaluation, std, output) for name, std in stds.items()}
        draw_histograms(sizes, samples, colours=(BLUE, ORANGE), bins=40)
        sizes.axvline(scores.rmse, color=INK, label="RMSE of these rows", **DASHED)
        sizes.set(title=title, xlabel="std", ylabel="share of rows")
        for axes in (calibration, sparsification, sizes):
            axes.legend(fontsize=8)
    return drawn
