"""The transfer study: scores, the splits, and a small run on a real arm."""

import math

import pytest
import torch
from draws import normal

from trustgp.likelihoods.prediction import Prediction
from trustgp_experiments.core.cases import IN_DOMAIN
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.core.regression import method_names, score_method
from trustgp_experiments.datasets import load, split_unseen, standardise
from trustgp_experiments.peers.registry import Fitted
from trustgp_experiments.studies.transfer.scores import AXES, KNOWN, NEW, losses
from trustgp_experiments.studies.transfer.study import FOREIGN_ROWS, QUICK_ROWS, TESTED, foreign, make_case


def of_variance(variance: torch.Tensor) -> Prediction:
    """Of zeros."""
    zero, blank = torch.zeros_like(variance), torch.zeros(len(variance))
    return Prediction(zero, variance, zero, zero, blank, blank.long(), blank == 0)


def test_scores_are_those_of_the_definition():
    targets = normal(50, 7)

    def predict(inputs, variance=0.25):
        return of_variance(torch.full((len(inputs), 7), variance, dtype=torch.float64))

    tests = {IN_DOMAIN: (torch.zeros(50, 21), targets), "other": (torch.zeros(20, 21), targets[:20])}
    scores = score_method(Fitted("made up", True, 0.5, predict), tests, "cpu")["tests"]
    expected = 0.5 * (math.log(2 * math.pi * 0.25) + float((targets.square() / 0.25).mean()))
    assert scores[IN_DOMAIN]["nll"] == pytest.approx(expected, abs=1e-4)  # a Student-t of a million
    assert scores["other"]["auroc"] == 0.5  # the same std everywhere
    assert "auroc" not in scores[IN_DOMAIN]
    undefined = Fitted("undefined", True, 0.0, lambda inputs: predict(inputs, math.nan))
    scores = score_method(undefined, tests, "cpu")["tests"]
    assert scores["other"]["auroc"] is None
    assert scores[IN_DOMAIN]["nll"] == "inf"


def test_alarms_are_those_of_the_validation_rows_and_selection_counts_large_errors_that_are_flagged():
    """Rows are their own std; the tenth with the largest is flagged, half of these have large errors."""

    def predict(inputs):
        return of_variance(inputs[:, :1].double().square())

    rows = torch.arange(1.0, 101.0)[:, None]
    targets = torch.ones(100, 1, dtype=torch.float64)
    targets[[0, 1, 2, 3, 4, 95, 96, 97, 98, 99]] = 10.0
    tests = {IN_DOMAIN: (rows, targets), "other": (rows + 50.0, targets)}
    scores = score_method(Fitted("made up", True, 0.5, predict), tests, "cpu", rows)["tests"]
    assert scores[IN_DOMAIN]["caught"] == 0.5
    assert scores[IN_DOMAIN]["kept_mse"] == pytest.approx((5 * 100 + 85) / 90 / ((10 * 100 + 90) / 100))
    assert scores[IN_DOMAIN]["novelty_caught"] is None
    assert scores[IN_DOMAIN]["alarms"] == pytest.approx(0.05)
    assert scores["other"]["alarms"] == pytest.approx(0.55)
    assert scores["other"]["novelty_auroc"] is None


def test_a_rival_with_a_lower_mean_within_the_interval_is_named():
    values = {"ours": [0.0, 0.0, 0.0], "rival": [-3.0, 1.0, 1.0], "other": [1.0, 1.0, 1.0]}
    grid = Grid(AXES, {("arm", NEW, IN_DOMAIN, method): {"nll": nll} for method, nll in values.items()})
    text = losses(grid, NEW, "ours", ["rival", "other"])
    assert text.endswith("in any of 1 cases; the mean over them is lower of rival by 0.33.")


def test_other_recordings_are_tested_from_end_to_end_in_the_units_of_the_training_rows(data_root):
    case = make_case("sarcos", NEW, seed=0, quick=False)
    assert list(case.tests) == [IN_DOMAIN, *(name for name in TESTED if name != "sarcos")]
    assert case.sizes["kuka_sim"] == FOREIGN_ROWS
    recording = load("sarcos")
    train = split_unseen(recording).train
    scaling = standardise(recording.inputs[train], recording.targets[train])
    last = scaling.inputs(load("kuka_sim").inputs[-1:])[0].float()
    torch.testing.assert_close(case.tests["kuka_sim"][0][-1], last)
    inputs, targets = case.train
    torch.testing.assert_close(inputs.double().mean(0), torch.zeros(21).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.double().std(0), torch.ones(7).double(), atol=1e-4, rtol=0)


def test_the_parts_of_a_case_share_no_row_and_quick_takes_some_of_the_whole_recording(data_root):
    case = make_case("barrett", KNOWN, seed=1, quick=False)
    rows = torch.cat([case.train[0], case.validation[0], case.tests[IN_DOMAIN][0]])
    assert len(rows.unique(dim=0)) == len(rows)
    quick = make_case("barrett", NEW, seed=0, quick=True).sizes
    expected = {IN_DOMAIN: QUICK_ROWS["test"], "sarcos": QUICK_ROWS["test"]}
    assert quick == {**{part: QUICK_ROWS[part] for part in ("train", "validation")}, **expected}
    assert foreign("barrett", quick=True) == ["sarcos"]


def test_a_small_run_has_every_method_on_both_splits(small_run):
    result = small_run("transfer")[1]
    headline = result.tables[0]
    assert [row[0] for row in headline.rows] == method_names(quick=True)
    likely = [row for row in headline.rows if not row[0].startswith("conformal")]
    assert all(cell is not None for row in likely for cell in row)
    assert [run["split"] for run in result.numbers["runs"]] == [NEW, KNOWN]
