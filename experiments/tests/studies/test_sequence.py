"""The sequence study: its windows, and a small run on simulated arms."""

import pytest
import torch

from trustgp_experiments.core.cases import IN_DOMAIN
from trustgp_experiments.datasets import load, split_unseen, standardise
from trustgp_experiments.datasets.splits import seams
from trustgp_experiments.studies.sequence.study import LENGTH, MADE, TorqueGRU, arms, make_case
from trustgp_experiments.studies.transfer.study import QUICK_ROWS


def test_a_gru_uses_the_last_state_and_its_seed_decides_its_weights():
    before = torch.get_rng_state()
    network, again, other = TorqueGRU(8, seed=1), TorqueGRU(8, seed=1), TorqueGRU(8, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(network.last.weight, again.last.weight)
    assert not torch.equal(network.gru.weight_ih_l0, other.gru.weight_ih_l0)
    window = torch.randn(3, LENGTH, 21)
    torch.testing.assert_close(network(window), network.last(network.gru(window)[1][0]))


@pytest.mark.parametrize("arm", ["sarcos", "kuka"])
def test_no_window_has_rows_of_two_parts_or_a_seam(data_root, arm):
    """Would catch test rows among the states of a training window."""
    recording = load(arm)
    split = split_unseen(recording, seed=0)
    scaling = standardise(recording.inputs[split.train], recording.targets[split.train])
    rows = scaling.inputs(recording.inputs).float()
    place = {tuple(row): number for number, row in enumerate(rows[:, :7].tolist())}
    case, jumps = make_case(arm, seed=0, quick=False), seams(recording)
    for part, (inputs, targets) in (("train", case.train), ("test", case.tests[IN_DOMAIN])):
        allowed = set(getattr(split, part).tolist())
        for number in torch.linspace(0, len(inputs) - 1, 200).long().tolist():
            last = place[tuple(inputs[number, -1, :7].tolist())]
            states = range(last - LENGTH + 1, last + 1)
            assert torch.equal(inputs[number], rows[states.start : states.stop])
            assert set(states) <= allowed
            assert not jumps[states.start : states.stop - 1].any()
            expected = scaling.targets(recording.targets[last : last + 1])[0].float()
            torch.testing.assert_close(targets[number], expected)


def test_every_other_arm_is_tested_whole(data_root):
    case = make_case("barrett", seed=0, quick=False)
    assert list(case.tests) == [IN_DOMAIN, "sarcos", "kuka"]
    assert case.sizes["kuka"] == 3 * (5027 - LENGTH + 1)
    assert arms(quick=True) == ("sarcos", "barrett")


def test_a_small_run_scores_every_method_on_both_simulated_arms(small_run):
    result = small_run("sequence")[1]
    runs = result.numbers["runs"]
    assert [run["trained"] for run in runs] == list(MADE)
    sizes = {part: QUICK_ROWS[part] for part in ("train", "validation")}
    tested = dict.fromkeys((IN_DOMAIN, "fast"), QUICK_ROWS["test"])
    assert runs[0]["seeds"][0]["sizes"] == {**sizes, **tested}
    likely = [row for row in result.tables[0].rows if not row[0].startswith("conformal")]
    assert all(cell is not None for row in likely for cell in row)
