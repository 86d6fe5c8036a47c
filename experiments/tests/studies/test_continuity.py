"""The continuity study, small: on the simulated arm, as on a machine without data."""

import math
import sys

import pytest
import torch

from trustgp_experiments.core.arm import QUICK_ROWS, arm_rows
from trustgp_experiments.core.borders import APART, both_sides, find_borders, jump_factors
from trustgp_experiments.core.result import Setting
from trustgp_experiments.datasets import load
from trustgp_experiments.studies import run_study
from trustgp_experiments.studies.continuity import study as continuity
from trustgp_experiments.studies.continuity.study import (
    borders_on_lines,
    cell_borders,
    jumps_of,
    line_ends,
    quantiles,
    random_places,
    summary,
)

# --- borders, where they are known -----------------------------------------------------------


def stripes(points):
    """Expert 0 left of 0.3, expert 1 up to 0.7123, expert 2 beyond, whatever the other coordinates."""
    return (points[:, 0] > 0.3).long() + (points[:, 0] > 0.7123).long()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_borders_are_pinned_down_where_the_expert_changes(dtype):
    starts = torch.tensor([[0.0, 0.0], [1.0, 5.0], [0.0, 1.0]], dtype=dtype)
    ends = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.2, 0.0]], dtype=dtype)
    found = find_borders(stripes, starts, ends, cells=10)
    assert found.line.tolist() == [0, 0, 1, 1]  # the third line crosses none
    expected = torch.tensor([0.3, 0.7123, 1 - 0.7123, 0.7], dtype=torch.float64)
    torch.testing.assert_close(found.place, expected, atol=APART / 4, rtol=0)
    assert stripes(found.left).tolist() == [0, 1, 2, 1]
    assert stripes(found.right).tolist() == [1, 2, 1, 0]
    assert found.left.dtype == dtype


def test_the_end_of_a_line_and_the_start_of_the_next_are_no_border():
    starts, ends = torch.tensor([[0.0], [0.8]]), torch.tensor([[0.2], [1.0]])
    assert len(find_borders(stripes, starts, ends, cells=4)) == 0


def test_a_cell_with_two_borders_gives_one_of_them():
    found = find_borders(stripes, torch.zeros(1, 1).double(), torch.ones(1, 1).double(), cells=1)
    assert len(found) == 1
    assert min(abs(float(found.place) - border) for border in (0.3, 0.7123)) < APART


def test_what_is_measured_is_the_jump_and_not_the_slope():
    """A std that grows by exp(5) along the line, and by 1.5 at its border."""

    def std(points):
        return torch.exp(5 * points[:, 0]) * torch.where(points[:, 0] > 0.3, 1.5, 1.0)

    found = find_borders(stripes, torch.zeros(1, 1).double(), torch.full((1, 1), 0.5).double())
    factor = jump_factors(std(found.left), std(found.right))
    assert float(factor) == pytest.approx(1.5 * math.exp(5 * 0.5 * APART), rel=1e-9)
    elsewhere = both_sides(torch.zeros(1, 1).double(), torch.ones(1, 1).double(), *places(0.9))
    assert float(jump_factors(std(elsewhere.left), std(elsewhere.right))) < 1.0001


def places(*where):
    return torch.zeros(len(where), dtype=torch.int64), torch.tensor(where, dtype=torch.float64)


def test_both_sides_stay_on_the_line():
    sides = both_sides(torch.zeros(1, 1).double(), torch.ones(1, 1).double(), *places(0.0, 1.0, 0.5))
    assert sides.left.flatten().tolist() == [0.0, 1 - APART / 2, 0.5 - APART / 2]
    assert sides.right.flatten().tolist() == [APART / 2, 1.0, 0.5 + APART / 2]


def test_jumps_are_at_least_one_whichever_side_is_larger():
    left, right = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([2.0, 1.0, 2.0])
    assert jump_factors(left, right).tolist() == [2.0, 3.0, 1.0]


# --- on a fitted model -----------------------------------------------------------------------


def test_no_row_is_the_end_of_two_lines():
    points = torch.arange(11.0)[:, None]
    starts, ends = line_ends(points, 100, seed=0)
    assert starts.shape == ends.shape == (5, 1)
    assert len(torch.cat([starts, ends]).unique()) == 10
    assert torch.equal(line_ends(points, 3, seed=1)[0], line_ends(points, 3, seed=1)[0])


def test_jumps_are_those_of_the_predictions_on_both_sides(fitted, toy):
    starts, ends = line_ends(toy(40, 5)[0], 12, seed=0)
    borders = borders_on_lines(fitted, starts, ends, progress=False)
    left, right = fitted.predict(borders.left), fitted.predict(borders.right)
    assert bool((left.expert != right.expert).all())
    jumps = jumps_of(fitted, borders)
    ratio = (left.variance / right.variance).log().abs().mul(0.5).exp()  # |log of the stds' ratio|
    torch.testing.assert_close(jumps["std"], ratio, rtol=1e-10, atol=0)
    ratio = (left.epistemic / right.epistemic).log().abs().mul(0.5).exp()
    torch.testing.assert_close(jumps["epistemic"], ratio, rtol=1e-10, atol=0)


def test_away_from_borders_there_is_next_to_no_jump(fitted, toy):
    starts, ends = line_ends(toy(40, 5)[0], 12, seed=0)
    control = random_places(starts, ends, 50, seed=0)
    borders = borders_on_lines(fitted, starts, ends, progress=False)
    assert summary(jumps_of(fitted, control)["std"])["median"] < 1.001
    assert summary(jumps_of(fitted, borders)["std"])["median"] > 1.005


def test_a_single_expert_has_no_border(fit_case, toy):
    starts, ends = line_ends(toy(40, 5)[0], 12, seed=0)
    with pytest.raises(ValueError, match="no line crosses a border"):
        borders_on_lines(fit_case(num_experts=1), starts, ends, progress=False)


def test_a_witness_of_one_cell_has_no_border(fitted, fit_case, toy):
    starts, ends = line_ends(toy(40, 5)[0], 12, seed=0)
    assert cell_borders(fitted, starts, ends) is None
    assert cell_borders(fit_case(witness=None), starts, ends) is None


def test_summaries_are_those_of_all_borders_and_outputs():
    jumps = 1 + torch.arange(21.0).double().reshape(7, 3) / 10
    assert summary(jumps) == pytest.approx({"mean": 2.0, "median": 2.0, "upper": 2.9, "largest": 3.0})
    ranked = quantiles(jumps)
    assert (ranked[0], ranked[100], ranked[-1]) == pytest.approx((1.0, 2.0, 3.0))
    assert ranked == sorted(ranked)


# --- the study -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Its folder and its result."""
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("continuity")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRUSTGP_DATA", raising=False)
        return out, run_study("continuity", out, quick=True, seeds=1)


def test_more_patchwork_makes_the_jumps_smaller(quick):
    jumps = quick[1].numbers["jumps"]["epistemic"]
    means = [jumps[name]["mean"][0] for name in ("independent", "patchwork", "large")]
    assert max(means[1:]) < means[0]
    assert all(mean > 1 for mean in means)


def test_the_control_shows_that_slopes_do_not_count(quick):
    (seed,) = quick[1].numbers["seeds"]
    assert 1 <= seed["control"]["median"] < 1.0005


def test_the_result_says_what_it_was_made_from(quick):
    out, result = quick
    assert "Simulated arm" in result.protocol[0]
    assert result.provenance["data"] == "arm_slow"
    assert result.provenance["rows"][0]["train"] <= QUICK_ROWS[0]
    assert (out / "continuity" / result.figures[0].file).stat().st_size > 20_000
    assert len(result.findings) >= 4


def test_the_same_seed_gives_the_same_numbers(quick, tmp_path, monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    few = ("independent", "default")  # variants
    monkeypatch.setattr(continuity, "VARIANTS", {name: continuity.VARIANTS[name] for name in few})
    monkeypatch.setattr(continuity, "DRAWN", few)
    again = continuity.one_seed(Setting(tmp_path, quick=True), 0)
    (before,) = quick[1].numbers["seeds"]
    assert {key: again[key] for key in ("borders", "experts", "control")} == {
        key: before[key] for key in ("borders", "experts", "control")
    }
    assert again["jumps"] == {name: before["jumps"][name] for name in again["jumps"]}


def test_without_matplotlib_nothing_runs_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"trustgp\[plots\]"):
        run_study("continuity", tmp_path, quick=True)
    assert not (tmp_path / "continuity" / "parts").exists()


def test_without_pinocchio_there_is_the_simulated_arm(monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pinocchio", None)
    assert arm_rows(seed=0, quick=True).source == "arm_slow"


def test_arm_rows_are_standardised_by_the_training_rows_and_share_none(data_root, monkeypatch):
    monkeypatch.setenv("TRUSTGP_DATA", str(data_root))
    rows = arm_rows(seed=0, quick=False)
    assert rows.source == "sarcos"
    assert sum(rows.sizes.values()) == len(load("sarcos").inputs)
    for part in rows.train:
        torch.testing.assert_close(part.mean(0), torch.zeros(part.shape[1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(part.std(0, correction=0), torch.ones(part.shape[1]))
    everything = torch.cat([rows.train[0], rows.validation[0], rows.test[0]])
    assert len(everything.unique(dim=0)) == len(everything)
