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
from trustgp_experiments.core.regression import method_names, score_method
from trustgp_experiments.core.result import Setting, read_result
from trustgp_experiments.datasets import load, split_unseen, standardise
from trustgp_experiments.peers.registry import METHODS, Fitted
from trustgp_experiments.studies.transfer import study as transfer
from trustgp_experiments.studies.transfer.scores import AXES, findings, standings, tables
from trustgp_experiments.studies.transfer.study import FOREIGN_ROWS, QUICK_ROWS, TESTED, foreign, make_case

NAMES = [method.name for method in METHODS]
FREE = [m.name for m in METHODS if m.training_free and not m.name.startswith("trustgp")]


def made_up(nll: dict[str, float], *, mse=0.01, coverage=0.95, foreign_nll=None) -> dict:
    """One seed's scores by method, all alike but for what is given."""

    def scores(value: float) -> dict:
        return {"nll": value, "crps": 0.1, "mse": mse, "coverage": coverage, "sharpness": 1.0}

    free = {method.name: method.training_free for method in METHODS}
    return {
        name: {
            "training_free": free[name],
            "fit_seconds": 1.0,
            "training_seconds": 0.0,
            "mebibytes": 1.0,
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


def said(*seeds: dict, **options) -> list[str]:
    return findings(collected(*seeds, **options))


def five(nll: dict[str, float], **options) -> list[dict]:
    """Five seeds whose numbers differ a little."""
    return [made_up({k: v + 0.01 * seed for k, v in nll.items()}, **options) for seed in range(5)]


def test_the_cases_against_us_come_first_with_the_size_of_the_loss():
    first, second, *_ = said(*five({"trustgp": -1.0, "Laplace GLM": -1.5, "ensemble of 5": -1.2}))
    assert first.startswith(
        "Against us: in domain, some method has a lower NLL than trustgp in 1 of 1 cases."
    )
    assert "The dearest: sarcos random: Laplace GLM by +0.50 (+0.50 to +0.50)." in first
    assert "Most often ahead: ensemble of 5 (1), Laplace GLM (1)." in first
    assert second == "Zero shot, no method has a lower NLL than trustgp in any of 1 cases."


def test_a_method_that_needs_its_own_networks_is_no_rival_of_training_free_ones():
    found = said(*five({"trustgp": -1.0, "ensemble of 5": -2.0, **dict.fromkeys(FREE, -0.5)}))
    assert "against five networks, NLL: worse in 1 (sarcos random by +1.00" in found[2]
    assert "in 1 of 1 cases." in found[4]
    lost = said(*five({"trustgp": -1.0, **dict.fromkeys(FREE, -0.5), "Laplace GLM": -1.1}))[4]
    assert "in 0 of 1 cases; not in: sarcos random (Laplace GLM by +0.10" in lost


def test_a_difference_that_seeds_do_not_agree_on_is_no_loss():
    runs = [made_up({"trustgp": value, "Laplace GLM": -1.05}) for value in (-0.9, -1.3, -1.1)]
    row = next(row for row in standings(collected(*runs), "trustgp").rows if row[0] == "Laplace GLM")
    assert row[1] == "0 / 1 / 0"


def test_far_from_home_each_split_has_its_sentences():
    far = {"trustgp": 2.0, "ensemble of 5": 1.0, "Laplace GLM": 1.5}
    found = said(*five({}, foreign_nll=far), split="unseen")
    rivals = [s for s in found if s.startswith("Zero shot, unseen split, trustgp against")]
    assert len(rivals) == 4
    assert "ensemble of 5, NLL: worse in 1 (sarcos unseen on barrett by +1.00 (+1.00 to +1.00))" in rivals[0]


def test_coverage_passes_between_its_bounds():
    shares = (0.89, 0.90, 0.985, 0.99)
    passed = [s for s in shares if "in 1 of 1 cases" in said(*five({}, coverage=s))[5]]
    assert passed == [0.90, 0.985]
    assert "not in: sarcos random (89.0 %)." in said(*five({}, coverage=0.89))[6]


def test_an_infinite_cost_is_shown_and_loses():
    lost = made_up({"trustgp": "inf"})
    grid = collected(lost)
    assert grid.mean(("sarcos", "random", IN_DOMAIN, "trustgp"), "nll") == math.inf
    headline = tables(grid)[0]
    assert next(row for row in headline.rows if row[0] == "trustgp")[2] == "infinite"
    assert "lower NLL than trustgp in 1 of 1 cases" in said(lost)[0]


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
    assert found["tests"][IN_DOMAIN]["nll"] == pytest.approx(expected, abs=1e-4)  # a Student-t of a million
    assert len(found["tests"][IN_DOMAIN]["nll_per_output"]) == 7
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


def test_the_other_recordings_are_tested_from_end_to_end(data_root):
    case = make_case("sarcos", "unseen", seed=0, quick=False)
    assert list(case.tests) == [IN_DOMAIN, *(name for name in TESTED if name != "sarcos")]
    assert case.sizes["kuka_sim"] == FOREIGN_ROWS
    last = load("kuka_sim").inputs[-1]
    scaling = standardise(
        *(getattr(load("sarcos"), part)[split_unseen(load("sarcos")).train] for part in ("inputs", "targets"))
    )
    torch.testing.assert_close(case.tests["kuka_sim"][0][-1], scaling.inputs(last[None])[0].float())
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
    rows, place = (case.train, case.validation), Setting(tmp_path, quick=True).place
    first, again = (transfer.QUICK.bundle(*rows, seed=0, dropout=0.1, **place) for _ in range(2))
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
    """Of one arm, which is tested on the other."""
    pytest.importorskip("matplotlib")
    cases = [("barrett", "random"), ("barrett", "unseen")]
    assert transfer.trainings(quick=True) == [("sarcos", split) for _, split in cases]
    monkeypatch.setattr(transfer, "trainings", lambda quick: cases)
    result = run_study("transfer", tmp_path, seeds=1, quick=True)
    folder = tmp_path / "transfer"
    assert read_result(folder / "result.json").title == result.title
    assert all((folder / figure.file).stat().st_size > 5000 for figure in result.figures)
    headline = result.tables[0]
    assert [row[0] for row in headline.rows] == method_names(quick=True)
    known = [row for row in headline.rows if not row[0].startswith("conformal")]  # that has no likelihood
    assert all(cell is not None for row in known for cell in row)
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
