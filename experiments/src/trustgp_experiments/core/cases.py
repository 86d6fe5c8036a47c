"""A training set with its test sets, and a fitted method scored on all of them: for studies with peers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from torch import Tensor

from ..peers.registry import Fitted
from ..training.train import now
from .grid import Grid, Place
from .pivot import Measure, Pivot, flat_table
from .recipes import Pair
from .result import Column, Setting, Table

IN_DOMAIN = "in domain"
OURS, ENSEMBLE = "trustgp", "ensemble of 5"
METHOD = {"method": Column.text("method")}
TESTED = {"tested": Column.text("tested on"), **METHOD}
OWNERS = {True: "the one", False: "its own"}
NETWORKS = Measure("training_free", Column.text("networks"), words=OWNERS.__getitem__)
FIT = Measure("fit_seconds", Column("fit s", digits=1))
TRAINING = Measure("training_seconds", Column("more training s", digits=1))
SIZE = Measure("mebibytes", Column("MiB", digits=2))
PREDICT = Measure("predict_seconds", Column("predict ms/row", digits=4), factor=1000.0)
COSTS = (FIT, TRAINING, SIZE, PREDICT)

Test = tuple[Tensor, Tensor | None]
Scores = Callable[[str, Any, Any, Tensor | None], dict[str, Any]]
Costs = Mapping[str, Mapping[str, float]]
"""Costs by method and the keys of `COSTS`."""


@dataclass(frozen=True)
class Case:
    """One training set, and its test sets: scaled float32 inputs, and targets."""

    train: Pair
    validation: Pair
    tests: Mapping[str, Test]  # by name, one of them `IN_DOMAIN`; targets are None where none apply
    made: bool = False  # whether these are generated stand-ins, for small runs without the data

    @property
    def sizes(self) -> dict[str, int]:
        parts = {"train": self.train, "validation": self.validation, **self.tests}
        return {name: len(pair[0]) for name, pair in parts.items()}


def score_tests(fitted: Fitted, tests: Mapping[str, Test], device: str, score: Scores) -> dict[str, Any]:
    """Scores of a fitted method by test set, and its costs; moving rows to the device is not timed.

    `score` takes the name of a test set, the in-domain prediction, with which others are compared, the
    prediction for the test set, and its targets.
    """
    in_domain, seconds = timed(fitted, tests[IN_DOMAIN][0].to(device))
    scores = {}
    for name, (inputs, targets) in tests.items():
        prediction = in_domain if name == IN_DOMAIN else fitted.predict(inputs.to(device))
        scores[name] = score(name, in_domain, prediction, None if targets is None else targets.to(device))
    return {**costs_of(fitted, seconds / len(tests[IN_DOMAIN][0])), "tests": scores}


def timed(fitted: Fitted, inputs: Tensor) -> tuple[Any, float]:
    """Prediction for the inputs, and the seconds of a second call: the first may load or compile things."""
    prediction, start = fitted.predict(inputs), now(inputs.device)
    fitted.predict(inputs)
    return prediction, now(inputs.device) - start


def costs_of(fitted: Fitted, row_seconds: float) -> dict[str, Any]:
    """Costs, by the keys of `COSTS`, of a method that takes `row_seconds` per row, and `training_free`."""
    costs = (fitted.seconds, fitted.training_seconds, fitted.mebibytes, row_seconds)
    named = {measure.key: cost for measure, cost in zip(COSTS, costs, strict=True)}
    return {NETWORKS.key: fitted.training_free, **named}


def read_tests(part: Mapping[str, Any]) -> dict[Place, dict[str, Any]]:
    """Numbers of a part by test set and method; `part["methods"]` holds the results of `score_tests`."""
    cells = {}
    for method, numbers in part["methods"].items():
        shared = {measure.key: numbers.get(measure.key) for measure in (NETWORKS, *COSTS)}
        cells |= {(test, method): {**scores, **shared} for test, scores in numbers["tests"].items()}
    return cells


def measure_costs(setting: Setting, grid: Grid, part: Callable[..., Any], case: Place) -> Costs:
    """Costs of a case at seed 0, measured with no other process of the study: parallel parts slow each other.

    With one job the stored part already has these times; else `part` scores the in-domain test rows again.
    """

    def costs(numbers: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        methods = numbers["methods"].items()
        return {name: {cost.key: one[cost.key] for cost in COSTS} for name, one in methods}

    if setting.jobs == 1:
        return costs(grid.parts[case][0])
    return setting.once("costs", lambda: costs(part(setting, *case, 0, only=IN_DOMAIN)))


def costs_table(title: str, costs: Costs, note: str, predict: str = PREDICT.column.name) -> Table:
    """Table of costs by method; `predict` is the name of the column with the prediction time."""
    measures = [replace(cost, statistic=fmean) for cost in (*COSTS[:-1], PREDICT.at(predict))]
    pivot = Pivot(title, METHOD, measures, note=note)
    return flat_table(pivot, {(name,): one for name, one in costs.items()})


def number(value: Tensor) -> float | str:
    """Value in a form that JSON can store: an infinite cost becomes text."""
    plain = float(value)
    return plain if math.isfinite(plain) else str(plain)
