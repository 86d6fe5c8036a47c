"""The transfer study: its rules on made-up numbers, and a small run on the real arms."""

import copy
import json
import math
from importlib.util import find_spec

import pytest
import torch

from trustgp.likelihoods.prediction import Prediction
from trustgp_experiments.core.cases import IN_DOMAIN, read_tests
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.core.registry import run_study
from trustgp_experiments.core.result import Setting, read_result
from trustgp_experiments.peers.registry import METHODS, Fitted
from trustgp_experiments.studies.transfer import study as transfer
from trustgp_experiments.studies.transfer.scores import AXES, claims, score_method, tables
from trustgp_experiments.studies.transfer.study import QUICK_ROWS, TESTED, foreign, make_case

NAMES = [method.name for method in METHODS]


def made_up(nll: dict[str, float], *, mse=0.01, coverage=0.95, foreign_nll=None) -> dict:
    """One seed's scores by method, all alike but for what is given."""

    def scores(value: float) -> dict:
        return {"nll": value, "mse": mse, "coverage": coverage, "sharpness": 1.0}

    free = {method.name: method.training_free for method in METHODS}
    return {
        name: {
            "training_free": free[name],
            "fit_seconds": 1.0,
            "predict_seconds": 0.001,
            "tests": {
                IN_DOMAIN: scores(nll.get(name, 0.0)),
                "barrett": {**scores((foreign_nll or {}).get(name, 5.0)), "auroc": 0.9, "fpr95": 0.1},
            },
        }
        for name in NAMES
    }


def collected(*seeds: dict, split: str = "random"):
    return Grid.of(AXES, {("sarcos", split): [{"methods": seed} for seed in seeds]}, read_tests)


def findings(*seeds: dict, **options) -> list[str]:
    return [claim.sentence for claim in claims(collected(*seeds, **options))]


def said(nll, **options) -> list[str]:
    return findings(*[made_up(nll, **options)] * 3)


def test_a_win_and_a_loss_among_training_free_methods_are_told_apart():
    assert "in 1 of 1 cases." in said({"trustgp": -1.0})[0]
    lost = said({"trustgp": -1.0, "Laplace GLM": -1.1})[0]
    assert "in 0 of 1 cases; not in: sarcos random (-1.000 against -1.100 of Laplace GLM)" in lost


def test_a_method_that_needs_its_own_networks_is_no_rival_of_training_free_ones():
    assert "in 1 of 1 cases." in said({"trustgp": -1.0, "ensemble of 5": -2.0})[0]
    assert "in 0 of 1 cases" in said({"trustgp": -1.0, "ensemble of 5": -2.0})[1]


def test_within_one_spread_of_the_best_counts_as_best():
    runs = [made_up({"trustgp": value, "Laplace GLM": -1.05}) for value in (-0.9, -1.0, -1.1)]
    assert "in 1 of 1 cases." in findings(*runs)[0]


def test_corrected_is_judged_on_random_splits_by_both_likelihood_and_error():
    better = {"trustgp corrected": -3.0, "ensemble of 5": -2.0}
    assert "in 1 of 1 cases." in said(better)[2]
    worse = {"trustgp corrected": -1.0, "ensemble of 5": -2.0}
    assert "nll -1 against -2" in said(worse)[2]
    unseen = findings(made_up(worse), split="unseen")
    assert "in 0 of 0 cases." in unseen[2]


def test_second_on_another_arm_passes_and_third_does_not():
    ahead = {"trustgp": 2.0, "ensemble of 5": 1.0}
    assert "in 1 of 1 cases." in said({}, foreign_nll=ahead)[3]
    third = said({}, foreign_nll={**ahead, "Laplace GLM": 1.5})[3]
    assert "behind ensemble of 5, Laplace GLM" in third


def test_the_papers_form_and_a_gp_without_a_network_are_rivals_in_a_sentence_of_their_own():
    for relative in ("trustgp paper form", "GP on inputs, no network"):
        among, with_all = said({}, foreign_nll={"trustgp": 2.0, "ensemble of 5": 1.0, relative: 1.5})[3:5]
        assert "in 1 of 1 cases." in among, relative
        assert f"behind ensemble of 5, {relative}" in with_all


def test_coverage_passes_between_its_bounds():
    shares = (0.89, 0.90, 0.985, 0.99)
    assert [s for s in shares if "in 1 of 1 cases" in said({}, coverage=s)[5]] == [0.90, 0.985]
    assert "sarcos random (trustgp 89.0 %, trustgp corrected 89.0 %)" in said({}, coverage=0.89)[5]


def test_an_infinite_cost_is_shown_and_loses():
    lost = made_up({"trustgp": "inf"})
    grid = collected(lost)
    assert grid.mean(("sarcos", "random", IN_DOMAIN, "trustgp"), "nll") == math.inf
    headline = tables(grid)[0]
    assert next(row for row in headline.rows if row[0] == "trustgp")[2] == "infinite"
    assert "in 0 of 1 cases" in findings(lost)[1]


def test_scores_are_those_of_the_definition():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(50, 7, generator=generator, dtype=torch.float64)
    one = torch.full_like(targets, 0.25)
    zero = torch.zeros_like(targets)

    def predict(inputs):
        n = len(inputs)
        blank, seen = torch.zeros(n), torch.ones(n, dtype=torch.bool)
        return Prediction(zero[:n], one[:n], zero[:n], zero[:n], blank, blank.long(), seen)

    fitted = Fitted("made up", True, 0.5, predict)
    tests = {IN_DOMAIN: (torch.zeros(50, 21), targets), "other": (torch.zeros(20, 21), targets[:20])}
    found = score_method(fitted, tests, "cpu")
    expected = 0.5 * (math.log(2 * math.pi * 0.25) + float((targets.square() / 0.25).mean()))
    assert found["tests"][IN_DOMAIN]["nll"] == pytest.approx(expected, abs=1e-12)
    assert len(found["tests"][IN_DOMAIN]["nll_per_torque"]) == 7
    assert found["tests"]["other"]["auroc"] == 0.5  # the same std everywhere tells nothing apart
    assert "auroc" not in found["tests"][IN_DOMAIN]


def test_a_method_without_a_std_has_no_auroc_and_an_infinite_cost():
    def predict(inputs):
        n = len(inputs)
        lost, zero = torch.full((n, 7), torch.nan), torch.zeros(n, 7)
        return Prediction(zero, lost, zero, zero, zero[:, 0], zero[:, 0].long(), zero[:, 0].bool())

    rows = torch.zeros(4, 21), torch.zeros(4, 7)
    found = score_method(Fitted("lost", True, 0.0, predict), {IN_DOMAIN: rows, "other": rows}, "cpu")
    assert found["tests"]["other"]["auroc"] is None
    assert found["tests"][IN_DOMAIN]["nll"] == "inf"


# --- the real arms ----------------------------------------------------------------------------


def test_every_row_of_the_other_recordings_is_tested(data_root):
    case = make_case("sarcos", "unseen", seed=0, quick=False)
    assert list(case.tests) == [IN_DOMAIN, *(name for name in TESTED if name != "sarcos")]
    assert case.sizes["kuka_sim"] == 50223
    assert case.sizes["barrett"] == 15000
    inputs, targets = case.train
    torch.testing.assert_close(inputs.double().mean(0), torch.zeros(21).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.double().std(0), torch.ones(7).double(), atol=1e-4, rtol=0)


def test_the_parts_of_a_case_share_no_row(data_root):
    case = make_case("barrett", "random", seed=1, quick=False)
    parts = [case.train[0], case.validation[0], case.tests[IN_DOMAIN][0]]
    rows = torch.cat(parts)
    assert len(rows.unique(dim=0)) == len(rows)


def test_quick_takes_rows_from_the_whole_recording(data_root):
    case = make_case("barrett", "random", seed=0, quick=True)
    assert case.sizes == {**{part: QUICK_ROWS[part] for part in ("train", "validation")},
                          IN_DOMAIN: QUICK_ROWS["test"], "sarcos": QUICK_ROWS["test"]}  # fmt: skip
    assert foreign("barrett", quick=True) == ["sarcos"]


def test_the_same_seed_gives_the_same_networks(data_root, tmp_path):
    case = make_case("sarcos", "random", seed=0, quick=True)
    first, again = (transfer.train_bundle(Setting(tmp_path, quick=True), case, 0.1, 0) for _ in range(2))
    for one, other in ((first.network, again.network), (first.dropout_network, again.dropout_network)):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])
    weights = [network.state_dict()["0.weight"] for network in (first.network, *first.members)]
    assert len(weights) == 5
    assert not torch.equal(weights[0], weights[1])


def without_times(value):
    """The numbers of a result that a rerun must give again."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if not key.endswith("_seconds")}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.skipif(find_spec("laplace") is None, reason="laplace-torch is not installed")
def test_a_small_run_is_whole_goes_on_and_comes_out_the_same_again(data_root, tmp_path, monkeypatch):
    """Of one arm, which is tested on the other: half of what `--quick` does."""
    pytest.importorskip("matplotlib")
    cases = [("barrett", "random"), ("barrett", "unseen")]
    assert transfer.trainings(quick=True) == [*((("sarcos", split)) for _, split in cases), *cases]
    monkeypatch.setattr(transfer, "trainings", lambda quick: cases)
    result = run_study("transfer", tmp_path, seeds=1, quick=True)
    folder = tmp_path / "transfer"
    assert read_result(folder / "result.json").title == result.title
    assert all((folder / figure.file).stat().st_size > 5000 for figure in result.figures)
    headline = result.tables[0]
    assert [row[0] for row in headline.rows] == NAMES
    assert all(cell is not None for row in headline.rows for cell in row)
    runs = json.loads((folder / "result.json").read_text())["numbers"]["runs"]
    assert [(run["trained"], run["split"]) for run in runs] == cases
    # a part that is lost is done again, the others are read, and the numbers stay
    lost = next((folder / "parts").glob("barrett-unseen-0-*.json"))
    before = {file.name: file.stat().st_mtime_ns for file in (folder / "parts").iterdir() if file != lost}
    lost.unlink()
    again = run_study("transfer", tmp_path, seeds=1, quick=True)
    after = {file.name: file.stat().st_mtime_ns for file in (folder / "parts").iterdir() if file != lost}
    assert before == after
    assert without_times(copy.deepcopy(dict(again.numbers))) == without_times(dict(result.numbers))
