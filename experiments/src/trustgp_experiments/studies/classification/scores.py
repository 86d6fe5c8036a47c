"""Scores of a fitted classifier: are its probabilities right, and does it detect novel images?"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trustgp import metrics

from ...core.cases import IN_DOMAIN, OURS, Case, costs_of, number, timed
from ...peers.registry import Fitted

ENTROPY, SCORE, INFORMATION, OWN = "entropy", "score", "information", "own"
SCORES = {ENTROPY: "entropy", SCORE: "own score or logit variance", INFORMATION: "mutual information"}
"""Entropy of probabilities; `p.score` of trustgp, logit variance of peers; class and member information."""
DECLARED = {
    **dict.fromkeys(("softmax", "temperature scaling"), ENTROPY),
    **dict.fromkeys(("MC-dropout 20", "ensemble of 5", "SWAG"), INFORMATION),
    **dict.fromkeys(("Laplace last layer", "Laplace KFAC", "Laplace KFAC, evidence"), ENTROPY),
    **dict.fromkeys(("trustgp paper form", OURS), SCORE),
}
"""Score by which a method is judged, declared before the run: trustgp's default; for a peer the best of its
scores on average over the pairs of `looked_at` in the previous run. SWAG, which that run lacked, has the
ensemble's score; a novelty peer has one score only."""
ALARMS = (1, 5)  # percent of familiar images that may raise an alarm
PROPER = {
    "nll": metrics.class_nll,
    "ece": metrics.expected_calibration_error,
    "accuracy": lambda p, labels: (p.argmax(dim=1) == labels).double(),
    "brier": metrics.brier,
}


def score_method(fitted: Fitted, case: Case, device: str, *, only: str | None = None) -> dict[str, Any]:
    """Scores on every test set, or on one, and costs.

    `fitted.predict` returns a prediction of classes or, for a novelty peer, one number per row.
    """
    familiar, seconds = timed(fitted, case.tests[IN_DOMAIN][0].to(device))
    validation = fitted.predict(case.validation[0].to(device))
    tests = {}
    for name, (inputs, labels) in case.tests.items():
        if only is not None and name != only:
            continue
        prediction = familiar if name == IN_DOMAIN else fitted.predict(inputs.to(device))
        if labels is None:
            sides = [novelty_scores(one) for one in (validation, familiar, prediction)]
            tests[name] = detection_scores(*sides, by=DECLARED.get(fitted.name, OWN))
        elif not isinstance(prediction, Tensor):
            tests[name] = class_scores(prediction.probabilities, labels.to(device))
    return {**costs_of(fitted, seconds / len(case.tests[IN_DOMAIN][0])), "tests": tests}


def class_scores(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """Scores by the keys of `PROPER`, and the area under the risk-coverage curve."""
    wrong = (probabilities.argmax(dim=1) != labels).double()
    values = {key: measure(probabilities, labels).mean() for key, measure in PROPER.items()}
    values["aurc"] = metrics.selective_risk(1 - probabilities.amax(dim=1), wrong).mean()
    return {key: number(value) for key, value in values.items()}


def novelty_scores(prediction: Any) -> dict[str, Tensor]:
    """Novelty scores [n] that a prediction has, by name."""
    if isinstance(prediction, Tensor):
        return {OWN: prediction.double()}
    entropy = metrics.entropy(prediction.probabilities)
    scores = entropy, prediction.score, getattr(prediction, "mutual_information", None)
    return {name: value.double() for name, value in zip(SCORES, scores, strict=True) if value is not None}


Scores = Mapping[str, Tensor]  # by name


def detection_scores(validation: Scores, familiar: Scores, novel: Scores, *, by: str) -> dict[str, Any]:
    """AUROC and FPR95 by the declared score; at each of `ALARMS` the share of novel rows that are caught and
    of familiar ones that raise an alarm, with the validation rows' threshold; AUROC by each of `SCORES`."""
    here, there = familiar[by], novel[by]
    scores = {"auroc": number(metrics.auroc(here, there)), "fpr95": number(metrics.fpr95(here, there))}
    for name in (name for name in SCORES if name in familiar):
        scores[f"auroc_{name}"] = number(metrics.auroc(familiar[name], novel[name]))
    for percent in ALARMS:
        limit = threshold(validation[by], percent / 100)
        scores[f"caught_{percent}"] = number((there > limit).double().mean())
        scores[f"alarms_{percent}"] = number((here > limit).double().mean())
    return scores


def threshold(validation: Tensor, alarms: float) -> float:
    """Score that a familiar row exceeds with probability `alarms` at most: of n held-out scores the
    ceil((n + 1)(1 - alarms))-th smallest, or the largest if they are too few."""
    rank = math.ceil((len(validation) + 1) * (1 - alarms) - 1e-9)
    return float(torch.sort(validation).values[min(rank, len(validation)) - 1])
