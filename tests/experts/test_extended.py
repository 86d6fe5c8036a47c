"""Rows that are added to a posterior that keeps directions, without the rows of before."""

import pytest
import torch

from trustgp.experts.features import NO_COLUMNS
from trustgp.experts.posteriors import SpanPosterior, make_posterior
from trustgp.math.evidence import factorise
from trustgp.tangents.rows import RowFeatures


def posterior_of(phi, residual, tau) -> SpanPosterior:
    factor, _ = factorise(phi @ phi.T, tau)
    weights = torch.cholesky_solve(residual, factor)
    found = make_posterior(RowFeatures(phi), NO_COLUMNS, factor, weights, tau)
    assert isinstance(found, SpanPosterior)
    return found


@pytest.mark.parametrize(("old", "new"), [(12, 5), (3, 9), (40, 4)])
def test_rows_that_are_added_say_what_all_rows_together_say(old, new):
    generator = torch.Generator().manual_seed(old)
    phi = torch.randn(old + new, 16, generator=generator).double()
    residual, tau = torch.randn(old + new, 2, generator=generator).double(), torch.tensor(0.3).double()
    rows = RowFeatures(torch.randn(7, 16, generator=generator).double())
    before = posterior_of(phi[:old], residual[:old], tau)
    found = before.extended(phi[old:], residual[old:], tau)(rows)
    precision = torch.eye(16).double() + phi.T @ phi / tau  # dense, of all rows
    x = rows.rows
    torch.testing.assert_close(found.unit, (x * torch.linalg.solve(precision, x.T).T).sum(dim=1))
    expected = x @ torch.linalg.solve(precision, phi.T @ residual / tau)
    torch.testing.assert_close(found.residual_mean, expected)


def test_directions_that_were_dropped_stay_unknown_and_the_variance_falls_with_new_rows():
    generator = torch.Generator().manual_seed(1)
    phi, tau = torch.randn(20, 12, generator=generator).double(), torch.tensor(0.1).double()
    few = posterior_of(phi, phi[:, :1], tau).truncate(4)
    rows = RowFeatures(torch.randn(30, 12, generator=generator).double())
    added = torch.randn(3, 12, generator=generator).double()
    more = few.extended(added, added[:, :1], tau)
    assert more.directions == 7
    assert bool((more(rows).unit <= few(rows).unit + 1e-12).all())
