"""One method on every test set: what the transfer study writes down."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from ..baselines.methods import Fitted
from ..metrics import auroc, coverage, fpr95, gaussian_nll, mse, sharpness
from ..prediction import Prediction
from .transfer_rows import IN_DOMAIN, Pair


def score_method(fitted: Fitted, tests: dict[str, Pair], device: str) -> dict[str, Any]:
    """Scores of a fitted method by test set, and what it costs.

    Args:
        fitted: The method.
        tests: By name; `IN_DOMAIN` is what the others are told apart from.
        device: Where the rows are put before the clock starts.
    """
    known, seconds = timed(fitted, tests[IN_DOMAIN][0].to(device))
    scores = {}
    for name, (inputs, targets) in tests.items():
        said = known if name == IN_DOMAIN else fitted.predict(inputs.to(device))
        scores[name] = _scores(said, targets.to(said.mean.device))
        if name != IN_DOMAIN:
            scores[name] |= _told_apart(known, said)
    return {
        "training_free": fitted.training_free,
        "fit_seconds": fitted.seconds,
        "predict_seconds": seconds / len(known),
        "tests": scores,
    }


def timed(fitted: Fitted, inputs: Tensor) -> tuple[Any, float]:
    """The prediction, and the seconds of a second one: the first may have to load or compile things.

    Args:
        fitted: The method.
        inputs: Where the clock should find them.
    """
    said = fitted.predict(inputs)
    start = _now(inputs)
    fitted.predict(inputs)
    return said, _now(inputs) - start


def _now(inputs: Tensor) -> float:
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)
    return time.perf_counter()


def _scores(said: Prediction, targets: Tensor) -> dict[str, Any]:
    per_torque = gaussian_nll(said.mean, said.variance, targets).mean(dim=0)
    return {
        "nll": number(per_torque.mean()),
        "nll_per_torque": [number(value) for value in per_torque],
        "mse": number(mse(said.mean, targets)),
        "coverage": number(coverage(said, targets)),
        "sharpness": number(sharpness(said)),
    }


def _told_apart(known: Prediction, foreign: Prediction) -> dict[str, Any]:
    """By the mean std of a row's torques, for every method alike; None where a method has no std."""
    here, there = (said.std.double().mean(dim=1) for said in (known, foreign))
    if bool(here.isnan().any() | there.isnan().any()):
        return {"auroc": None, "fpr95": None}
    return {"auroc": number(auroc(here, there)), "fpr95": number(fpr95(here, there))}


def number(value: Tensor) -> float | str:
    """As JSON can hold it: an infinite cost stays visible as text."""
    found = float(value)
    return found if math.isfinite(found) else str(found)
