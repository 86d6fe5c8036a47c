"""A training set with its test sets, and a fitted method on all of them: for studies beside the peers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ..peers.registry import Fitted
from ..training.train import now
from .grid import Grid, Place
from .pivot import Measure, Pivot
from .recipes import Pair
from .result import Column, Setting, Table

IN_DOMAIN = "in domain"
OURS, ENSEMBLE = "trustgp", "ensemble of 5"
METHOD = {"method": Column.text("method")}
TESTED = {"tested": Column.text("tested on"), **METHOD}
FREE = {True: "the one", False: "its own"}
NETWORKS = Measure("training_free", Column.text("networks"), words=FREE.__getitem__)
FIT = Measure("fit_seconds", Column("fit s", digits=1))
TRAINING = Measure("training_seconds", Column("more training s", digits=1))
SIZE = Measure("mebibytes", Column("MiB", digits=2))
PREDICT = Measure("predict_seconds", Column("predict ms/row", digits=4), factor=1000.0)
COSTS = (FIT, TRAINING, SIZE, PREDICT)

Test = tuple[Tensor, Tensor | None]
Scores = Callable[[str, Any, Any, Tensor | None], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One training set, and what it is tested on: scaled float32 inputs, and targets."""

    train: Pair
    validation: Pair
    tests: Mapping[str, Test]  # by name: `IN_DOMAIN`, and everything else; what no target fits has None
    made: bool = False  # whether these are generated stand-ins, for small runs without the data

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each part."""
        parts = {"train": self.train, "validation": self.validation, **self.tests}
        return {name: len(pair[0]) for name, pair in parts.items()}


def score_tests(fitted: Fitted, tests: Mapping[str, Test], device: str, score: Scores) -> dict[str, Any]:
    """Scores of a fitted method by test set, and what it costs; rows are put on the device untimed.

    `score` is given the name of a test set, the prediction in domain, from which the others are told apart,
    that of the test set, and its targets.
    """
    known, seconds = timed(fitted, tests[IN_DOMAIN][0].to(device))
    scores = {}
    for name, (inputs, targets) in tests.items():
        said = known if name == IN_DOMAIN else fitted.predict(inputs.to(device))
        scores[name] = score(name, known, said, None if targets is None else targets.to(device))
    each = seconds / len(tests[IN_DOMAIN][0])
    return {**costs_of(fitted, each), "tests": scores}


def costs_of(fitted: Fitted, each: float) -> dict[str, Any]:
    """By the keys of `COSTS`, of a method that predicts a row in so many seconds; and whose networks."""
    costs = (fitted.seconds, fitted.training_seconds, fitted.mebibytes, each)
    named = {measure.key: cost for measure, cost in zip(COSTS, costs, strict=True)}
    return {NETWORKS.key: fitted.training_free, **named}


def read_tests(part: Mapping[str, Any]) -> dict[Place, dict[str, Any]]:
    """The numbers of a part by test set and method; `part["methods"]` holds what `score_tests` gave."""
    cells = {}
    for method, found in part["methods"].items():
        shared = {measure.key: found.get(measure.key) for measure in (NETWORKS, *COSTS)}
        cells |= {(test, method): {**scores, **shared} for test, scores in found["tests"].items()}
    return cells


def costs_table(
    setting: Setting, grid: Grid, part: Callable[..., Any], case: Place, note: str, each: str
) -> tuple[Table, Grid]:
    """Fit and predict times with the machine to ourselves: parts that share it slow each other down.

    Of the first seed of a case, which the note describes: of one process, its part holds the times already;
    else `part` scores the test rows in domain once more. `each` names the column of the time to predict.
    """

    def times(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        return {name: {cost.key: one[cost.key] for cost in COSTS} for name, one in found["methods"].items()}

    if setting.jobs == 1:
        costs = times(grid.parts[case][0])
    else:
        costs = setting.once("costs", lambda: times(part(setting, *case, 0, only=IN_DOMAIN)))
    found = costs_grid(costs)
    measures = [replace(cost, statistic=fmean) for cost in (*COSTS[:-1], PREDICT.at(each))]
    return Pivot("What it costs", METHOD, measures, note=note).table(found), found


def costs_grid(costs: Mapping[str, Mapping[str, float]]) -> Grid:
    """By method what it costs, as `costs_table` has it, from numbers that `costs_numbers` gave."""
    return Grid.of(("method",), {(): [costs]}, lambda part: {(name,): part[name] for name in part})


def costs_numbers(costs: Grid) -> dict[str, dict[str, float]]:
    """By method and the keys of `COSTS`, for the numbers of a result."""
    return {name: {key: values[0] for key, values in cell.items()} for (name,), cell in costs.cells.items()}


def timed(fitted: Fitted, inputs: Tensor) -> tuple[Any, float]:
    """The prediction, and the seconds of a second one: the first may have to load or compile things."""
    said, start = fitted.predict(inputs), now(inputs.device)
    fitted.predict(inputs)
    return said, now(inputs.device) - start


def shares_between(values: Tensor, edges: Tensor) -> list[float]:
    """Share of the values in each bar between edges; those beyond an end count in the last bar there."""
    place = torch.bucketize(values.cpu().double(), edges[1:-1])
    return (torch.bincount(place, minlength=len(edges) - 1).double() / max(1, len(values))).tolist()


def number(value: Tensor) -> float | str:
    """As JSON can hold it: an infinite cost stays visible as text."""
    found = float(value)
    return found if math.isfinite(found) else str(found)
