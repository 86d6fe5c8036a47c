from dataclasses import replace

import pytest
import scipy.stats
import torch

from trustgp.likelihoods.prediction import Prediction
from trustgp.math.predictive import MAX_DF

LEVELS = (0.02, 0.5, 0.68, 0.95, 0.999)
GAUSSIAN = 5 / MAX_DF  # how far a Student-t of the most degrees of freedom is from a Gaussian


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


def whole(n: int) -> Prediction:
    """With heavy tails and rows that are far off."""
    p = prediction(n)
    return replace(p, df=3.0 + p.mean, rare=0.5 + p.mean, share=0.05)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_interval_holds_its_share_of_targets_on_either_side_of_the_mean(level, side):
    p = replace(prediction(3), df=torch.tensor(5.0, dtype=torch.float64))
    lower, upper = p.interval(level)
    torch.testing.assert_close((lower + upper) / 2, p.mean, rtol=1e-12, atol=0)
    spread = ((p.epistemic + p.aleatoric) * (3 / 5)).sqrt().numpy()
    target = scipy.stats.t(5, (p.mean + side * p.excess.sqrt()).numpy(), spread)
    held = torch.from_numpy(target.cdf(upper.numpy()) - target.cdf(lower.numpy()))
    torch.testing.assert_close(held, torch.full_like(p.mean, level), rtol=1e-8, atol=0)


def test_every_answer_is_that_of_the_two_sided_mixture():
    p = whole(3)
    mean, df, d = p.mean.numpy(), p.df.numpy(), p.excess.sqrt().numpy()
    spread = (p.epistemic + p.aleatoric).numpy()
    sides = [scipy.stats.t(df, mean + way * d, (spread * (df - 2) / df) ** 0.5) for way in (-1, 1)]
    far = scipy.stats.norm(mean, (spread + d**2 + p.rare.numpy() / 0.05) ** 0.5)

    def mixed(name: str, y: torch.Tensor) -> torch.Tensor:
        one, other, third = (getattr(part, name)(y.numpy()) for part in (*sides, far))
        return torch.from_numpy(0.95 * (one + other) / 2 + 0.05 * third)

    y = p.mean + torch.linspace(-9, 9, 6, dtype=torch.float64).reshape(3, 2)
    torch.testing.assert_close(p.log_prob(y), mixed("pdf", y).log(), rtol=1e-10, atol=1e-10)
    for q in (0.001, 0.3, 0.9):
        found = mixed("cdf", p.quantile(q))
        torch.testing.assert_close(found, torch.full_like(p.mean, q), rtol=1e-8, atol=0)
    each = p.quantile(torch.full_like(p.mean, 0.3))
    assert torch.equal(each, p.quantile(0.3))
    draws = p.sample(20_000, torch.Generator().manual_seed(0))
    assert draws.shape == (20_000, 3, 2)
    for q in (0.05, 0.5, 0.95):
        below = (draws <= p.quantile(q)).double().mean(0)
        assert float((below - q).abs().max()) < 5 * (q * (1 - q) / 20_000) ** 0.5
    # E|Y - y| - E|Y - Y'| / 2, of draws
    pairs = (draws[::2] - draws[1::2]).abs() / 2
    score = (draws[::2] - y).abs() - pairs
    error = score.std(0) / len(score) ** 0.5
    assert bool(((score.mean(0) - p.crps(y)).abs() < 5 * error).all())


def test_of_a_float32_network_ends_are_float32_and_scores_float64():
    p = prediction(2)
    names = ("mean", "epistemic", "aleatoric", "excess")
    narrow = replace(p, **{name: getattr(p, name).float() for name in names})
    for found, expected in (
        (narrow.interval(0.9)[1], p.interval(0.9)[1]),
        (narrow.quantile(0.2), p.quantile(0.2)),
    ):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    assert narrow.sample(3).dtype == torch.float32
    assert narrow.log_prob(p.mean.float()).dtype == narrow.crps(p.mean.float()).dtype == torch.float64


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95])
def test_a_level_outside_zero_and_one_is_refused(level):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        prediction(2).interval(level)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        prediction(2).quantile(level)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        prediction(2).quantile(torch.tensor([0.5, level]))
