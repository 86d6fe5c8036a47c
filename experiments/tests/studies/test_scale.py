"""The scale study, small, and the words it makes from its numbers."""

import sys
from itertools import pairwise

import pytest
import torch

from trustgp_experiments.core.result import read_result
from trustgp_experiments.studies import run_study
from trustgp_experiments.studies.scale.fits import SCALING_ROWS, scale_rows
from trustgp_experiments.studies.scale.study import QUICK, scale_findings, scale_grid, scale_tables, size_for

# so few rows may well be no better than one constant noise, and `fit` then says so
pytestmark = pytest.mark.filterwarnings("ignore:on the held-out rows this error bar is worse:UserWarning")

STAGES = ["running the network", "dividing the rows", "solving the experts", "calibrating"]


def entry(rows, seconds, peak=1e9):
    return {
        "rows": rows,
        "experts": rows // 1000,
        "seconds": seconds,
        "stages": {"dividing the rows": 0.25 * seconds, "solving the experts": 0.75 * seconds},
        "stage_peaks": {"dividing the rows": {"cpu": peak / 2}, "solving the experts": {"cpu": peak}},
        "peak": {"cpu": peak},
        "model_bytes": 5e8,
        "held_rows": 500.0,
        "nll": {"trustgp": -1.5, "network + noise": -1.25},
    }


@pytest.mark.parametrize(
    ("last", "most", "word"), [(4.4, "2.20", "as promised"), (4.42, "2.21", "more than promised")]
)
def test_the_finding_names_the_worst_doubling_and_whether_it_keeps_the_promise(last, most, word):
    runs = [[entry(1000, 1.0), entry(2000, 2.0), entry(4000, last)]]
    growth, speed, memory, likelihood = scale_findings(scale_grid(runs), "cpu")
    assert f"{most} times at most, from 2000 rows to 4000: {word} (2.2)" in growth
    assert f"4000 rows take {last:.1f} s" in speed
    assert "75 % of it is solving the experts" in speed
    assert "1000 MB for the most, of which the model is 500 MB" in memory
    assert "-1.500 per torque; with one constant noise it is -1.250" in likelihood


def test_a_ratio_is_the_mean_over_seeds_and_the_first_number_of_rows_has_none():
    runs = [[entry(1000, 1.0), entry(2000, 2.0)], [entry(1000, 1.0), entry(2000, 3.0)]]
    grid = scale_grid(runs)
    assert grid.values((2000,), "growth") == [2.0, 3.0]
    first, second = scale_tables(grid)[0].rows
    assert first[3] is None
    assert second[3] == [2.5, pytest.approx(0.5**0.5)]
    assert second[4] == [pytest.approx((1000 + 2000 / 3) / 2), pytest.approx(500 / 3 * 2**0.5)]


def test_without_a_known_peak_there_is_a_gap_and_no_sentence():
    runs = [[{**entry(1000, 1.0), "peak": {"cpu": None}}, {**entry(2000, 2.0), "peak": {"cpu": None}}]]
    assert scale_tables(scale_grid(runs))[2].rows[0][1] is None
    assert len(scale_findings(scale_grid(runs), "cpu")) == 3


@pytest.mark.parametrize(("device", "most"), [("cuda", 2e6), ("cpu", 1.25e5)])
def test_rows_double_from_ten_thousand_to_the_most_at_fixed_rows_per_expert(device, most):
    size = size_for(device, quick=False)
    assert all(after == 2 * before for before, after in pairwise(size.experts))
    assert size.experts[0] * size.expert_rows <= 10_000
    assert size.most == pytest.approx(most, rel=1e-3)


def test_held_out_rows_are_of_other_motions_and_scaled_by_the_training_rows():
    rows = scale_rows(2000, seed=0, held=50)
    assert [len(part[0]) for part in (rows.train, rows.validation, rows.test)] == [2000, 50, 50]
    assert len(rows.train[0]) < SCALING_ROWS
    for part in rows.train:
        torch.testing.assert_close(part.mean(0), torch.zeros(part.shape[1]), atol=1e-4, rtol=0)
        torch.testing.assert_close(part.std(0), torch.ones(part.shape[1]), atol=1e-3, rtol=0)
    together = torch.cat([rows.train[0], rows.validation[0], rows.test[0]])
    assert len(together.unique(dim=0)) == len(together)
    inputs, targets = rows.first(10)
    assert torch.equal(inputs, rows.train[0][:10])
    assert targets.shape == (10, 7)


# --- the study -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Its folder and its result."""
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("scale")
    return out, run_study("scale", out, quick=True, seeds=1)


def test_every_number_of_rows_is_fitted_at_fixed_rows_per_expert(quick):
    (found,) = quick[1].numbers["seeds"]
    assert [one["rows"] for one in found] == [QUICK.expert_rows * experts for experts in QUICK.experts]
    for one in found:
        assert one["experts"] >= one["asked"]
        assert one["failed"] == 0
        assert one["model_bytes"] <= one["asked"] * QUICK.expert_bytes
        assert set(STAGES) <= set(one["stages"])
        assert sum(one["stages"].values()) == pytest.approx(one["seconds"])


def test_the_result_is_whole_and_read_back(quick):
    out, result = quick
    folder = out / "scale"
    assert read_result(folder / "result.json").title == result.title
    assert (folder / "scale.png").stat().st_size > 10_000
    assert [len(table.rows) for table in result.tables] == [len(QUICK.experts)] * 3
    assert f"{QUICK.most} rows take" in result.findings[1]
    assert result.provenance["rows"] == [row[0] for row in result.tables[0].rows]


def test_a_second_run_takes_what_is_there(quick, monkeypatch):
    monkeypatch.setattr(
        "trustgp_experiments.studies.scale.fits.measured_fit", lambda *_, **__: pytest.fail("fitted again")
    )
    assert run_study("scale", quick[0], quick=True, seeds=1).numbers == quick[1].numbers


def test_without_matplotlib_nothing_runs_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"trustgp\[plots\]"):
        run_study("scale", tmp_path, quick=True)
    assert not (tmp_path / "scale" / "parts").exists()
