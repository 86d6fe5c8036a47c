"""One method on every test set of torques, and the tables of what was scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trustgp.likelihoods.prediction import Prediction
from trustgp.metrics import auroc, coverage, fpr95, gaussian_nll, mse, sharpness

from ...core.cases import (
    FIT,
    IN_DOMAIN,
    METHOD,
    NETWORKS,
    PREDICT,
    TESTED,
    Test,
    number,
    read_tests,
    score_tests,
)
from ...core.grid import Grid, Place
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Table
from ...peers.registry import Fitted

AXES = ("trained", "split", "tested", "method")
NLL = Measure("nll", Column("NLL", digits=3, better="low"))
MEASURES = (
    NLL,
    Measure("mse", Column("mse", digits=5, better="low")),
    Measure("coverage", Column("95 % coverage", digits=1, unit="%"), factor=100.0),
    Measure("sharpness", Column("width", digits=3)),
    Measure("auroc", Column("AUROC", digits=3, better="high")),
    Measure("fpr95", Column("FPR95", digits=3, better="low")),
    FIT,
    PREDICT,
)


def score_method(fitted: Fitted, tests: Mapping[str, Test], device: str) -> dict[str, Any]:
    """Scores of a fitted method by test set, and what it costs: see `score_tests`."""

    def score(name: str, known: Prediction, said: Prediction, targets: Tensor | None) -> dict[str, Any]:
        assert targets is not None, "torques are known everywhere"
        scores = _scores(said, targets.to(said.mean.device))
        return scores if name == IN_DOMAIN else scores | _told_apart(known, said)

    return score_tests(fitted, tests, device, score)


def collect(parts: Mapping[Place, Any]) -> Grid:
    """By recording that trained, split, test set and method, from what was scored for each seed.

    Args:
        parts: By (trained on, split): for each seed, "methods" holds what `score_method` gave, by method.
    """
    return Grid.of(AXES, parts, read_tests)


def tables(grid: Grid) -> list[Table]:
    """The headline, zero shot by training arm, then everything."""
    trainings = grid.along("trained", "split")
    near = [NLL.at(f"{t}, {s}", trained=t, split=s) for t, s in trainings]
    note = "Lower is better, the best in bold."
    headline = NETWORKS.at(trained=trainings[0][0], split=trainings[0][1])
    found = [
        Pivot("NLL on the arm that trained", METHOD, [headline, *near], {"tested": IN_DOMAIN}, note=note)
    ]
    for trained in grid.along("trained", split="random"):
        tests = others(grid, trained, "random")
        title = f"NLL on the other arms, trained on {trained} (random split)"
        measures = [NLL.at(test, digits=2, tested=test) for test in tests]
        found.append(Pivot(title, METHOD, measures, {"trained": trained, "split": "random"}))
    found += [everything(f"trained on {t}, {s} split", t, s) for t, s in trainings]
    return [pivot.table(grid) for pivot in found]


def everything(title: str, trained: str, split: str) -> Pivot:
    """Every measure of one training."""
    at = {"trained": trained, "split": split}
    return Pivot(f"Every measure: {title}", TESTED, MEASURES, at, block="tested on")


def others(grid: Grid, trained: str, split: str) -> list[str]:
    """What a training is tested on, zero shot."""
    return [test for test in grid.along("tested", trained=trained, split=split) if test != IN_DOMAIN]


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
