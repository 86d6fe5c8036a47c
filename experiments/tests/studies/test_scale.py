"""The scale study: its rows, and a small run."""

from itertools import pairwise

import pytest
import torch

from trustgp_experiments.studies.scale.study import QUICK, SCALING_ROWS, scale_rows, size_for

STAGES = ["running the network", "dividing the rows", "solving the experts", "calibrating"]


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
        assert sum(one["stages"].values()) == pytest.approx(one["seconds"], rel=1e-3)  # stored to four digits
    assert f"{QUICK.rows} rows take" in result.findings[1]
