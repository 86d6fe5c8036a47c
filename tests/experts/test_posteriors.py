import pytest
import torch
from reference import inverse_of, posterior_mean, posterior_variance

from trustgp.experts.posteriors import GramPosterior, SpanPosterior, make_posterior
from trustgp.math.evidence import maximise_evidence
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
