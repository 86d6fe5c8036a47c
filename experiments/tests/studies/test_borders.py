"""Borders between experts where they are given, and rows of the arm."""

import math

import pytest
import torch

from trustgp_experiments.core.arm import arm_rows
from trustgp_experiments.core.borders import DISTANCE, find_borders, jump_factors
from trustgp_experiments.datasets import load


def stripes(points):
    """Expert 0 left of 0.3, expert 1 up to 0.7123, expert 2 beyond, whatever the other coordinates."""
    return (points[:, 0] > 0.3).long() + (points[:, 0] > 0.7123).long()


def line(start, end):
    return torch.tensor([[start]]).double(), torch.tensor([[end]]).double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_borders_are_located_where_the_expert_changes(dtype):
    start, end = torch.tensor([[1.0, 5.0]], dtype=dtype), torch.tensor([[0.0, 0.0]], dtype=dtype)
    before, after = find_borders(stripes, start, end, cells=10)
    expected = torch.tensor([0.7123, 0.3], dtype=torch.float64)
    torch.testing.assert_close((before + after)[:, 0].double() / 2, expected, atol=DISTANCE / 4, rtol=0)
    assert stripes(before).tolist() == [2, 1]
    assert stripes(after).tolist() == [1, 0]
    assert before.dtype == dtype


def test_a_line_within_an_expert_has_no_border_and_a_cell_with_two_gives_one():
    assert len(find_borders(stripes, *line(0.0, 0.2), cells=4)[0]) == 0
    before, after = find_borders(stripes, *line(0.0, 1.0), cells=1)
    assert len(before) == 1
    assert min(abs(float(before + after) / 2 - border) for border in (0.3, 0.7123)) < DISTANCE


def test_the_jump_is_measured_and_not_the_slope():
    """A std that grows by exp(5) along the line, and by 1.5 at its border."""

    def std(points):
        return torch.exp(5 * points[:, 0]) * torch.where(points[:, 0] > 0.3, 1.5, 1.0)

    factor = jump_factors(*map(std, find_borders(stripes, *line(0.0, 0.5), cells=64)))
    assert float(factor) == pytest.approx(1.5 * math.exp(5 * 0.5 * DISTANCE), rel=1e-9)


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
