"""Rows predicted from the others in closed form, against really leaving them out."""

import pytest
import torch
from reference import inverse_of
from reference import leave_out as left_out_by_refits

from trustgp.math.leave_out import leave_out

GROUPS = torch.tensor([3, 0, 0, 7, 3, 7, 7, 0, 1, 1, 1, 3, 5, 5, 5, 5, 0, 9])


def problem(rows=18, width=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return phi @ phi.T, torch.randn(rows, 2, generator=generator, dtype=torch.float64)


def assert_same(found, expected, atol=1e-10):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=atol)


@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_leave_one_out_equals_leaving_each_row_out(tau):
    gram, residual = problem()
    expected = left_out_by_refits(gram, residual, torch.arange(len(gram)), tau)
    assert_same(leave_out(inverse_of(gram, tau), residual, None), expected)


@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_leave_groups_out_equals_leaving_each_group_out(tau):
    gram, residual = problem()
    expected = left_out_by_refits(gram, residual, GROUPS, tau)
    assert_same(leave_out(inverse_of(gram, tau), residual, GROUPS), expected)
    one = leave_out(inverse_of(gram, tau), residual[:, :1], GROUPS)  # a single output
    assert_same(one, (expected[0][:, :1], expected[1]))
