"""Scores of a fitted method of classes: are its probabilities right, and are novel images told?"""

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
"""Of the probabilities; of trustgp `p.score`, of peers the variance of the logits; of class and member."""
DECLARED = {
    "softmax": ENTROPY,
    "temperature scaling": ENTROPY,
    "MC-dropout 20": INFORMATION,
    "ensemble of 5": INFORMATION,
    "SWAG": INFORMATION,
    "Laplace last layer": ENTROPY,
    "Laplace KFAC": ENTROPY,
    "Laplace KFAC, evidence": ENTROPY,
    OURS: SCORE,
}
"""The one score by which a method is judged, said before the run: trustgp's default; of a peer's scores the
one that was best on average over the pairs looked at in the run before, in which SWAG was not: it has the
ensemble's. A novelty peer has but one."""
ALARMS = (1, 5)  # percent of familiar images that may raise an alarm
SHOWN = (IN_DOMAIN, "rotated 30", "noisy 0.2")  # whose reliability is drawn
RIGHT = {
    "nll": metrics.class_nll,
    "ece": metrics.expected_calibration_error,
    "accuracy": metrics.accuracy,
    "brier": metrics.brier,
}


def score_method(fitted: Fitted, case: Case, device: str, *, only: str | None = None) -> dict[str, Any]:
    """Scores on every test set, or on one, what it costs, and reliability curves to draw.

    `fitted.predict` gives a prediction of classes, or, of a novelty peer, one number a row.
    """
    known, seconds = timed(fitted, case.tests[IN_DOMAIN][0].to(device))
    held = fitted.predict(case.validation[0].to(device))
    tests, curves = {}, {}
    for name, (inputs, labels) in case.tests.items():
        if only is not None and name != only:
            continue
        said = known if name == IN_DOMAIN else fitted.predict(inputs.to(device))
        if labels is None:
            sides = [novelty_scores(one) for one in (held, known, said)]
            tests[name] = told_apart(*sides, by=DECLARED.get(fitted.name, OWN))
        elif not isinstance(said, Tensor):
            chances, labels = said.probabilities, labels.to(device)
            tests[name] = rightness(chances, labels)
            if name in SHOWN:  # rows, mean confidence and share of right ones of each bin that is not empty
                bins = metrics.reliability_curve(chances, labels)
                curves[name] = [values[bins[0] > 0].tolist() for values in bins]
    each = seconds / len(case.tests[IN_DOMAIN][0])
    return {**costs_of(fitted, each), "tests": tests, "curves": curves}


def rightness(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """By the keys of `RIGHT`, and the area under the risk-coverage curve."""
    wrong = (probabilities.argmax(dim=1) != labels).double()
    values = {key: measure(probabilities, labels).mean() for key, measure in RIGHT.items()}
    values["aurc"] = metrics.selective_risk(1 - probabilities.amax(dim=1), wrong).mean()
    return {key: number(value) for key, value in values.items()}


def novelty_scores(said: Any) -> dict[str, Tensor]:
    """What is said about how novel a row is, by name, each [n]; only what there is."""
    if isinstance(said, Tensor):
        return {OWN: said.double()}
    entropy, information = metrics.entropy(said.probabilities), getattr(said, "mutual_information", None)
    found = zip(SCORES, (entropy, said.score, information), strict=True)
    return {name: value.double() for name, value in found if value is not None}


def told_apart(
    held: Mapping[str, Tensor], familiar: Mapping[str, Tensor], novel: Mapping[str, Tensor], *, by: str
) -> dict[str, Any]:
    """By the declared score AUROC, FPR95, and at each of `ALARMS` the share of novel rows that are caught and
    of familiar ones that raise an alarm, with the validation rows' threshold; AUROC by each of `SCORES`."""
    here, there = familiar[by], novel[by]
    found: dict[str, Any] = {"auroc": number(metrics.auroc(here, there))}
    found["fpr95"] = number(metrics.fpr95(here, there))
    both = [one for one in SCORES if one in familiar]
    found |= {f"auroc_{one}": number(metrics.auroc(familiar[one], novel[one])) for one in both}
    for percent in ALARMS:
        limit = threshold(held[by], percent / 100)
        found[f"caught_{percent}"] = number((there > limit).double().mean())
        found[f"alarms_{percent}"] = number((here > limit).double().mean())
    return found


def threshold(held: Tensor, alarms: float) -> float:
    """The score above which a familiar row lies with that probability at most: of n held-out rows the
    ceil((n + 1)(1 - alarms))-th, or the largest where they are too few."""
    rank = math.ceil((len(held) + 1) * (1 - alarms) - 1e-9)
    return float(torch.sort(held).values[min(rank, len(held)) - 1])
