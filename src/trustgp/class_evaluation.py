"""How good are a classifier's probabilities and its novelty score, all told?

Every row counts. For one without a finite prediction all classes are equally probable; it is not left out.
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from . import metrics
from .class_prediction import ClassPrediction
from .scorecard import ALL, Counts, Line, as_table, plain, write_csv

CURVE_POINTS = 100  # of a risk-coverage curve that is kept; its area is taken over every row

LINES = {
    "nll": Line("NLL", "low"),
    "network_nll": Line("... of the network's own softmax", ""),
    "ece": Line("calibration error (ECE, 15 bins)", "0", share=True),
    "network_ece": Line("... of the network's own softmax", "", share=True),
    "brier": Line("Brier score", "low"),
    "accuracy": Line("accuracy", "high", share=True),
    "aurc": Line("AURC, rows ranked by probability", "below error"),
    "aurc_score": Line("AURC, rows ranked by score", "below error"),
    "aurc_oracle": Line("AURC, ranked by the errors", ""),
}
FOREIGN_LINES = {
    "auroc_score": Line("AUROC by score", "1"),
    "fpr95_score": Line("FPR95 by score", "0 %", share=True),
    "auroc_entropy": Line("AUROC by entropy", "1"),
    "fpr95_entropy": Line("FPR95 by entropy", "0 %", share=True),
    "ood_nll": Line("foreign rows: NLL", "low"),
    "ood_accuracy": Line("foreign rows: accuracy", "high", share=True),
}


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Those of foreign rows are None where there are no such rows.

    Args:
        nll: Mean negative log likelihood of the labels, in nats.
        accuracy: Share of rows whose predicted class is the true one.
        brier: Mean Brier score, from 0 to 2.
        ece: Expected calibration error, 15 bins of equal width.
        network_nll, network_ece: The same of softmax(z), without any error bar.
        aurc: Area under the risk-coverage curve: the error rate of the rows with the highest probability of
            their class, averaged over how many are kept. aurc_score: ranked by the novelty score.
        aurc_oracle: The same, had all right rows come first: the lowest there is.
        auroc_score, fpr95_score: How well the novelty score tells foreign rows from these.
        auroc_entropy, fpr95_entropy: The same by the entropy of the probabilities.
        ood_nll, ood_accuracy: Of the foreign rows; None without their labels.
    """

    nll: float
    accuracy: float
    brier: float
    ece: float
    network_nll: float
    network_ece: float
    aurc: float
    aurc_score: float
    aurc_oracle: float
    auroc_score: float | None = None
    fpr95_score: float | None = None
    auroc_entropy: float | None = None
    fpr95_entropy: float | None = None
    ood_nll: float | None = None
    ood_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClassEvaluation(ClassScores):
    """The scores of n rows, and the curves behind them.

    Args:
        counts: Rows, and how many have no finite prediction.
        bin_rows, confidence, right: Of each of 15 bins: rows, mean probability of the predicted class, and
            share of right ones, each [15].
        kept: Shares of the rows that are kept, the surest first, shape [100].
        risk, oracle_risk: Their error rate, shape [100].
        prediction, labels: What was scored.
        ood_prediction, ood_labels: The foreign rows, where given.
    """

    counts: Counts
    bin_rows: Tensor
    confidence: Tensor
    right: Tensor
    kept: Tensor
    risk: Tensor
    oracle_risk: Tensor
    prediction: ClassPrediction
    labels: Tensor
    ood_prediction: ClassPrediction | None
    ood_labels: Tensor | None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def scores(self) -> ClassScores:
        """The scores alone."""
        return ClassScores(**{field.name: getattr(self, field.name) for field in fields(ClassScores)})

    def table(self) -> Table:
        """For a terminal: a line for each score."""
        classes = f"{self.prediction.cooled.shape[1]} classes"
        return as_table({ALL: self.scores}, self.counts, lines=(LINES, FOREIGN_LINES), what=classes)

    def to_dict(self) -> dict[str, Any]:
        """Scores and curves as plain values that JSON can hold; what is infinite is the text "inf"."""
        curves = {
            "reliability": {"rows": self.bin_rows, "confidence": self.confidence, "right": self.right},
            "risk_curve": {"kept": self.kept, "risk": self.risk, "oracle": self.oracle_risk},
        }
        lists = {
            name: {key: value.tolist() for key, value in curve.items()} for name, curve in curves.items()
        }
        return plain({**asdict(self.counts), "scores": {ALL: asdict(self.scores)}, **lists})

    def to_csv(self, path: str | Path) -> Path:
        """Write the scores, one in a line (metric, output, value), whole or not at all."""
        return write_csv(Path(path), {ALL: self.scores}, self.counts, lines=(LINES, FOREIGN_LINES))

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=400, color_system=None).print(self.table())  # as wide as it needs
        return text.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        return (
            f"<ClassEvaluation of {len(self)} rows: nll {self.nll:.4g}, accuracy {self.accuracy:.3f}, "
            f"ece {self.ece:.3f}>"
        )


def score_classes(
    prediction: ClassPrediction,
    labels: Tensor,
    ood: ClassPrediction | None = None,
    ood_labels: Tensor | None = None,
) -> ClassEvaluation:
    """Every score of a prediction of classes; `trustgp.evaluate` is the door that checks what comes in.

    Args:
        prediction: Of n rows.
        labels: Class numbers, shape [n].
        ood: Of m foreign rows.
        ood_labels: Class numbers, shape [m].
    """
    p, labels = prediction.probabilities, labels.to(prediction.mean.device)
    wrong = (prediction.classes != labels).double()
    own = _network_softmax(prediction)
    risk = metrics.selective_risk(-p.amax(dim=1), wrong)
    oracle = metrics.selective_risk(wrong, wrong)
    number, confidence, right = metrics.reliability_curve(p, labels)
    steps = torch.arange(1, CURVE_POINTS + 1, device=p.device)
    last = (steps * len(p) + CURVE_POINTS - 1) // CURVE_POINTS - 1  # whole numbers: no rounding past n
    values = {
        "nll": metrics.class_nll(p, labels).mean(),
        "accuracy": 1.0 - wrong.mean(),
        "brier": metrics.brier(p, labels).mean(),
        "ece": metrics.expected_calibration_error(p, labels),
        "network_nll": metrics.class_nll(own, labels).mean(),
        "network_ece": metrics.expected_calibration_error(own, labels),
        "aurc": risk.mean(),
        "aurc_score": metrics.selective_risk(prediction.score, wrong).mean(),
        "aurc_oracle": oracle.mean(),
        **({} if ood is None else _foreign_scores(prediction, ood, ood_labels)),
    }
    counts = Counts(
        len(labels),
        int((~prediction.valid).sum()),
        0 if ood is None else len(ood),
        0 if ood is None else int((~ood.valid).sum()),
    )
    return ClassEvaluation(
        **{name: float(value) for name, value in values.items()},
        counts=counts,
        bin_rows=number,
        confidence=confidence,
        right=right,
        kept=(last + 1).double() / len(p),
        risk=risk[last],
        oracle_risk=oracle[last],
        prediction=prediction,
        labels=labels,
        ood_prediction=ood,
        ood_labels=ood_labels,
    )


def _network_softmax(prediction: ClassPrediction) -> Tensor:
    """softmax(z), as the network has it."""
    return torch.softmax(prediction.cooled.double() * _finite(prediction.temperature)[:, None], dim=1)


def _finite(temperature: Tensor) -> Tensor:
    return torch.where(torch.isfinite(temperature), temperature, 0.0)  # where nothing is known


def _foreign_scores(
    prediction: ClassPrediction, ood: ClassPrediction, labels: Tensor | None
) -> dict[str, Tensor]:
    """How foreign rows are told apart, and how well they are predicted."""
    marks = {
        "score": (prediction.score, ood.score),
        "entropy": tuple(metrics.entropy(p.probabilities) for p in (prediction, ood)),
    }
    found = {}
    for mark, (familiar, foreign) in marks.items():
        found[f"auroc_{mark}"] = metrics.auroc(familiar, foreign)
        found[f"fpr95_{mark}"] = metrics.fpr95(familiar, foreign)
    if labels is not None:
        labels = labels.to(ood.mean.device)
        found["ood_nll"] = metrics.class_nll(ood.probabilities, labels).mean()
        found["ood_accuracy"] = (ood.classes == labels).double().mean()
    return found
