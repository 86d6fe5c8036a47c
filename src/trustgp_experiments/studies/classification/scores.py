"""One method on every set of test images: what the classification study writes down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trustgp.metrics import (
    accuracy,
    auroc,
    brier,
    class_nll,
    entropy,
    expected_calibration_error,
    fpr95,
    reliability_curve,
    selective_risk,
)

from ...core.cases import IN_DOMAIN, Test, number, score_tests
from ...peers.registry import Fitted

BARS = 40  # of a histogram
KEPT = 101  # points of a risk-coverage curve
SCORES = ("entropy", "variance", "information")
"""By what foreign images may be told: of the probabilities, of the logits, of members about the class."""


def score_method(fitted: Fitted, tests: Mapping[str, Test], foreign: str, device: str) -> dict[str, Any]:
    """Scores of a fitted method by test set, what it costs, and curves to draw.

    Args:
        fitted: The method.
        tests: By name; `IN_DOMAIN` is what the others are told apart from.
        foreign: Name of the test set that is drawn beside it.
        device: Where the images are put before the clock starts.
    """
    curves: dict[str, Any] = {}
    familiar_labels = tests[IN_DOMAIN][1]
    assert familiar_labels is not None, "familiar images have labels"

    def score(name: str, known: Any, said: Any, labels: Tensor | None) -> dict[str, Any]:
        scores: dict[str, Any] = {}
        if labels is not None:
            scores = _right(said.probabilities, labels)
            curves[name] = {"reliability": _reliability(said.probabilities, labels)}
        if name != IN_DOMAIN:
            familiar, strange = novelty_scores(known), novelty_scores(said)
            scores |= _told_apart(familiar, strange)
            if name == foreign:
                wrong = (known.classes != familiar_labels.to(device)).double()
                curves[name] = _pair_curves(familiar, strange, wrong)
        return scores

    return {**score_tests(fitted, tests, device, score), "curves": curves}


def novelty_scores(said: Any) -> dict[str, Tensor]:
    """What a prediction says about how foreign a row is, by `SCORES`, each [n]; only those it has."""
    found = {
        "entropy": entropy(said.probabilities),
        "variance": said.score,
        "information": getattr(said, "mutual_information", None),
    }
    return {name: value.double() for name, value in found.items() if value is not None}


def _right(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    wrong = (probabilities.argmax(dim=1) != labels).double()
    return {
        "nll": number(class_nll(probabilities, labels).mean()),
        "ece": number(expected_calibration_error(probabilities, labels)),
        "accuracy": number(accuracy(probabilities, labels)),
        "brier": number(brier(probabilities, labels).mean()),
        "aurc": number(selective_risk(1 - probabilities.amax(dim=1), wrong).mean()),
    }


def _told_apart(familiar: dict[str, Tensor], strange: dict[str, Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in SCORES:
        has = name in familiar
        found[f"auroc_{name}"] = number(auroc(familiar[name], strange[name])) if has else None
        found[f"fpr95_{name}"] = number(fpr95(familiar[name], strange[name])) if has else None
    return found


def _reliability(probabilities: Tensor, labels: Tensor) -> list[list[float]]:
    """Rows, mean confidence and share of right ones of each bin that is not empty."""
    rows, confidence, share = reliability_curve(probabilities, labels)
    filled = rows > 0
    return [values[filled].tolist() for values in (rows, confidence, share)]


def _pair_curves(
    familiar: dict[str, Tensor], strange: dict[str, Tensor], wrong: Tensor
) -> dict[str, dict[str, Any]]:
    """Histograms of either kind of images, and the risk of both together, foreign ones counted as wrong."""
    losses = torch.cat([wrong, torch.ones_like(strange["entropy"])])
    curves = {}
    for name, here in familiar.items():
        risk = selective_risk(torch.cat([here, strange[name]]), losses)
        places = torch.linspace(0, len(risk) - 1, KEPT).round().long().to(risk.device)
        edges = _edges(here, strange[name], even=name == "entropy")
        curves[name] = {
            "edges": edges.tolist(),
            "in": _shares(here, edges),
            "out": _shares(strange[name], edges),
            "risk": risk[places].tolist(),
            "area": number(risk.mean()),
        }
    return curves


def _edges(here: Tensor, there: Tensor, *, even: bool) -> Tensor:
    """Of the bars, from the smallest to the largest number of both: evenly, or by equal factors."""
    both = torch.cat([here, there])
    both = both[torch.isfinite(both)]
    if even:
        return torch.linspace(0.0, max(float(both.max()), 1e-12), BARS + 1, dtype=torch.float64)
    both = both.clamp_min(max(1e-12, 1e-9 * float(both.max())))
    return torch.logspace(float(both.min().log10()), float(both.max().log10()) + 1e-9, BARS + 1).double()


def _shares(values: Tensor, edges: Tensor) -> list[float]:
    """Share of the values in each bar; those beyond an end are counted in the last bar there."""
    place = torch.bucketize(values.cpu(), edges[1:-1])
    return (torch.bincount(place, minlength=BARS).double() / len(values)).tolist()
