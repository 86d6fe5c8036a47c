from dataclasses import replace

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustgp.likelihoods.prediction import Prediction, folded_quantile, folded_share

OFFSETS = (0.0, 1e-3, 0.3, 1.0, 7.0, 1e6)  # in multiples of the spread
LEVELS = (0.02, 0.5, 0.68, 0.95, 0.999)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def prediction(n: int, offset: float = 0.0, *, share: float = 0.125, **inner) -> Prediction:
    base = torch.arange(2.0 * n, dtype=torch.float64).reshape(n, 2) + 1 + offset
    return Prediction(
        mean=base,
        epistemic=base * 0.5,
        aleatoric=base * 0.25,
        excess=base * share,
        novelty=torch.linspace(0, 1, n, dtype=torch.float64),
        expert=torch.arange(n),
        valid=torch.ones(n, dtype=torch.bool),
        **inner,
    )


def test_variance_is_the_sum_of_its_three_parts():
    p = prediction(4)
    assert torch.equal(p.variance, p.epistemic + p.aleatoric + p.excess)
    assert torch.equal(p.std, p.variance.sqrt())


def test_rare_errors_are_part_of_the_variance_and_not_of_the_interval():
    p = prediction(4)
    rare = replace(p, rare=torch.full_like(p.mean, 0.5))
    assert torch.equal(rare.variance, p.variance + 0.5)
    assert all(torch.equal(a, b) for a, b in zip(rare.interval(0.9), p.interval(0.9), strict=True))
    assert Prediction.cat([p, p]).rare is None
    assert torch.equal(Prediction.cat([rare, rare]).variance, torch.cat([rare.variance] * 2))


@pytest.mark.parametrize("level", LEVELS)
def test_without_an_excess_the_interval_is_the_central_gaussian_one(level):
    p = prediction(3, share=0.0)
    lower, upper = p.interval(level)
    expected = scipy.stats.norm.interval(level, p.mean.numpy(), p.std.numpy())
    torch.testing.assert_close(lower, torch.from_numpy(expected[0]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(upper, torch.from_numpy(expected[1]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_interval_holds_its_share_of_a_gaussian_on_either_side_of_the_mean(level, side):
    p = prediction(3)
    lower, upper = p.interval(level)
    torch.testing.assert_close((lower + upper) / 2, p.mean, rtol=1e-12, atol=0)
    target = torch.distributions.Normal(p.mean + side * p.excess.sqrt(), (p.epistemic + p.aleatoric).sqrt())
    held = target.cdf(upper) - target.cdf(lower)
    torch.testing.assert_close(held, torch.full_like(p.mean, level), rtol=1e-10, atol=0)


def test_a_row_of_which_nothing_is_known_has_an_interval_without_ends():
    p = prediction(2)
    infinite = replace(p, epistemic=torch.full_like(p.mean, torch.inf), excess=torch.zeros_like(p.mean))
    lower, upper = infinite.interval(0.5)
    assert bool((lower == -torch.inf).all() and (upper == torch.inf).all())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("spread", [1e-9, 1.0, 3e7])
def test_the_folded_quantile_and_share_are_those_of_scipy(level, spread):
    offset = spread * double(*OFFSETS)
    found = folded_quantile(offset, torch.full_like(offset, spread), level)
    folded = scipy.stats.foldnorm(OFFSETS, scale=spread)
    torch.testing.assert_close(
        double(*folded.cdf(found.numpy())), torch.full_like(found, level), rtol=1e-9, atol=0
    )
    share = folded_share(found, offset, torch.full_like(offset, spread))
    torch.testing.assert_close(share, torch.full_like(found, level), rtol=1e-9, atol=0)
    distance = spread * double(0.0, 0.2, 1.1, 2.0, 8.0, 1e6 + 1)
    share = folded_share(distance, offset, torch.full_like(offset, spread))
    # scipy takes the difference of two numbers near 1
    torch.testing.assert_close(share, double(*folded.cdf(distance.numpy())), rtol=1e-9, atol=1e-15)


def test_without_a_spread_the_offset_itself_is_the_quantile():
    zero, offset = double(0.0, 0.0), double(0.0, 2.5)
    assert torch.equal(folded_quantile(offset, zero, 0.95), offset)
    assert folded_share(double(2.4, 2.5, 2.6), double(2.5, 2.5, 2.5), double(0, 0, 0)).tolist() == [0, 1, 1]


@given(st.floats(0, 50), st.floats(1e-6, 50), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_wider_level_or_offset_never_has_a_narrower_interval(offset, spread, one, other):
    low, high = sorted((one, other))
    quantiles = [float(folded_quantile(double(offset), double(spread), level)) for level in (low, high)]
    assert quantiles[0] <= quantiles[1]
    assert float(folded_quantile(double(offset + 1), double(spread), low)) >= quantiles[0]


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95])
def test_a_level_outside_zero_and_one_is_refused(level):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        prediction(2).interval(level)


def test_without_variants_a_prediction_is_its_own_corrected_and_plain():
    p = prediction(2)
    assert p.corrected is p
    assert p.plain is p


def test_parts_are_laid_end_to_end_with_their_variants():
    parts = [prediction(n, o, _corrected=prediction(n, o + 100)) for n, o in ((2, 0.0), (3, 9.0))]
    joined = Prediction.cat(parts)
    assert len(joined) == 5
    for name in ("mean", "epistemic", "aleatoric", "excess", "novelty", "expert", "valid"):
        assert torch.equal(getattr(joined, name), torch.cat([getattr(p, name) for p in parts]))
    assert torch.equal(joined.corrected.mean, torch.cat([p.corrected.mean for p in parts]))
    assert joined.plain is joined
