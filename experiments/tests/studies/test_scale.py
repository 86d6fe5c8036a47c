"""The scale study: findings on made-up numbers, its rows, and a small run."""

from itertools import pairwise

import pytest
import torch

from trustgp_experiments.studies.scale.fits import SCALING_ROWS, scale_rows
from trustgp_experiments.studies.scale.study import QUICK, size_for, summarise

STAGES = ["running the network", "dividing the rows", "solving the experts", "calibrating"]


def entry(rows, seconds, peak=1e9):
    return {
        "rows": rows,
        "experts": rows // 1000,
        "seconds": seconds,
        "stages": {"dividing the rows": 0.25 * seconds, "solving the experts": 0.75 * seconds},
        "peak": {"cpu": peak},
        "model_bytes": 5e8,
        "held_rows": 500.0,
        "nll": {"trustgp": -1.5, "network + noise": -1.25},
    }


@pytest.mark.parametrize(
    ("last", "most", "word"), [(4.4, "2.20", "as promised"), (4.42, "2.21", "more than promised")]
)
def test_the_finding_names_the_worst_doubling_and_whether_it_keeps_the_promise(last, most, word):
    seeds = [[entry(1000, 1.0), entry(2000, 2.0), entry(4000, last)]]
    growth, speed, memory, likelihood = summarise({"device": "cpu", "seeds": seeds})[1]
    assert f"{most} times at most, from 2000 rows to 4000: {word} (2.2)" in growth
    assert f"4000 rows take {last:.1f} s" in speed
    assert "75 % of it is solving the experts" in speed
    assert "1000 MB for the most, of which the model is 500 MB" in memory
    assert "-1.500 per torque; with one constant noise it is -1.250" in likelihood


def test_a_ratio_is_the_mean_over_seeds_and_an_unknown_peak_a_gap():
    seeds = [
        [entry(1000, 1.0, None), entry(2000, 2.0, None)],
        [entry(1000, 1.0, None), entry(2000, 3.0, None)],
    ]
    tables, findings = summarise({"device": "cpu", "seeds": seeds})
    first, second = tables[0].rows
    assert first[3] is None
    assert second[3] == [2.5, pytest.approx(0.5**0.5)]
    assert second[4] == [pytest.approx((1000 + 2000 / 3) / 2), pytest.approx(500 / 3 * 2**0.5)]
    assert tables[2].rows[0][1] is None
    assert len(findings) == 3


@pytest.mark.parametrize(("device", "most"), [("cuda", 2e6), ("cpu", 1.25e5)])
def test_rows_double_from_ten_thousand_to_the_most_at_fixed_rows_per_expert(device, most):
    size = size_for(device, quick=False)
    assert all(after == 2 * before for before, after in pairwise(size.experts))
    assert size.experts[0] * size.expert_rows <= 10_000
    assert size.rows == pytest.approx(most, rel=1e-3)


def test_held_out_rows_are_of_other_motions_and_scaled_by_the_training_rows():
    rows = scale_rows(2000, seed=0, held=50)
    assert [len(part[0]) for part in (rows.train, rows.validation, rows.test)] == [2000, 50, 50]
    assert len(rows.train[0]) < SCALING_ROWS
    for part in rows.train:
        torch.testing.assert_close(part.mean(0), torch.zeros(part.shape[1]), atol=1e-4, rtol=0)
        torch.testing.assert_close(part.std(0), torch.ones(part.shape[1]), atol=1e-3, rtol=0)
    together = torch.cat([rows.train[0], rows.validation[0], rows.test[0]])
    assert len(together.unique(dim=0)) == len(together)


def test_every_number_of_rows_is_fitted_at_fixed_rows_per_expert(small_run):
    result = small_run("scale")[1]
    (entries,) = result.numbers["seeds"]
    assert [one["rows"] for one in entries] == [QUICK.expert_rows * experts for experts in QUICK.experts]
    for one in entries:
        assert one["experts"] >= one["asked"]
        assert one["failed"] == 0
        assert one["model_bytes"] <= one["asked"] * QUICK.expert_bytes
        assert set(STAGES) <= set(one["stages"])
        assert sum(one["stages"].values()) == pytest.approx(one["seconds"])
    assert f"{QUICK.rows} rows take" in result.findings[1]
