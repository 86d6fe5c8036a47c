"""The sequence study: its rules on made-up numbers, its windows, and a small run."""

import json

import pytest
import torch

from trustgp_experiments.core.cases import IN_DOMAIN, read_tests
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.core.registry import run_study
from trustgp_experiments.core.result import read_result
from trustgp_experiments.datasets import load, seams, split_unseen, standardise
from trustgp_experiments.report.page import write_report
from trustgp_experiments.studies.sequence.study import (
    LENGTH,
    MADE,
    METHODS,
    QUICK,
    SPLIT,
    TorqueGRU,
    arms,
    findings,
    make_case,
    sequence_tables,
)
from trustgp_experiments.studies.transfer.scores import AXES
from trustgp_experiments.studies.transfer.study import QUICK_ROWS


def made_up(*, nll=None, mse=None, coverage=0.95, far=None) -> dict:
    """One seed's scores by method, all alike but for what is given."""

    def scores(value, error):
        return {"nll": value, "mse": error, "coverage": coverage, "sharpness": 1.0}

    return {
        name: {
            "training_free": name != "ensemble of 5",
            "fit_seconds": 1.0,
            "training_seconds": 0.0,
            "mebibytes": 1.0,
            "predict_seconds": 0.001,
            "tests": {
                IN_DOMAIN: scores((nll or {}).get(name, 0.0), (mse or {}).get(name, 0.1)),
                "barrett": {**scores((far or {}).get(name, 5.0), 1.0), "auroc": 0.9, "fpr95": 0.1},
            },
        }
        for name in METHODS
    }


def said(**options) -> list[str]:
    return findings(collected(*[made_up(**options)] * 2))


def collected(*seeds: dict):
    return Grid.of(AXES, {("sarcos", SPLIT): [{"methods": seed} for seed in seeds]}, read_tests)


def test_a_tie_is_no_win():
    assert all("worse in 0, alike in 1, better in 0 of 1 cases" in text for text in said()[:-1])


def test_losses_come_first_with_their_numbers():
    found = said(nll={"trustgp": -1.0, "ensemble of 5": -1.5}, mse={"trustgp corrected": 0.05})
    lost = "On new motions, trustgp against ensemble of 5, NLL: worse in 1 (sarcos unseen by +0.50 ("
    assert found[0].startswith(lost)
    won = next(text for text in found if "On new motions, trustgp against network + noise, NLL" in text)
    assert "better in 1 of 1 cases" in won
    assert "mse: worse in 0, alike in 0, better in 1" in found[-2]


def test_other_arms_are_judged_apart():
    found = said(far={"trustgp": 9.0, "ensemble of 5": 4.0})
    lost = "On other arms, trustgp against ensemble of 5, NLL: worse in 1 (sarcos unseen on barrett by +5.00"
    assert any(text.startswith(lost) for text in found[: len(METHODS)])


def test_coverage_passes_between_its_bounds():
    held = [share for share in (0.89, 0.95, 0.99) if "in 1 of 1 cases" in said(coverage=share)[-1]]
    assert held == [0.95]


def test_the_tables_hold_every_method():
    tables = sequence_tables(collected(made_up()))
    assert [row[0] for row in tables[0].rows] == list(METHODS)
    assert [column.name for column in tables[0].columns] == ["method", "sarcos", "sarcos on barrett"]
    assert len(tables[1].rows) == 2 * len(METHODS)


def test_a_gru_answers_for_the_last_state_and_its_seed_decides_its_weights():
    before = torch.get_rng_state()
    network, again, other = TorqueGRU(8, seed=1), TorqueGRU(8, seed=1), TorqueGRU(8, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(network.last.weight, again.last.weight)
    assert not torch.equal(network.gru.weight_ih_l0, other.gru.weight_ih_l0)
    window = torch.randn(3, LENGTH, 21)
    outputs, state = network.gru(window)
    torch.testing.assert_close(network(window), network.last(state[0]))
    assert outputs.shape == (3, LENGTH, 8)


def test_the_same_seed_trains_the_same_networks(monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    case = make_case("slow", seed=0, quick=True)
    first, again = (QUICK.bundle(case.train, case.validation, seed=0, device="cpu") for _ in range(2))
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])
    assert len(first.members) == 4
    with pytest.raises(ValueError, match="trained with dropout"):
        _ = first.dropping


# --- the real arms --------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["sarcos", "kuka"])
def test_no_window_holds_rows_of_two_parts_or_a_seam(data_root, arm):
    recording = load(arm)
    split = split_unseen(recording, seed=0)
    scaling = standardise(recording.inputs[split.train], recording.targets[split.train])
    rows = scaling.inputs(recording.inputs).float()
    place = {tuple(row): number for number, row in enumerate(rows[:, :7].tolist())}
    case, jumps = make_case(arm, seed=0, quick=False), seams(recording)
    for part, (inputs, targets) in (("train", case.train), ("test", case.tests[IN_DOMAIN])):
        allowed = set(getattr(split, part).tolist())
        for number in torch.linspace(0, len(inputs) - 1, 200).long().tolist():
            window = inputs[number]
            last = place[tuple(window[-1, :7].tolist())]
            held = range(last - LENGTH + 1, last + 1)
            assert torch.equal(window, rows[held.start : held.stop])
            assert set(held) <= allowed
            assert not jumps[held.start : held.stop - 1].any()
            torch.testing.assert_close(
                targets[number], scaling.targets(recording.targets[last : last + 1])[0].float()
            )


def test_every_other_arm_is_tested_whole(data_root):
    case = make_case("barrett", seed=0, quick=False)
    assert list(case.tests) == [IN_DOMAIN, "sarcos", "kuka"]
    assert case.sizes["kuka"] == 3 * (5027 - LENGTH + 1)
    assert arms(quick=True) == ("sarcos", "barrett")


def test_a_small_run_on_simulated_arms_is_whole_and_stands_in_the_report(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    result = run_study("sequence", tmp_path, seeds=1, quick=True)
    folder = tmp_path / "sequence"
    assert read_result(folder / "result.json").title == result.title
    assert all((folder / figure.file).stat().st_size > 5000 for figure in result.figures)
    runs = json.loads((folder / "result.json").read_text())["numbers"]["runs"]
    assert [run["trained"] for run in runs] == list(MADE)
    assert runs[0]["seeds"][0]["sizes"] == {
        "train": QUICK_ROWS["train"], "validation": QUICK_ROWS["validation"],
        IN_DOMAIN: QUICK_ROWS["test"], "fast": QUICK_ROWS["test"]}  # fmt: skip
    known = [row for row in result.tables[0].rows if not row[0].startswith("conformal")]
    assert all(cell is not None for row in known for cell in row)
    assert result.title in write_report(tmp_path).read_text()
