"""How good are a classifier's probabilities and its novelty score, all told?

Every row counts. For one without a finite prediction all classes are equally probable; it is not left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..likelihoods import Classification
from ..likelihoods.class_prediction import ClassPrediction
from .classes import brier, class_nll, entropy, expected_calibration_error, reliability_curve
from .ranking import selective_risk
from .score_report import RowCounts, ScoreReport, risk_curves, score_field, told_apart


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Those of foreign rows are None where there are no such rows.

    Args:
        nll: Mean negative log likelihood of the labels, in nats.
        ece: Expected calibration error, 15 bins of equal width.
        network_nll, network_ece: The same of softmax(z), without any error bar.
        brier: Mean Brier score, from 0 to 2.
        accuracy: Share of rows whose predicted class is the true one.
        aurc: Area under the risk-coverage curve: the error rate of the rows with the highest probability of
            their class, averaged over how many are kept. aurc_score: ranked by the novelty score.
        aurc_oracle: The same, had all right rows come first: the lowest there is.
        auroc_score, fpr95_score: How well the novelty score tells foreign rows from these.
        auroc_entropy, fpr95_entropy: The same by the entropy of the probabilities.
        ood_nll, ood_accuracy: Of the foreign rows; None without their labels.
    """

    nll: float = score_field("NLL", "low")
    network_nll: float = score_field("... of the network's own softmax")
    ece: float = score_field("calibration error (ECE, 15 bins)", "0", share=True)
    network_ece: float = score_field("... of the network's own softmax", share=True)
    brier: float = score_field("Brier score", "low")
    accuracy: float = score_field("accuracy", "high", share=True)
    aurc: float = score_field("AURC, rows ranked by probability", "below error")
    aurc_score: float = score_field("AURC, rows ranked by score", "below error")
    aurc_oracle: float = score_field("AURC, ranked by the errors")
    auroc_score: float | None = score_field("AUROC by score", "1", foreign=True)
    fpr95_score: float | None = score_field("FPR95 by score", "0 %", share=True, foreign=True)
    auroc_entropy: float | None = score_field("AUROC by entropy", "1", foreign=True)
    fpr95_entropy: float | None = score_field("FPR95 by entropy", "0 %", share=True, foreign=True)
    ood_nll: float | None = score_field("foreign rows: NLL", "low", foreign=True)
    ood_accuracy: float | None = score_field("foreign rows: accuracy", "high", share=True, foreign=True)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClassEvaluation(ScoreReport, ClassScores):
    """The scores of n rows, and the curves behind them.

    Args:
        bin_rows, confidence, right: Of each of 15 bins: rows, mean probability of the predicted class, and
            share of right ones, each [15].
        labels, ood_labels: What the predictions were scored against, int64, [n].
    """

    kind: ClassVar[type] = ClassScores

    bin_rows: Tensor
    confidence: Tensor
    right: Tensor
    prediction: ClassPrediction
    labels: Tensor
    ood_prediction: ClassPrediction | None
    ood_labels: Tensor | None

    @staticmethod
    def fits(prediction: ClassPrediction, rows: int, outputs: int) -> bool:
        """Whether there are as many rows as labels, of which each has one however many classes there are."""
        return len(prediction) == rows

    @classmethod
    def of(
        cls,
        prediction: ClassPrediction,
        targets: Tensor,
        ood: ClassPrediction | None = None,
        ood_targets: Tensor | None = None,
        *,
        names: Sequence[str] = (),
    ) -> ClassEvaluation:
        """Every score of a prediction of classes; what are no class numbers is refused.

        Args:
            prediction: Of n rows.
            targets: Class numbers, shape [n, 1].
            ood: Of m foreign rows.
            ood_targets: Class numbers, shape [m, 1].
            names: Not needed: the classes have one table.
        """
        for name, values in (("data", targets), ("ood", ood_targets)):
            if values is not None:
                Classification().check(prediction.cooled.shape[1], values, name=name)
        p, labels = prediction.probabilities, targets.flatten().long().to(prediction.mean.device)
        ood_labels = None if ood_targets is None else ood_targets.flatten().long()
        wrong = (prediction.classes != labels).double()
        own = _network_softmax(prediction)
        areas, curves = risk_curves(-p.amax(dim=1), wrong)
        bin_rows, confidence, right = reliability_curve(p, labels)
        values = {
            "nll": class_nll(p, labels).mean(),
            "accuracy": 1.0 - wrong.mean(),
            "brier": brier(p, labels).mean(),
            "ece": expected_calibration_error(p, labels),
            "network_nll": class_nll(own, labels).mean(),
            "network_ece": expected_calibration_error(own, labels),
            "aurc_score": selective_risk(prediction.score, wrong).mean(),
            **areas,
            **({} if ood is None else _foreign_scores(prediction, ood, ood_labels)),
        }
        scores: dict[str, Any] = {name: float(value) for name, value in values.items()}
        return cls(
            **scores,
            **curves,
            subject=f"{p.shape[1]} classes",
            counts=RowCounts.of(prediction.valid, None if ood is None else ood.valid),
            bin_rows=bin_rows,
            confidence=confidence,
            right=right,
            prediction=prediction,
            labels=labels,
            ood_prediction=ood,
            ood_labels=ood_labels,
        )

    @property
    def scores(self) -> ClassScores:
        """The scores alone."""
        return self.average

    @property
    def curves(self) -> dict[str, dict[str, Tensor]]:
        """Reliability and selective risk."""
        bins = {"rows": self.bin_rows, "confidence": self.confidence, "right": self.right}
        return {"reliability": bins, **super().curves}

    def __repr__(self) -> str:
        return (
            f"<ClassEvaluation of {len(self)} rows: nll {self.nll:.4g}, accuracy {self.accuracy:.3f}, "
            f"ece {self.ece:.3f}>"
        )


def _network_softmax(prediction: ClassPrediction) -> Tensor:
    """softmax(z), as the network has it; where nothing is known, all classes alike."""
    finite = torch.isfinite(prediction.temperature)
    temperature = torch.where(finite, prediction.temperature, 0.0)
    return torch.softmax(prediction.cooled.double() * temperature[:, None], dim=1)


def _foreign_scores(
    prediction: ClassPrediction, ood: ClassPrediction, labels: Tensor | None
) -> dict[str, Tensor]:
    """How foreign rows are told apart, and how well they are predicted."""
    found = told_apart(
        {
            "score": (prediction.score, ood.score),
            "entropy": (entropy(prediction.probabilities), entropy(ood.probabilities)),
        }
    )
    if labels is None:
        return found
    labels = labels.to(ood.mean.device)
    right = (ood.classes == labels).double()
    return {**found, "ood_nll": class_nll(ood.probabilities, labels).mean(), "ood_accuracy": right.mean()}
