"""All scores of a prediction of real numbers, as a table or a dict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..likelihoods.prediction import Prediction
from ..tangents.network import as_matrix
from . import gaussian
from .score_report import RISK, RowCounts, RowReport, risk_curves, score_field, separation


@dataclass(frozen=True, kw_only=True)
class RegressionScores:
    """Scores of one output, or of all; scores of foreign rows are None where there are no such rows."""

    nll: float = score_field("NLL", "low")  # mean negative log likelihood, in nats
    # NLL of a Gaussian with the same mean and variance, for comparison with methods that give no other.
    gaussian_nll: float = score_field("NLL, as a Gaussian", "low")
    crps: float = score_field("CRPS", "low")  # mean continuous ranked probability score
    rmse: float = score_field("RMSE", "low")
    mse: float = score_field("MSE", "low")  # mean squared error
    # Area under the selective-risk curve: the mean squared error of the rows with the smallest std, averaged
    # over how many are kept. It lies near the mse where std does not rank the errors.
    aurc: float = score_field("AURC, rows ranked by std", "below MSE")
    aurc_oracle: float = score_field("AURC, ranked by the errors")  # the lowest possible
    coverage: float = score_field("inside the 95 % interval", "95 %", share=True)
    sharpness: float = score_field("width of that interval", "low")
    # Mean absolute difference of the coverage curve from the nominal coverage.
    calibration_error: float = score_field("calibration error", "0", share=True)
    # Separation of foreign rows from these by std, and by novelty: None where the method has none, and for a
    # single output, since novelty belongs to the row.
    auroc_std: float | None = score_field("AUROC by std", "1", foreign=True)
    fpr95_std: float | None = score_field("FPR95 by std", "0 %", share=True, foreign=True)
    auroc_novelty: float | None = score_field("AUROC by novelty", "1", foreign=True)
    fpr95_novelty: float | None = score_field("FPR95 by novelty", "0 %", share=True, foreign=True)
    # Of the foreign rows; None without their targets.
    ood_nll: float | None = score_field("foreign rows: NLL", "low", foreign=True)
    ood_mse: float | None = score_field("foreign rows: MSE", "low", foreign=True)
    ood_coverage: float | None = score_field("foreign rows: inside 95 %", "95 %", share=True, foreign=True)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation(RowReport, RegressionScores):
    """Scores of n rows, averaged over the outputs and of each output, and the curves behind them.

    Averages are plain means over the outputs, except for `rmse`, the root of the averaged mse, and for
    `auroc_std` and `fpr95_std`, for which a row's score is its mean std. Where outputs have different
    units, look at them one by one.

    Examples:
        >>> nll = trustgp.evaluate(model, held_out, progress=False).nll
    """

    kind: ClassVar[type] = RegressionScores
    shown = ("nll", "rmse", "coverage")
    curve_fields: ClassVar = {"coverage_curve": {n: n for n in ("levels", "observed")}, "risk_curve": RISK}

    levels: Tensor  # nominal coverage [100]
    observed: Tensor  # observed coverage [100, C]

    @classmethod
    def of(
        cls, prediction: Prediction, targets: Tensor, foreign: Any = (None, None), *, names: Sequence[str]
    ) -> Evaluation:
        """All scores for targets [n, C]; `foreign`: a prediction of foreign rows, targets [m, C], or None."""
        ood, ood_targets = foreign
        (mean, variance), usable = mean_and_variance(prediction), finite(prediction)
        targets = targets.to(mean.device)
        levels, observed = gaussian.coverage_curve(usable, targets)
        areas, curves = risk_curves(variance, gaussian.squared_error(mean, targets))
        values = {
            **_fit_to_targets(prediction, targets),
            "calibration_error": gaussian.calibration_error(levels, observed),
            "gaussian_nll": gaussian.gaussian_nll(mean, variance, targets).mean(0),
            "crps": usable.crps(targets).mean(0),
            "sharpness": 2 * usable.distribution.half_width(0.95).mean(0),
            **areas,
            **({} if ood is None else _foreign_scores(variance, ood, ood_targets)),
        }
        average = {name: float(value.mean()) for name, value in values.items()}
        if ood is not None:  # by one number a row: its mean std, and its novelty where the method has one
            own, new = (mean_and_variance(p)[1].double().sqrt().mean(1) for p in (prediction, ood))
            marks, novelty = {"std": (own, new)}, (prediction.novelty, ood.novelty)
            marks |= {"novelty": novelty} if len(torch.cat(novelty).unique()) > 1 else {}  # not if constant
            average |= {name: float(value) for name, value in separation(marks).items()}
        predictions = [prediction] if ood is None else [prediction, ood]
        columns = [{name: float(value[c]) for name, value in values.items()} for c in range(len(names))]
        each = [RegressionScores(**own, rmse=own["mse"] ** 0.5) for own in columns]
        return cls(
            **average,
            rmse=average["mse"] ** 0.5,
            **curves,
            subject=f"{len(names)} {'output' if len(names) == 1 else 'outputs'}",
            outputs=dict(zip(names, each, strict=True)),
            counts=RowCounts.of(*(finite(p).epistemic.isfinite().all(dim=1) & p.valid for p in predictions)),
            levels=levels,
            observed=observed,
            prediction=prediction,
            targets=targets,
            ood_prediction=ood,
            ood_targets=ood_targets,
        )

    @cached_property
    def corrected(self) -> Evaluation:
        """Evaluation of the same rows about the corrected mean, without predicting again."""
        inner, foreign = self.prediction.corrected, getattr(self.ood_prediction, "corrected", None)
        if inner is self.prediction:
            return self
        return self.of(inner, self.targets, (foreign, self.ood_targets), names=list(self.outputs))


def mean_and_variance(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Mean and variance, each [n, C]; the variance is infinite where either is not a finite number."""
    mean, variance = as_matrix(prediction.mean), as_matrix(prediction.variance)
    return mean, torch.where(torch.isfinite(mean) & torch.isfinite(variance), variance, torch.inf)


def finite(prediction: Prediction) -> Prediction:
    """Prediction as [n, C], with an infinite variance where mean or variance is not a finite number."""
    lost = torch.isinf(mean_and_variance(prediction)[1])
    names = ("mean", "epistemic", "aleatoric", "excess", "rare", "df", "fallback_weight", "fallback_location")
    values = {k: as_matrix(v) for k in names if (v := getattr(prediction, k)) is not None}
    values["epistemic"] = torch.where(lost, torch.inf, values["epistemic"])
    values["excess"] = torch.where(lost, 0.0, values["excess"])
    return replace(prediction, **values)


def _fit_to_targets(prediction: Prediction, targets: Tensor) -> dict[str, Tensor]:
    """NLL, MSE and coverage of each output, shape [C]."""
    usable, level = finite(prediction), torch.tensor([0.95], dtype=torch.float64)
    return {
        "nll": -usable.log_prob(targets).mean(0),
        "mse": gaussian.squared_error(usable.mean, targets).mean(0),
        "coverage": gaussian.coverage_curve(usable, targets, levels=level)[1][0],
    }


def _foreign_scores(variance: Tensor, ood: Prediction, targets: Tensor | None) -> dict[str, Tensor]:
    """Separation of foreign rows by each output's std, and scores of their predictions; shape [C]."""
    foreign = mean_and_variance(ood)[1]
    separations = [separation({"std": both}) for both in zip(variance.T, foreign.T, strict=True)]
    fit = {} if targets is None else _fit_to_targets(ood, targets.to(foreign.device))
    scores = {name: torch.stack([each[name] for each in separations]) for name in separations[0]}
    return scores | {f"ood_{name}": value for name, value in fit.items()}
