"""The study of tables: its findings on made-up numbers, its networks, and a small run."""

import pytest
import torch

from trustgp_experiments.core.cases import IN_DOMAIN, Case, read_tests
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.core.regression import compare, method_names
from trustgp_experiments.studies.tables import study as tables

OURS, THEIRS, INTERVALS = "trustgp", "ensemble of 5", "conformal, split"


def part(nll, rows=90):
    """One split's scores, all equal but for the NLL."""
    methods = {}
    for name in (THEIRS, INTERVALS, OURS, "trustgp corrected"):
        value = None if name == INTERVALS else nll.get(name, 0.0)
        scores = {"nll": value, "crps": value, "mse": 0.1, "coverage": 0.95, "sharpness": 1.0}
        costs = {"fit_seconds": 1.0, "training_seconds": None, "mebibytes": 0.1, "predict_seconds": 1e-3}
        methods[name] = {"training_free": True, **costs, "tests": {IN_DOMAIN: scores}}
    return {"sizes": {"train": rows, "validation": 10, IN_DOMAIN: 10}, "methods": methods, "failed": {}}


def test_a_table_is_lost_where_the_interval_of_differences_lies_above_zero():
    lost = [part({OURS: 1.0 + 0.01 * seed}) for seed in range(5)]
    alike = [part({OURS: (-1.0) ** seed}) for seed in range(5)]
    runs = [{"table": "lost", "seeds": lost}, {"table": "alike", "seeds": alike}]
    made, findings = tables.summarise({"runs": runs})
    standings = {row[0]: row for row in made[0].rows}
    assert standings[THEIRS] == [THEIRS, "1 / 1 / 0", "1 / 1 / 0", "lost"]
    assert INTERVALS not in standings  # no likelihood
    every = next(table for table in made if table.title == "Every measure: alike")
    row = next(row for row in every.rows if row[0] == INTERVALS)
    assert row[1] is None
    assert row[4] == [95.0, 0.0]
    assert findings[0].startswith("trustgp against ensemble of 5, NLL: worse in 1 (lost by +1.02 (")
    assert "alike in 1, better in 0 of 2 cases." in findings[0]


def test_splits_that_share_rows_have_a_wider_interval():
    runs = [part({OURS: value}) for value in (0.5, 1.5, 1.0, 0.9, 1.1)]
    shared, separate = (
        compare(Grid.of(tables.AXES, {("a",): some}, read_tests), [("a", IN_DOMAIN)], OURS, THEIRS)["a"]
        for some in (runs, [{**run, "sizes": None} for run in runs])
    )
    ratio = (shared.high - shared.low) / (separate.high - separate.low)
    assert ratio == pytest.approx(((1 / 5 + 10 / 90) / (1 / 5)) ** 0.5)


def test_batches_are_a_tenth_of_the_rows_and_steps_are_kept():
    rows = torch.zeros(1000, 3), torch.zeros(1000, 2)
    recipe = tables.recipe(Case(rows, rows, {}), 2000)
    assert (recipe.batch_size, recipe.epochs) == (100, 200)
    widths = [layer.out_features for layer in recipe.make(seed=0) if hasattr(layer, "out_features")]
    assert widths == [64, 64, 2]


def test_a_small_run_scores_every_method(small_run):
    result = small_run("tables")[1]
    names = method_names(quick=True, without=tables.OMITTED_METHODS)
    for seed in (seed for run in result.numbers["runs"] for seed in run["seeds"]):
        assert set(seed["methods"]) == set(names)
        assert not seed["failed"]
    assert any("TabPFN is missing" in line for line in result.protocol)
