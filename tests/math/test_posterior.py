import pytest
import torch
from draws import normal
from hypothesis import given
from hypothesis import strategies as st
from reference import posterior_variance

from trustgp.math.evidence import factorise
from trustgp.math.posterior import gram_variance, span, span_variance


def both_variances(train, test, tau):
    factor, jitter = factorise(train @ train.T, tau)
    assert jitter == 0.0
    from_gram = gram_variance(test.square().sum(1), test @ train.T, factor)
    basis, shrinkage = span(train, torch.tensor(tau, dtype=torch.float64))
    return from_gram, span_variance(test[None], basis[None], shrinkage.sqrt()[None, None])[0]


@pytest.mark.parametrize("tau", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize(("rows", "width"), [(8, 20), (20, 8), (12, 12)])
def test_both_forms_equal_the_explicit_inverse(rows, width, tau):
    train, test = normal(rows, width), normal(9, width, seed=1)
    prior = test.square().sum(1)
    expected = posterior_variance(train @ train.T, test @ train.T, prior, tau)
    for found in both_variances(train, test, tau):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * float(prior.max()))


@pytest.mark.parametrize(("rows", "width"), [(8, 20), (20, 8)])
def test_span_is_orthonormal_and_holds_the_rows(rows, width):
    train = normal(rows, width)
    basis, _ = span(train, torch.tensor(0.1, dtype=torch.float64))
    assert basis.shape == (width, min(rows, width))
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]).double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(train @ basis @ basis.T, train, rtol=0, atol=1e-10)


def test_repeated_rows_do_not_widen_the_span():
    train = normal(4, 10)
    basis, _ = span(torch.cat([train, train, 2 * train]), torch.tensor(0.1, dtype=torch.float64))
    assert basis.shape == (10, 4)


def test_a_difference_in_float32_is_refused():
    train, test = normal(4, 6).float(), normal(3, 6, seed=1).float()
    with pytest.raises(TypeError, match="float64"):
        gram_variance(test.square().sum(1), test @ train.T, torch.eye(4))


@given(st.integers(0, 10**6), st.integers(1, 15), st.integers(1, 15), st.floats(-7, 2))
def test_variance_lies_between_zero_and_the_prior(seed, rows, width, power):
    train, test = normal(rows, width, seed=seed), normal(7, width, seed=seed + 1)
    level = float(train.square().sum(1).mean())
    prior = test.square().sum(1)
    from_gram, from_span = both_variances(train, test, level * 10.0**power)
    assert bool((from_span >= 0).all())
    assert bool((from_span <= prior * (1 + 1e-10)).all())
    # A difference: rounding of k(x, x), amplified by the condition of K + tau I.
    slack = 1e-15 * prior.max() * 10.0 ** max(0.0, -power)
    assert bool((from_gram >= -100 * slack).all())
