"""One picture of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..likelihoods.prediction import Prediction
from ..metrics.evaluation import Evaluation, known
from .basic import draw_histograms
from .quality import column_of, draw_calibration, draw_parity, draw_sparsification
from .style import BLUE, INK, ORANGE, figure


def overview(
    evaluation: Evaluation, path: str | Path | None = None, *, output: str | None = None, dpi: int = 100
) -> Any:
    """Four panels: prediction against target, calibration, sparsification, and sizes of the error bar.

    Args:
        evaluation: From `trustgp.evaluate`.
        path: The PNG, PDF or SVG to write; None: none.
        output: The name of one output; None: all together, the first for prediction against target.
        dpi: Pixels per inch of a PNG.

    Returns:
        The matplotlib figure.
    """
    first = output or next(iter(evaluation.outputs))
    found = evaluation.scores[output or "all"]
    with figure(path, width=8.4, height=6.8, dpi=dpi) as drawn:
        (parity, calibration), (sparsification, sizes) = drawn.subplots(2, 2)
        draw_parity(parity, evaluation, output=first)
        parity.set_title(
            f"{first}: prediction against target" if len(evaluation.outputs) > 1 else "Prediction"
        )
        draw_calibration(calibration, evaluation, output=output, label="observed")
        calibration.set_title(f"Calibration: {100 * found.calibration_error:.1f} % off on average")
        draw_sparsification(sparsification, evaluation, output=output)
        sparsification.set_title("Sparsification: does std rank the errors?")
        _draw_sizes(sizes, evaluation, output)
        for axes in (calibration, sparsification, sizes):
            axes.legend(fontsize=8)
    return drawn


def _draw_sizes(axes: Any, evaluation: Evaluation, output: str | None) -> None:
    column = None if output is None else column_of(evaluation, output)
    samples = {"these rows": _deviations(evaluation.prediction, column)}
    title = "Size of the error bar"
    if evaluation.ood_prediction is not None:
        samples["foreign rows"] = _deviations(evaluation.ood_prediction, column)
        title += f": AUROC {evaluation.scores[output or 'all'].auroc_std:.3f}"
    draw_histograms(axes, samples, colours=(BLUE, ORANGE), bins=40)
    rmse = evaluation.scores[output or "all"].rmse
    axes.axvline(rmse, color=INK, linewidth=1, linestyle="--", label="RMSE of these rows")
    axes.set(title=title, xlabel="std", ylabel="share of rows")


def _deviations(prediction: Prediction, column: int | None) -> Tensor:
    """The std of each row, of one output or on average, shape [n]."""
    std = known(prediction)[1].sqrt()
    return std.mean(1) if column is None else std[:, column]
