import pytest
import scipy.stats
import torch

from trustgp.prediction import Prediction


def prediction(n: int, offset: float = 0.0, **inner) -> Prediction:
    base = torch.arange(2.0 * n, dtype=torch.float64).reshape(n, 2) + 1 + offset
    return Prediction(
        mean=base,
        epistemic=base * 0.5,
        aleatoric=base * 0.25,
        excess=base * 0.125,
        novelty=torch.linspace(0, 1, n, dtype=torch.float64),
        expert=torch.arange(n),
        valid=torch.ones(n, dtype=torch.bool),
        **inner,
    )


def test_variance_is_the_sum_of_its_three_parts():
    p = prediction(4)
    assert torch.equal(p.variance, p.epistemic + p.aleatoric + p.excess)
    assert torch.equal(p.std, p.variance.sqrt())


@pytest.mark.parametrize("level", [0.5, 0.68, 0.95, 0.999])
def test_interval_is_the_central_gaussian_one(level):
    p = prediction(3)
    lower, upper = p.interval(level)
    expected = scipy.stats.norm.interval(level, p.mean.numpy(), p.std.numpy())
    torch.testing.assert_close(lower, torch.from_numpy(expected[0]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(upper, torch.from_numpy(expected[1]), rtol=1e-10, atol=1e-10)
    normal = torch.distributions.Normal(p.mean, p.std)
    torch.testing.assert_close(
        normal.cdf(upper) - normal.cdf(lower), torch.full_like(p.mean, level), rtol=1e-10, atol=0
    )


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
