"""All scores of class probabilities, for rows with one class or with several labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..likelihoods import Classification, MultiLabel
from ..likelihoods.multilabel import LabelPrediction
from ..likelihoods.prediction import ClassPrediction
from . import classes
from .score_report import (
    RELIABILITY,
    RISK,
    Reliability,
    RowCounts,
    RowReport,
    risk_curves,
    score_field,
    separation,
)


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Scores of rows with one class or several labels; those of foreign rows are None without such rows."""

    nll: float = score_field("NLL", "low")  # mean negative log likelihood of a class or label, in nats
    network_nll: float = score_field("... of the network's own probabilities")  # without any error bar
    ece: float = score_field("calibration error (ECE, 15 bins)", "0", share=True)  # of equal width
    network_ece: float = score_field("... of the network's own probabilities", share=True)
    brier: float = score_field("Brier score", "low")  # mean, from 0 to 2; for a label from 0 to 1
    accuracy: float = score_field("accuracy", "high", share=True)
    # Area under the risk-coverage curve: the error rate of the classes or labels with the surest probability,
    # averaged over how many are kept.
    aurc: float = score_field("AURC, ranked by probability", "below error")
    aurc_oracle: float = score_field("AURC, ranked by the errors")  # right ones first: the lowest possible
    # Separation of foreign rows from these by the novelty score and by the entropy of the probabilities.
    auroc_score: float | None = score_field("AUROC by score", "1", foreign=True)
    fpr95_score: float | None = score_field("FPR95 by score", "0 %", share=True, foreign=True)
    auroc_entropy: float | None = score_field("AUROC by entropy", "1", foreign=True)
    fpr95_entropy: float | None = score_field("FPR95 by entropy", "0 %", share=True, foreign=True)
    # Of the foreign rows; None without their labels.
    ood_nll: float | None = score_field("foreign rows: NLL", "low", foreign=True)
    ood_accuracy: float | None = score_field("foreign rows: accuracy", "high", share=True, foreign=True)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClassEvaluation(RowReport, Reliability, ClassScores):
    """The scores of n rows, and the curves behind them.

    Examples:
        >>> trustgp.evaluate(classes, (inputs, kinds), progress=False).accuracy > 0.5
        True
    """

    kind: ClassVar[type] = ClassScores
    shown = ("nll", "accuracy", "ece")
    curve_fields: ClassVar = {"reliability": RELIABILITY, "risk_curve": RISK}

    @classmethod
    def of(
        cls, prediction: ClassPrediction, targets: Tensor, foreign: Any = (None, None), *, names: Any = ()
    ) -> ClassEvaluation:
        """All scores for class numbers [n, 1]; `names` is not used, as the classes share one table column."""
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
        bins: Any = classes.reliability_curve(p, labels)
        values = {
            "nll": classes.class_nll(p, labels).mean(),
            "accuracy": 1.0 - wrong.mean(),
            "brier": classes.brier(p, labels).mean(),
            "ece": classes.expected_calibration_error(p, labels),
            "network_nll": classes.class_nll(own, labels).mean(),
            "network_ece": classes.expected_calibration_error(own, labels),
            **areas,
            **({} if ood is None else _foreign_class_scores(prediction, ood, ood_labels)),
        }
        scores: dict[str, Any] = {name: float(value) for name, value in values.items()}
        return cls(
            **scores,
            **curves,
            subject=f"{p.shape[1]} classes",
            counts=RowCounts.of(*(each.valid for each in (prediction, ood) if each is not None)),
            **dict(zip(RELIABILITY.values(), bins, strict=True)),
            prediction=prediction,
            targets=labels,
            ood_prediction=ood,
            ood_targets=ood_labels,
        )


def _foreign_class_scores(prediction: ClassPrediction, ood: ClassPrediction, labels: Any) -> dict[str, Any]:
    undecided = classes.entropy(prediction.probabilities), classes.entropy(ood.probabilities)
    scores = separation({"score": (prediction.score, ood.score), "entropy": undecided})
    if labels is not None:
        labels = labels.to(ood.mean.device)
        scores["ood_nll"] = classes.class_nll(ood.probabilities, labels).mean()
        scores["ood_accuracy"] = (ood.classes == labels).double().mean()
    return scores


@dataclass(frozen=True, kw_only=True)
class LabelScores(ClassScores):
    """Scores of one label, or of all; separation of foreign rows belongs to the row: None for one label."""

    exact: float | None = score_field("rows with all labels right", "high", share=True)  # None for one label


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LabelEvaluation(RowReport, Reliability, LabelScores):
    """The scores of n rows, each label's own, and the curves behind them.

    Averages are means over the labels, except `ece` and `network_ece`, which pool all labels.

    Examples:
        >>> nll = trustgp.evaluate(labels, (inputs, tags), progress=False).nll
    """

    kind: ClassVar[type] = LabelScores
    shown = ("nll", "accuracy", "ece")
    curve_fields: ClassVar = {"reliability": RELIABILITY, "risk_curve": RISK}

    @classmethod
    def of(
        cls, prediction: Any, targets: Tensor, foreign: Any = (None, None), *, names: Sequence[str]
    ) -> LabelEvaluation:
        """All scores for targets [n, C]; `foreign`: the prediction of foreign rows and targets, or None."""
        (ood, ood_targets), labels = foreign, prediction.labels.shape[1]
        for name, values in (("data", targets), ("ood", ood_targets)):
            if values is not None:
                MultiLabel().check(labels, values, name=name)
        targets = targets.to(prediction.mean.device) > 0
        p, network = prediction.probabilities.double(), _network_probabilities(prediction)
        wrong = (prediction.labels != targets).double()
        areas, curves = risk_curves(torch.minimum(p, 1.0 - p), wrong)
        values = {
            "nll": classes.label_nll(p, targets).mean(dim=0),
            "network_nll": classes.label_nll(network, targets).mean(dim=0),
            "brier": (p - targets.double()).square().mean(dim=0),
            "accuracy": 1.0 - wrong.mean(dim=0),
            **areas,
        }
        if ood_targets is not None:
            ood_targets = ood_targets.to(ood.mean.device) > 0
            values["ood_nll"] = classes.label_nll(ood.probabilities, ood_targets).mean(dim=0)
            values["ood_accuracy"] = (ood.labels == ood_targets).double().mean(dim=0)
        average: dict[str, Any] = {name: float(value.mean()) for name, value in values.items()}
        average["exact"] = 1.0 - float(wrong.amax(dim=1).mean())
        if ood is not None:
            marks = {"score": (prediction.score, ood.score), "entropy": (prediction.entropy, ood.entropy)}
            average |= {name: float(value) for name, value in separation(marks).items()}
        each = [{name: float(value[c]) for name, value in values.items()} for c in range(labels)]
        for name, q in (("ece", p), ("network_ece", network)):
            average[name] = float(classes.label_calibration_error(q, targets))
            for c, own in enumerate(each):
                own[name] = float(classes.label_calibration_error(q[:, c], targets[:, c]))
        bins: Any = classes.label_reliability(p, targets)
        return cls(
            **average,
            **curves,
            subject="1 label" if labels == 1 else f"{labels} labels",
            outputs={name: LabelScores(**own) for name, own in zip(names, each, strict=True)},
            counts=RowCounts.of(*(one.valid for one in (prediction, ood) if one is not None)),
            **dict(zip(RELIABILITY.values(), bins, strict=True)),
            prediction=prediction,
            targets=targets,
            ood_prediction=ood,
            ood_targets=ood_targets,
        )


def _network_probabilities(prediction: LabelPrediction) -> Tensor:
    """Probabilities of the network without any error bar, float64 [n, C]; 1/2 in invalid rows."""
    return (prediction.tempered_logits.double() * prediction.temperature.nan_to_num(0.0, 0.0, 0.0)).sigmoid()
