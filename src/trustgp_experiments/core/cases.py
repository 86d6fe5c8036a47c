"""A training set with its test sets, and a fitted method on all of them: for studies beside the peers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ..peers.registry import Fitted
from .grid import Grid, Place
from .pivot import Measure, Pivot
from .result import Column, Setting, Table

IN_DOMAIN = "in domain"
METHOD = {"method": Column.text("method")}
TESTED = {"tested": Column.text("tested on"), **METHOD}
NETWORKS = Measure(
    "training_free", Column.text("networks"), words=lambda free: "the one" if free else "its own"
)
FIT = Measure("fit_seconds", Column("fit s", digits=1))
PREDICT = Measure("predict_seconds", Column("predict ms/row", digits=4), factor=1000.0)
COSTS = (FIT.key, PREDICT.key)

Pair = tuple[Tensor, Tensor]
Test = tuple[Tensor, Tensor | None]
Scores = Callable[[str, Any, Any, Tensor | None], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One training set, and what it is tested on: scaled float32 inputs, and targets.

    Args:
        train, validation: Of what trains.
        tests: By name: `IN_DOMAIN`, and everything else; what no target fits has None.
        made: Whether these are generated stand-ins, for small runs without the data.
    """

    train: Pair
    validation: Pair
    tests: Mapping[str, Test]
    made: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each part."""
        parts = {"train": self.train, "validation": self.validation, **self.tests}
        return {name: len(pair[0]) for name, pair in parts.items()}


def score_tests(fitted: Fitted, tests: Mapping[str, Test], device: str, score: Scores) -> dict[str, Any]:
    """Scores of a fitted method by test set, and what it costs.

    Args:
        fitted: The method.
        tests: By name; `IN_DOMAIN` is what the others are told apart from.
        device: Where the rows are put before the clock starts.
        score: From the name of a test set, the prediction in domain, that of the test set, and its targets.
    """
    known, seconds = timed(fitted, tests[IN_DOMAIN][0].to(device))
    scores = {}
    for name, (inputs, targets) in tests.items():
        said = known if name == IN_DOMAIN else fitted.predict(inputs.to(device))
        scores[name] = score(name, known, said, None if targets is None else targets.to(device))
    return {
        "training_free": fitted.training_free,
        "fit_seconds": fitted.seconds,
        "predict_seconds": seconds / len(tests[IN_DOMAIN][0]),
        "tests": scores,
    }


def read_tests(part: Mapping[str, Any]) -> dict[Place, dict[str, Any]]:
    """The numbers of a part by test set and method; `part["methods"]` holds what `score_tests` gave."""
    shared = (NETWORKS.key, *COSTS)
    return {
        (test, method): {**scores, **{key: found[key] for key in shared}}
        for method, found in part["methods"].items()
        for test, scores in found["tests"].items()
    }


def costs_table(
    setting: Setting,
    first: Mapping[str, Any],
    again: Callable[[], Mapping[str, Any]],
    note: str,
    **names: str,
) -> tuple[Table, Grid]:
    """Fit and predict times with the machine to ourselves: parts that share it slow each other down.

    Args:
        setting: Of the study.
        first: By method, the scores of one training: of one process, they hold the times already.
        again: Scores it once more.
        note: Of the table: which training it is.
        names: Of the columns, by measure, where they are not those of `FIT` and `PREDICT`.
    """

    def times(scores: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        return {name: {key: found[key] for key in COSTS} for name, found in scores.items()}

    costs = times(first) if setting.jobs == 1 else setting.once("costs", lambda: times(again()))
    grid = Grid.of(("method",), {(): [costs]}, lambda part: {(name,): part[name] for name in part})
    measures = [Measure(m.key, m.at(names.get(m.key)).column, m.factor, fmean) for m in (FIT, PREDICT)]
    return Pivot("What it costs", METHOD, measures, note=note).table(grid), grid


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


def number(value: Tensor) -> float | str:
    """As JSON can hold it: an infinite cost stays visible as text."""
    found = float(value)
    return found if math.isfinite(found) else str(found)


def _now(inputs: Tensor) -> float:
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)
    return time.perf_counter()
