"""Rows predicted from the others in closed form, against really leaving them out."""

import pytest
import torch
from draws import Draws
from reference import inverse_of
from reference import leave_out as left_out_by_refits

from trustgp.math.leave_out import leave_out

GROUPS = torch.tensor([3, 0, 0, 7, 3, 7, 7, 0, 1, 1, 1, 3, 5, 5, 5, 5, 0, 9])


@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_rows_and_groups_in_closed_form_equal_really_leaving_them_out(tau):
    draws = Draws()
    phi, residual = draws.normal(18, 7), draws.normal(18, 2)
    gram, each = phi @ phi.T, torch.arange(18)
    for groups, values in ((None, residual), (GROUPS, residual), (GROUPS, residual[:, :1])):
        found = leave_out(inverse_of(gram, tau), values, groups)
        expected = left_out_by_refits(gram, values, each if groups is None else groups, tau)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
