"""The tables of the transfer study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .base import Column, Table
from .summaries import mean_spread
from .transfer_rows import IN_DOMAIN

Cells = dict[tuple[str, str, str, str], dict[str, Any]]
"""By (trained on, split, tested on, method): lists over seeds, and `training_free`."""

MEASURES = {
    "nll": Column("NLL", digits=3, better="low"),
    "mse": Column("mse", digits=5, better="low"),
    "coverage": Column("95 % coverage", digits=1, unit="%"),
    "sharpness": Column("width", digits=3),
    "auroc": Column("AUROC", digits=3, better="high"),
    "fpr95": Column("FPR95", digits=3, better="low"),
    "fit_seconds": Column("fit s", digits=1),
    "predict_seconds": Column("predict ms/row", digits=4),
}
FACTOR = {"coverage": 100.0, "predict_seconds": 1000.0}


def collect(runs: Mapping[tuple[str, str], Sequence[dict[str, Any]]]) -> Cells:
    """Scores turned inside out: one cell for each method and test set.

    Args:
        runs: By (trained on, split): for each seed, what `score_method` gave, by method.
    """
    cells: Cells = {}
    for (trained, split), seeds in runs.items():
        for method, first in seeds[0].items():
            costs = {key: [seed[method][key] for seed in seeds] for key in ("fit_seconds", "predict_seconds")}
            for tested, scores in first["tests"].items():
                each = {key: [seed[method]["tests"][tested][key] for seed in seeds] for key in scores}
                free = {"training_free": first["training_free"]}
                cells[trained, split, tested, method] = {**each, **costs, **free}
    return cells


def methods_of(cells: Cells) -> list[str]:
    """In the order of the study."""
    return list(dict.fromkeys(method for _, _, _, method in cells))


def trainings_of(cells: Cells) -> list[tuple[str, str]]:
    """Recording and split of every training."""
    return list(dict.fromkeys((trained, split) for trained, split, _, _ in cells))


def tests_of(cells: Cells, trained: str, split: str) -> list[str]:
    """What a training is tested on."""
    return list(dict.fromkeys(test for t, s, test, _ in cells if (t, s) == (trained, split)))


def average(values: Sequence[float | str]) -> float:
    """Mean over seeds; infinite where a seed's cost is."""
    return math.inf if any(isinstance(value, str) for value in values) else math.fsum(values) / len(values)  # pyright: ignore[reportArgumentType]


def tables(cells: Cells) -> list[Table]:
    """The headline, zero shot by training arm, then everything."""
    headline = [_in_domain(cells)]
    headline += [_zero_shot(cells, trained) for trained, split in trainings_of(cells) if split == "random"]
    return headline + [_everything(cells, *training) for training in trainings_of(cells)]


def costs_table(costs: Mapping[str, Mapping[str, float]]) -> Table:
    """What each method takes, by name."""
    columns = [Column("method", digits=-1), MEASURES["fit_seconds"], MEASURES["predict_seconds"]]
    rows = [[name, cost["fit_seconds"], 1000.0 * cost["predict_seconds"]] for name, cost in costs.items()]
    note = "SARCOS, random split, seed 0: fit on all training rows, predict the test rows in one call."
    return Table("What it costs", columns, rows, note=note)


def _in_domain(cells: Cells) -> Table:
    trainings = trainings_of(cells)
    columns = [Column("method", digits=-1), Column("networks", digits=-1)]
    columns += [Column(f"{trained}, {split}", better="low") for trained, split in trainings]
    rows = [
        [
            method,
            _needs(cells, method),
            *(cell_of(cells, (*at, IN_DOMAIN, method), "nll") for at in trainings),
        ]
        for method in methods_of(cells)
    ]
    return Table("NLL on the arm that trained", columns, rows, note="Lower is better, the best in bold.")


def _zero_shot(cells: Cells, trained: str) -> Table:
    tests = [test for test in tests_of(cells, trained, "random") if test != IN_DOMAIN]
    columns = [Column("method", digits=-1), *(Column(test, digits=2, better="low") for test in tests)]
    rows = [
        [method, *(cell_of(cells, (trained, "random", test, method), "nll") for test in tests)]
        for method in methods_of(cells)
    ]
    return Table(f"NLL on the other arms, trained on {trained} (random split)", columns, rows)


def _everything(cells: Cells, trained: str, split: str) -> Table:
    columns = [Column("tested on", digits=-1), Column("method", digits=-1), *MEASURES.values()]
    rows = [
        [test, method, *(cell_of(cells, (trained, split, test, method), key) for key in MEASURES)]
        for test in tests_of(cells, trained, split)
        for method in methods_of(cells)
    ]
    title = f"Every measure: trained on {trained}, {split} split"
    return Table(title, columns, rows, block="tested on")


def cell_of(cells: Cells, at: tuple[str, str, str, str], key: str) -> Any:
    """Mean and spread over seeds; an infinite cost as text; None where the measure has no meaning."""
    values = cells[at].get(key)
    if values is None or None in values:
        return None
    if any(isinstance(value, str) for value in values):
        return "infinite"
    return mean_spread([FACTOR.get(key, 1.0) * value for value in values])


def _needs(cells: Cells, method: str) -> str:
    free = next(cell["training_free"] for (_, _, _, name), cell in cells.items() if name == method)
    return "the one" if free else "its own"
