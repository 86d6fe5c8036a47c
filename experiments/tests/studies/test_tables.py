"""The study of tables: its rules on made-up numbers, and a small run."""

from importlib.util import find_spec

import pytest
import torch

from trustgp_experiments.core.cases import IN_DOMAIN, read_tests
from trustgp_experiments.core.dropout import RATES, best_rate, try_rates
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.core.registry import run_study
from trustgp_experiments.core.regression import method_names
from trustgp_experiments.core.result import read_result
from trustgp_experiments.studies.tables import study as tables

OURS, THEIRS = "trustgp", "ensemble of 5"
METHOD_NAMES = (THEIRS, "conformal, split", OURS, "trustgp corrected")


def part(nll, rows=90):
    """One split's scores, all alike but for the NLL."""
    methods = {}
    for name in METHOD_NAMES:
        value = None if name.startswith("conformal") else nll.get(name, 0.0)
        scores = {"nll": value, "crps": value, "mse": 0.1, "coverage": 0.95, "sharpness": 1.0}
        costs = {"fit_seconds": 1.0, "training_seconds": None, "mebibytes": 0.1, "predict_seconds": 1e-3}
        methods[name] = {"training_free": True, **costs, "tests": {IN_DOMAIN: scores}}
    return {"sizes": {"train": rows, "validation": 10, IN_DOMAIN: 10}, "methods": methods, "failed": {}}


def collected(**by_table):
    return Grid.of(tables.AXES, {(name,): parts for name, parts in by_table.items()}, read_tests)


def test_a_table_is_lost_where_the_interval_of_differences_lies_above_zero():
    lost = [part({OURS: 1.0 + 0.01 * seed}) for seed in range(5)]
    alike = [part({OURS: (-1.0) ** seed}) for seed in range(5)]
    grid = collected(lost=lost, alike=alike)
    row = next(row for row in tables.standings(grid, OURS).rows if row[0] == THEIRS)
    assert row == [THEIRS, "1 / 1 / 0", "1 / 1 / 0", "lost"]
    first = tables.findings(grid)[0]
    assert first.startswith("trustgp against ensemble of 5, NLL: worse in 1 (lost by +1.02 (")
    assert "alike in 1, better in 0 of 2 cases." in first


def test_splits_that_share_rows_have_a_wider_interval():
    runs = [part({OURS: value}) for value in (0.5, 1.5, 1.0, 0.9, 1.1)]
    shared = tables.compare(collected(a=runs), [("a", IN_DOMAIN)], OURS, THEIRS)["a"]
    alone = tables.compare(
        Grid.of(tables.AXES, {("a",): [{**run, "sizes": None} for run in runs]}, read_tests),
        [("a", IN_DOMAIN)],
        OURS,
        THEIRS,
    )["a"]
    ratio = (shared.high - shared.low) / (alone.high - alone.low)
    assert ratio == pytest.approx(((1 / 5 + 10 / 90) / (1 / 5)) ** 0.5)


def test_what_has_no_likelihood_is_no_rival_but_has_its_row():
    grid = collected(a=[part({}), part({})])
    assert "conformal, split" not in [row[0] for row in tables.standings(grid, OURS).rows]
    every = next(table for table in tables.tables(grid) if table.title == "Every measure: a")
    row = next(row for row in every.rows if row[0] == "conformal, split")
    assert row[1] is None
    assert row[4] == [95.0, 0.0]


@pytest.mark.parametrize("best", RATES)
def test_rates_of_dropout_are_tried_until_no_end_wins(best):
    tried = try_rates(lambda rate: abs(RATES.index(rate) - RATES.index(best)))
    assert best_rate(tried) == best
    place = RATES.index(best)
    assert {str(RATES[n]) for n in (place - 1, place + 1) if 0 <= n < len(RATES)} <= set(tried)


def test_batches_are_a_tenth_of_the_rows_and_steps_are_kept():
    rows = torch.zeros(1000, 3), torch.zeros(1000, 2)
    made = tables.recipe(tables.Case(rows, rows, {}), 2000)
    assert (made.batch_size, made.epochs) == (100, 200)
    assert [layer.out_features for layer in made.make(seed=0) if hasattr(layer, "out_features")] == [
        64,
        64,
        2,
    ]


@pytest.mark.skipif(find_spec("laplace") is None, reason="laplace-torch is not installed")
def test_a_small_run_scores_every_method(tmp_path):
    run_study("tables", tmp_path, seeds=1, quick=True)
    result = read_result(tmp_path / "tables" / "result.json")
    names = method_names(quick=True, without=tables.LEFT_OUT)
    for run in result.numbers["runs"]:
        for seed in run["seeds"]:
            assert list(seed["methods"]) + list(seed["failed"]) != []
            assert set(seed["methods"]) | set(seed["failed"]) == set(names)
            assert not seed["failed"]
    assert (tmp_path / "tables" / "tables.png").stat().st_size > 1000
    assert any("TabPFN is missing" in line for line in result.protocol)
