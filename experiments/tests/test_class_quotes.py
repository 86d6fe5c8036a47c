"""Blocks about classes are stored tables in Markdown."""

import json

import pytest

from trustgp_experiments.core.cases import costs_grid
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.report.quotes.blocks import CLASSES, table
from trustgp_experiments.report.quotes.stored import NotRun, Stored
from trustgp_experiments.studies.classification import tables
from trustgp_experiments.studies.classification.pairs import EIGHT, LETTERS, NAMES, SETS


def stored(root, *made) -> Stored:
    (root / "results" / "classification").mkdir(parents=True)
    (root / "results" / "classification" / "result.json").write_text(json.dumps({"tables": made}))
    return Stored(root)


def test_a_table_shows_mean_and_spread_in_its_digits_and_a_gap_as_nothing(tmp_path):
    columns = [{"name": name, "digits": digits, "unit": unit} for name, digits, unit in
               (("method", -1, ""), ("AUROC", 3, ""), ("caught", 1, "%"))]  # fmt: skip
    rows = [["a", [0.98765, 0.00123], None], ["b", 0.5, [12.34, 0.5]]]
    made = {"title": "T", "columns": columns, "rows": rows, "note": "So it is."}
    expected = ["| method | AUROC | caught, % |", "| --- | --- | --- |", "| a | 0.988 ± 0.001 |  |"]
    expected += ["| b | 0.500 | 12.3 ± 0.5 |", "", "So it is."]
    assert table(stored(tmp_path, made), title="T").splitlines() == expected


def test_a_table_that_is_not_stored_is_yet_to_be_run(tmp_path):
    with pytest.raises(NotRun, match="present form"):
        table(stored(tmp_path), title="T")


def test_the_blocks_name_tables_that_the_study_makes():
    costs = {key: 1.0 for key in ("fit_seconds", "training_seconds", "mebibytes", "predict_seconds")}
    right = {"nll": 0.3, "ece": 0.1, "accuracy": 0.9, "brier": 0.1, "aurc": 0.1, "training_free": True}
    tests = {
        ("in domain", "trustgp"): right,
        ("rotated 30", "trustgp"): right,
        (LETTERS, "trustgp"): {"auroc": 0.9},
    }
    grid = Grid.of(tables.AXES, {(name,): [tests] for name in SETS}, lambda part: part)
    made = {one.title for one in tables.class_tables(grid, costs_grid({"trustgp": costs}))}
    assert set(CLASSES.values()) <= made
    assert set(NAMES) == {*SETS, *(f"{name}{EIGHT}" for name in SETS)}
