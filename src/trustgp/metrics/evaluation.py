"""All scores of a prediction, as a table or a dict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..likelihoods import Classification
from ..likelihoods.prediction import ClassPrediction, Prediction
from ..tangents.network import as_matrix
from . import gaussian
from .classes import brier, class_nll, entropy, expected_calibration_error, reliability_curve
from .score_report import RELIABILITY, RISK, RowCounts, RowReport, risk_curves, score_field, separation


@dataclass(frozen=True, kw_only=True)
class RegressionScores:
    """Of one output, or of all; those of foreign rows are None where there are no such rows."""

    nll: float = score_field("NLL", "low")  # mean negative log likelihood, in nats
    # The same of a Gaussian with the same mean and variance, for comparison with methods that have no other.
    gaussian_nll: float = score_field("NLL, as a Gaussian", "low")
    crps: float = score_field("CRPS", "low")  # mean continuous ranked probability score
    rmse: float = score_field("RMSE", "low")
    mse: float = score_field("MSE", "low")  # mean squared error
    # Area under the selective-risk curve: the mean squared error of the rows with the smallest std, averaged
    # over how many are kept. It lies near the mse where std does not rank the errors.
    aurc: float = score_field("AURC, rows ranked by std", "below MSE")
    aurc_oracle: float = score_field("AURC, ranked by the errors")  # the lowest there is
    coverage: float = score_field("inside the 95 % interval", "95 %", share=True)
    sharpness: float = score_field("width of that interval", "low")
    # Mean absolute difference of the coverage curve from what was promised.
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
    """The scores of n rows on average over the outputs, each output's own, and the curves behind them.

    Averages are plain means over the outputs, but for `rmse`, the root of the averaged mse, and for
    `auroc_std` and `fpr95_std`, for which a row's score is its mean std. Where outputs have different
    units, look at them one by one.

    Examples:
        >>> nll = trustgp.evaluate(model, held_out, progress=False).nll
    """

    kind: ClassVar[type] = RegressionScores
    shown = ("nll", "rmse", "coverage")
    curve_fields: ClassVar = {"coverage_curve": {n: n for n in ("levels", "observed")}, "risk_curve": RISK}

    levels: Tensor  # promised coverage [100]
    observed: Tensor  # observed coverage [100, C]
    targets: Tensor  # what the prediction was scored against [n, C]
    ood_targets: Tensor | None

    @classmethod
    def of(
        cls, prediction: Prediction, targets: Tensor, foreign: Any = (None, None), *, names: Sequence[str]
    ) -> Evaluation:
        """Every score, of targets [n, C], and of `foreign` rows: a prediction and targets [m, C], or None."""
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
        scored = {"levels": levels, "observed": observed, "targets": targets, "ood_targets": ood_targets}
        return cls(
            **average,
            rmse=average["mse"] ** 0.5,
            **curves,
            subject=f"{len(names)} {'output' if len(names) == 1 else 'outputs'}",
            outputs=dict(zip(names, each, strict=True)),
            counts=RowCounts.of(*(finite(p).epistemic.isfinite().all(dim=1) & p.valid for p in predictions)),
            **scored,
            prediction=prediction,
            ood_prediction=ood,
        )

    @cached_property
    def corrected(self) -> Evaluation:
        """The same rows, scored about the corrected mean; nothing is predicted anew."""
        return self._scored_as("corrected")

    @cached_property
    def plain(self) -> Evaluation:
        """The same rows, scored with the paper's variance."""
        return self._scored_as("plain")

    def _scored_as(self, which: str) -> Evaluation:
        inner, foreign = getattr(self.prediction, which), getattr(self.ood_prediction, which, None)
        if inner is self.prediction:
            return self
        return self.of(inner, self.targets, (foreign, self.ood_targets), names=list(self.outputs))


def mean_and_variance(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Mean and variance, each [n, C]; the variance is infinite where either is not a finite number."""
    mean, variance = as_matrix(prediction.mean), as_matrix(prediction.variance)
    return mean, torch.where(torch.isfinite(mean) & torch.isfinite(variance), variance, torch.inf)


def finite(prediction: Prediction) -> Prediction:
    """The same as [n, C], with an infinite variance where mean or variance is not a finite number."""
    lost = torch.isinf(mean_and_variance(prediction)[1])
    names = ("mean", "epistemic", "aleatoric", "excess", "rare", "df", "vague", "centre")
    values = {k: as_matrix(v) for k in names if (v := getattr(prediction, k)) is not None}
    values["epistemic"] = torch.where(lost, torch.inf, values["epistemic"])
    values["excess"] = torch.where(lost, 0.0, values["excess"])
    return replace(prediction, **values)


def _fit_to_targets(prediction: Prediction, targets: Tensor) -> dict[str, Tensor]:
    """Scores of each output, shape [C]."""
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


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Those of foreign rows are None where there are no such rows."""

    nll: float = score_field("NLL", "low")  # mean negative log likelihood of the labels, in nats
    network_nll: float = score_field("... of the network's own softmax")  # without any error bar
    ece: float = score_field("calibration error (ECE, 15 bins)", "0", share=True)  # of equal width
    network_ece: float = score_field("... of the network's own softmax", share=True)
    brier: float = score_field("Brier score", "low")  # mean, from 0 to 2
    accuracy: float = score_field("accuracy", "high", share=True)
    # Area under the risk-coverage curve: the error rate of the rows with the highest probability of their
    # class, averaged over how many are kept.
    aurc: float = score_field("AURC, rows ranked by probability", "below error")
    aurc_oracle: float = score_field("AURC, ranked by the errors")  # right rows first: the lowest there is
    # Separation of foreign rows from these by the novelty score and by the entropy of the probabilities.
    auroc_score: float | None = score_field("AUROC by score", "1", foreign=True)
    fpr95_score: float | None = score_field("FPR95 by score", "0 %", share=True, foreign=True)
    auroc_entropy: float | None = score_field("AUROC by entropy", "1", foreign=True)
    fpr95_entropy: float | None = score_field("FPR95 by entropy", "0 %", share=True, foreign=True)
    # Of the foreign rows; None without their labels.
    ood_nll: float | None = score_field("foreign rows: NLL", "low", foreign=True)
    ood_accuracy: float | None = score_field("foreign rows: accuracy", "high", share=True, foreign=True)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClassEvaluation(RowReport, ClassScores):
    """The scores of n rows, and the curves behind them.

    Examples:
        >>> trustgp.evaluate(classes, (inputs, kinds), progress=False).accuracy > 0.5
        True
    """

    kind: ClassVar[type] = ClassScores
    shown = ("nll", "accuracy", "ece")
    curve_fields: ClassVar = {"reliability": RELIABILITY, "risk_curve": RISK}

    bin_rows: Tensor  # of each of 15 bins: rows,
    confidence: Tensor  # the mean probability of the predicted class,
    right: Tensor  # and the share of right ones
    labels: Tensor  # what the prediction was scored against, int64 [n]
    ood_labels: Tensor | None

    @classmethod
    def of(
        cls, prediction: ClassPrediction, targets: Tensor, foreign: Any = (None, None), *, names: Any = ()
    ) -> ClassEvaluation:
        """Every score, against class numbers [n, 1]; the classes have one table, which needs no names."""
        ood, ood_targets = foreign
        for name, values in (("data", targets), ("ood", ood_targets)):
            if values is not None:
                Classification().check(prediction.tempered_logits.shape[1], values, name=name)
        p, labels = prediction.probabilities, targets.flatten().long().to(prediction.mean.device)
        ood_labels = None if ood_targets is None else ood_targets.flatten().long()
        wrong = (prediction.classes != labels).double()
        single = {"temperature": torch.ones_like(prediction.temperature), "covariance": None}
        own = replace(prediction, **single).probabilities.double()
        areas, curves = risk_curves(-p.amax(dim=1), wrong)
        bins: dict[str, Any] = dict(zip(RELIABILITY.values(), reliability_curve(p, labels), strict=True))
        values = {
            "nll": class_nll(p, labels).mean(),
            "accuracy": 1.0 - wrong.mean(),
            "brier": brier(p, labels).mean(),
            "ece": expected_calibration_error(p, labels),
            "network_nll": class_nll(own, labels).mean(),
            "network_ece": expected_calibration_error(own, labels),
            **areas,
            **({} if ood is None else _foreign_class_scores(prediction, ood, ood_labels)),
        }
        scores: dict[str, Any] = {name: float(value) for name, value in values.items()}
        return cls(
            **scores,
            **curves,
            subject=f"{p.shape[1]} classes",
            counts=RowCounts.of(*(each.valid for each in (prediction, ood) if each is not None)),
            **bins,
            prediction=prediction,
            labels=labels,
            ood_prediction=ood,
            ood_labels=ood_labels,
        )


def _foreign_class_scores(prediction: ClassPrediction, ood: ClassPrediction, labels: Any) -> dict[str, Any]:
    undecided = entropy(prediction.probabilities), entropy(ood.probabilities)
    scores = separation({"score": (prediction.score, ood.score), "entropy": undecided})
    if labels is not None:
        labels = labels.to(ood.mean.device)
        scores["ood_nll"] = class_nll(ood.probabilities, labels).mean()
        scores["ood_accuracy"] = (ood.classes == labels).double().mean()
    return scores
