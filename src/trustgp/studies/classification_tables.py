"""The tables of the classification study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .base import Column, Table
from .classification_rows import NAMES, foreign_to, shifts_of
from .classification_scores import SCORES
from .summaries import mean_spread
from .transfer_rows import IN_DOMAIN
from .transfer_tables import average

ClassCells = dict[tuple[str, str, str], dict[str, Any]]
"""By (trained on, tested on, method): lists over seeds, and `training_free`."""

WORDS = {"entropy": "entropy", "variance": "logit variance", "information": "mutual information"}
RIGHT = {
    "nll": Column("NLL", digits=4, better="low"),
    "ece": Column("ECE", digits=2, better="low", unit="%"),
    "accuracy": Column("accuracy", digits=2, better="high", unit="%"),
    "brier": Column("Brier", digits=4, better="low"),
    "aurc": Column("AURC", digits=4, better="low"),
}
APART = {
    f"{key}_{score}": Column(f"{name} by {WORDS[score]}", digits=4, better=better)
    for key, name, better in (("auroc", "AUROC", "high"), ("fpr95", "FPR95", "low"))
    for score in SCORES
}
COSTS = {
    "fit_seconds": Column("fit s", digits=1),
    "predict_seconds": Column("ms/image", digits=4),
}
FACTOR = {"ece": 100.0, "accuracy": 100.0, "predict_seconds": 1000.0}


def collect(runs: Mapping[str, Sequence[dict[str, Any]]]) -> ClassCells:
    """Scores turned inside out: one cell for each method and set of test images.

    Args:
        runs: By what trained: for each seed, what `score_method` gave, by method.
    """
    cells: ClassCells = {}
    for trained, seeds in runs.items():
        for method, first in seeds[0].items():
            costs = {key: [seed[method][key] for seed in seeds] for key in COSTS}
            for tested, scores in first["tests"].items():
                each = {key: [seed[method]["tests"][tested][key] for seed in seeds] for key in scores}
                free = {"training_free": first["training_free"]}
                cells[trained, tested, method] = {**each, **costs, **free}
    return cells


def methods_of(cells: ClassCells) -> list[str]:
    """Names in the order of the study."""
    return list(dict.fromkeys(method for _, _, method in cells))


def trained_of(cells: ClassCells) -> list[str]:
    """What trained, in the order of the study."""
    return list(dict.fromkeys(trained for trained, _, _ in cells))


def tests_of(cells: ClassCells, trained: str) -> list[str]:
    """What a training is tested on."""
    return list(dict.fromkeys(test for t, test, _ in cells if t == trained))


def mean_of(cells: ClassCells, at: tuple[str, str, str], key: str) -> float | None:
    """Mean over seeds; None where the method has no such number."""
    values = cells[at].get(key)
    return None if values is None or None in values else average(values)


def class_tables(cells: ClassCells, costs: Mapping[str, Mapping[str, float]]) -> list[Table]:
    """In domain, foreign images, distorted images, costs, then everything.

    Args:
        cells: From `collect`.
        costs: Seconds of each method with the machine to itself.
    """
    tables = [_in_domain(cells, trained) for trained in trained_of(cells)]
    tables += [_foreign(cells, trained) for trained in trained_of(cells)]
    more = [trained for trained in trained_of(cells) if shifts_of(tests_of(cells, trained))]
    tables += [_distorted(cells, trained) for trained in more]
    tables.append(_costs(costs))
    for trained in more:
        tables.append(_every(cells, trained, RIGHT, "Probabilities on every labelled set of images"))
        tables.append(_every(cells, trained, APART, "Every set of images told from familiar ones"))
    return tables


def _in_domain(cells: ClassCells, trained: str) -> Table:
    columns = [Column("method", digits=-1), Column("networks", digits=-1), *RIGHT.values()]
    rows = [
        [method, _needs(cells, method), *(_cell(cells, (trained, IN_DOMAIN, method), key) for key in RIGHT)]
        for method in methods_of(cells)
    ]
    return Table(f"{NAMES[trained]}: test images like those that trained", columns, rows)


def _foreign(cells: ClassCells, trained: str) -> Table:
    other = foreign_to(trained)
    columns = [Column("method", digits=-1), *APART.values()]
    rows = [
        [method, *(_cell(cells, (trained, other, method), key) for key in APART)]
        for method in methods_of(cells)
    ]
    note = "A gap: the method has no such score. The variance of trustgp is its latent variance."
    return Table(f"Trained on {NAMES[trained]}: is {NAMES[other]} told from it?", columns, rows, note=note)


def _distorted(cells: ClassCells, trained: str) -> Table:
    shifts = shifts_of(tests_of(cells, trained))
    columns = [Column("method", digits=-1), *(Column(name, digits=3, better="low") for name in shifts)]
    rows = [
        [method, *(_cell(cells, (trained, name, method), "nll") for name in shifts)]
        for method in methods_of(cells)
    ]
    note = "Rotated by so many degrees; with Gaussian noise of so much std in every pixel from 0 to 1."
    return Table(f"NLL on distorted {NAMES[trained]}", columns, rows, note=note)


def _costs(costs: Mapping[str, Mapping[str, float]]) -> Table:
    columns = [Column("method", digits=-1), *COSTS.values()]
    rows = [[name, *(FACTOR.get(key, 1.0) * cost[key] for key in COSTS)] for name, cost in costs.items()]
    note = (
        "Fashion-MNIST, seed 0, one process: fit on all training images, predict the test images in one call."
    )
    return Table("What it costs", columns, rows, note=note)


def _every(cells: ClassCells, trained: str, measures: Mapping[str, Column], title: str) -> Table:
    """All test sets that have these measures."""
    columns = [Column("tested on", digits=-1), Column("method", digits=-1), *measures.values()]
    first, methods = next(iter(measures)), methods_of(cells)
    rows = [
        [NAMES.get(test, test), method, *(_cell(cells, (trained, test, method), key) for key in measures)]
        for test in tests_of(cells, trained)
        for method in methods
        if first in cells[trained, test, method]
    ]
    return Table(f"{title}, trained on {NAMES[trained]}", columns, rows, block="tested on")


def _cell(cells: ClassCells, at: tuple[str, str, str], key: str) -> Any:
    """Mean and spread over seeds; an infinite cost as text; None where the measure has no meaning."""
    mean = mean_of(cells, at, key)
    if mean is None:
        return None
    if math.isinf(mean):
        return "infinite"
    return mean_spread([FACTOR.get(key, 1.0) * value for value in cells[at][key]])


def _needs(cells: ClassCells, method: str) -> str:
    free = next(cell["training_free"] for (_, _, name), cell in cells.items() if name == method)
    return "the one" if free else "its own"
