"""Scores of several labels a row: of probabilities [n, C] against targets of 0 and 1 [n, C]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..likelihoods import MultiLabel
from ..likelihoods.multilabel import LabelPrediction
from .classes import BINS, binned
from .score_report import RELIABILITY, RISK, RowCounts, RowReport, risk_curves, score_field, separation


def label_nll(probabilities: Tensor, targets: Tensor) -> Tensor:
    r"""Negative log likelihood of each label, in nats, shape [n, C], float64: :math:`-\log p` or
    :math:`-\log(1 - p)`; infinite where the probability is not finite."""
    p = probabilities.double()
    right = torch.where(targets > 0, p, 1.0 - p)
    return torch.where(torch.isfinite(p), -right.log(), torch.inf)


def label_calibration_error(probabilities: Tensor, targets: Tensor, *, bins: int = BINS) -> Tensor:
    """How far probabilities are from the share of labels that are there, on average over 15 bins of equal
    width; those of all rows and labels together. A float64 scalar."""
    number, mean, share = label_reliability(probabilities, targets, bins=bins)
    return (number * (share - mean).abs()).sum() / number.sum()


def label_reliability(probabilities: Tensor, targets: Tensor, *, bins: int = BINS) -> tuple[Tensor, ...]:
    """Labels, their mean probability and the share of those that are there in each bin, each [bins]."""
    p, there = probabilities.double().flatten(), (targets > 0).double().flatten()
    finite = torch.isfinite(p)  # without an answer: certain, and wrong
    return binned(torch.where(finite, p, 1.0), torch.where(finite, there, 0.0), bins=bins)


@dataclass(frozen=True, kw_only=True)
class LabelScores:
    """Of one label, or of all; those of foreign rows are None where there are no such rows."""

    nll: float = score_field("NLL of a label", "low")  # mean over rows and labels, in nats
    network_nll: float = score_field("... of the network's own sigmoid")  # without any error bar
    ece: float = score_field("calibration error (ECE, 15 bins)", "0", share=True)
    network_ece: float = score_field("... of the network's own sigmoid", share=True)
    brier: float = score_field("Brier score", "low")  # mean of (p - y)^2, from 0 to 1
    accuracy: float = score_field("labels that are right", "high", share=True)
    exact: float | None = score_field("rows with all labels right", "high", share=True)  # None: of one label
    # Error rate of the labels with the surest probability, averaged over how many are kept.
    aurc: float = score_field("AURC, ranked by probability", "below error")
    aurc_oracle: float = score_field("AURC, ranked by the errors")
    # Separation of foreign rows from these: of the row, so None for a single label.
    auroc_score: float | None = score_field("AUROC by score", "1", foreign=True)
    fpr95_score: float | None = score_field("FPR95 by score", "0 %", share=True, foreign=True)
    auroc_entropy: float | None = score_field("AUROC by entropy", "1", foreign=True)
    fpr95_entropy: float | None = score_field("FPR95 by entropy", "0 %", share=True, foreign=True)
    ood_nll: float | None = score_field("foreign rows: NLL", "low", foreign=True)  # None without targets
    ood_accuracy: float | None = score_field("foreign rows: right labels", "high", share=True, foreign=True)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LabelEvaluation(RowReport, LabelScores):
    """The scores of n rows, each label's own, and the curves behind them.

    Averages are means over the labels, but for `ece` and `network_ece`, which are of all labels together.

    Examples:
        >>> nll = trustgp.evaluate(labels, (inputs, tags), progress=False).nll
    """

    kind: ClassVar[type] = LabelScores
    shown = ("nll", "accuracy", "ece")
    curve_fields: ClassVar = {"reliability": RELIABILITY, "risk_curve": RISK}

    bin_rows: Tensor  # of each of 15 bins: labels,
    confidence: Tensor  # their mean probability,
    right: Tensor  # and the share of those that are there
    targets: Tensor  # what the prediction was scored against, bool [n, C]
    ood_targets: Tensor | None

    @classmethod
    def of(
        cls, prediction: Any, targets: Tensor, foreign: Any = (None, None), *, names: Sequence[str]
    ) -> LabelEvaluation:
        """Every score, against targets [n, C], and of `foreign` rows: a prediction and targets, or None."""
        (ood, ood_targets), labels = foreign, prediction.labels.shape[1]
        for name, values in (("data", targets), ("ood", ood_targets)):
            if values is not None:
                MultiLabel().check(labels, values, name=name)
        targets = targets.to(prediction.mean.device) > 0
        values, curves = _scores_of(prediction, targets)
        both = {"ece": prediction.probabilities, "network_ece": _network_probabilities(prediction)}
        average: dict[str, Any] = {name: float(value.mean()) for name, value in values.items()}
        average |= {name: float(label_calibration_error(p, targets)) for name, p in both.items()}
        average["exact"] = float((prediction.labels == targets).all(dim=1).double().mean())
        if ood is not None:
            marks = {"score": (prediction.score, ood.score), "entropy": (prediction.entropy, ood.entropy)}
            average |= {name: float(value) for name, value in separation(marks).items()}
        if ood is not None and ood_targets is not None:
            ood_targets = ood_targets.to(ood.mean.device) > 0
            values["ood_nll"] = label_nll(ood.probabilities, ood_targets).mean(dim=0)
            values["ood_accuracy"] = (ood.labels == ood_targets).double().mean(dim=0)
            average |= {name: float(values[name].mean()) for name in ("ood_nll", "ood_accuracy")}
        each = [{name: float(value[c]) for name, value in values.items()} for c in range(labels)]
        for c, own in enumerate(each):
            own |= {k: float(label_calibration_error(p[:, c], targets[:, c])) for k, p in both.items()}
        bins: Any = label_reliability(both["ece"], targets)
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
    """Without any error bar, float64 [n, C]; 1/2 in rows that are not valid."""
    return (prediction.tempered_logits.double() * prediction.temperature.nan_to_num(0.0, 0.0, 0.0)).sigmoid()


def _scores_of(prediction: LabelPrediction, targets: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Scores of each label [C], and the curves of the surest labels."""
    p, wrong = prediction.probabilities.double(), (prediction.labels != targets).double()
    areas, curves = risk_curves(torch.minimum(p, 1.0 - p), wrong)
    scores = {
        "nll": label_nll(p, targets).mean(dim=0),
        "network_nll": label_nll(_network_probabilities(prediction), targets).mean(dim=0),
        "brier": (p - targets.double()).square().mean(dim=0),
        "accuracy": 1.0 - wrong.mean(dim=0),
    }
    return scores | areas, curves
