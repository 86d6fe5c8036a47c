"""Posteriors against explicit inverses, and with rows added, without the rows of before."""

import pytest
import torch
from draws import Draws
from reference import inverse_of, posterior_mean, posterior_variance

from trustgp.experts.features import NO_COLUMNS
from trustgp.experts.posteriors import GramPosterior, SpanPosterior, make_posterior
from trustgp.math.evidence import factorise, maximise_evidence
from trustgp.tangents.factors import FactorFeatures
from trustgp.tangents.rows import RowFeatures

EVERY = torch.empty(0, dtype=torch.int64)
SEED = torch.Generator().manual_seed(0)
TRAIN, TEST = torch.randn(14, 6, generator=SEED).double(), torch.randn(5, 6, generator=SEED).double()
RESIDUAL = torch.randn(14, 2, generator=SEED).double()


def as_factors(phi: torch.Tensor) -> FactorFeatures:
    """The same linear kernel, as the factors of a layer whose signal is 1."""
    return FactorFeatures((phi,), (torch.ones(len(phi), 1, dtype=torch.float64),), ())


def posterior_of(features, columns, evidence, weights):
    """Of rows with independent noise."""
    return make_posterior(features, columns, evidence.factor, weights, evidence.tau + evidence.jitter)


@pytest.mark.parametrize(("wrap", "kind"), [(RowFeatures, SpanPosterior), (as_factors, GramPosterior)])
def test_both_states_answer_like_the_explicit_inverse(wrap, kind):
    gram = TRAIN @ TRAIN.T
    evidence = maximise_evidence(gram, RESIDUAL)
    tau = float(evidence.tau)
    posterior = posterior_of(wrap(TRAIN), EVERY, evidence, inverse_of(gram, tau) @ RESIDUAL)
    assert isinstance(posterior, kind)
    answer = posterior(wrap(TEST))
    prior = TEST.square().sum(1)
    expected = posterior_variance(gram, TEST @ TRAIN.T, prior, tau)
    torch.testing.assert_close(answer.unit, expected, rtol=1e-10, atol=1e-10 * float(prior.max()))
    torch.testing.assert_close(answer.prior, prior, rtol=1e-10, atol=0)
    shift = posterior_mean(gram, TEST @ TRAIN.T, RESIDUAL, tau)
    torch.testing.assert_close(answer.residual_mean, shift, rtol=1e-10, atol=1e-10)


def test_an_expert_with_columns_selects_them_itself():
    columns = torch.tensor([0, 2, 3])
    small = RowFeatures(TRAIN[:, columns])
    evidence = maximise_evidence(small.gram(small), RESIDUAL)
    weights = torch.cholesky_solve(RESIDUAL, evidence.factor)
    chosen = posterior_of(small, columns, evidence, weights)
    whole = posterior_of(small, EVERY, evidence, weights)
    one, other = chosen(RowFeatures(TEST)), whole(RowFeatures(TEST[:, columns]))
    assert torch.equal(one.unit, other.unit)
    assert torch.equal(one.residual_mean, other.residual_mean)


def test_a_basis_is_kept_in_the_precision_of_the_features():
    phi = RowFeatures(TRAIN.float())
    evidence = maximise_evidence(phi.gram(phi), RESIDUAL)
    posterior = posterior_of(phi, EVERY, evidence, torch.cholesky_solve(RESIDUAL, evidence.factor))
    assert posterior.basis.dtype == torch.float32
    assert bool((posterior(RowFeatures(TRAIN.float())).unit >= 0).all())


def span_of(phi, residual, tau) -> SpanPosterior:
    factor, _ = factorise(phi @ phi.T, tau)
    weights = torch.cholesky_solve(residual, factor)
    found = make_posterior(RowFeatures(phi), NO_COLUMNS, factor, weights, tau)
    assert isinstance(found, SpanPosterior)
    return found


@pytest.mark.parametrize(("old", "new"), [(12, 5), (3, 9), (40, 4)])
def test_rows_that_are_added_say_what_all_rows_together_say(old, new):
    draws, tau = Draws(old), torch.tensor(0.3).double()
    phi, residual = draws.normal(old + new, 16), draws.normal(old + new, 2)
    rows = RowFeatures(draws.normal(7, 16))
    before = span_of(phi[:old], residual[:old], tau)
    found = before.extended(phi[old:], residual[old:], tau)(rows)
    precision = torch.eye(16).double() + phi.T @ phi / tau  # dense, of all rows
    x = rows.rows
    torch.testing.assert_close(found.unit, (x * torch.linalg.solve(precision, x.T).T).sum(dim=1))
    expected = x @ torch.linalg.solve(precision, phi.T @ residual / tau)
    torch.testing.assert_close(found.residual_mean, expected)


def test_directions_that_were_dropped_stay_unknown_and_the_variance_falls_with_new_rows():
    draws, tau = Draws(1), torch.tensor(0.1).double()
    phi, rows, added = draws.normal(20, 12), RowFeatures(draws.normal(30, 12)), draws.normal(3, 12)
    few = span_of(phi, phi[:, :1], tau).truncate(4)
    more = few.extended(added, added[:, :1], tau)
    assert more.directions == 7
    assert bool((more(rows).unit <= few(rows).unit + 1e-12).all())
