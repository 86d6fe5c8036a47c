import pickle
from dataclasses import replace

import pytest
import scipy.stats
import torch

from trustgp.likelihoods.prediction import Prediction


def prediction(n: int) -> Prediction:
    base = torch.arange(2.0 * n, dtype=torch.float64).reshape(n, 2) + 1
    parts = {"epistemic": base * 0.5, "aleatoric": base * 0.25, "excess": base * 0.125}
    novelty = torch.linspace(0, 1, n, dtype=torch.float64)
    return Prediction(base, **parts, novelty=novelty, expert=torch.arange(n), valid=torch.ones(n).bool())


def test_every_answer_is_that_of_the_two_sided_mixture():
    p = prediction(3)
    p = replace(
        p, df=3.0 + p.mean, rare=0.5 + p.mean, outlier_share=0.05
    )  # heavy tails, and rows that are far off
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
    assert torch.equal(p.quantile(torch.full_like(p.mean, 0.3)), p.quantile(0.3))
    lower, upper = p.interval(0.8)
    torch.testing.assert_close(torch.stack([lower, upper]), torch.stack([p.quantile(0.1), p.quantile(0.9)]))
    draws = p.sample(20_000, torch.Generator().manual_seed(0))
    below = (draws <= p.quantile(0.95)).double().mean(0)
    assert float((below - 0.95).abs().max()) < 5 * (0.95 * 0.05 / 20_000) ** 0.5
    # E|Y - y| - E|Y - Y'| / 2, of draws
    score = (draws[::2] - y).abs() - (draws[::2] - draws[1::2]).abs() / 2
    assert bool(((score.mean(0) - p.crps(y)).abs() < 5 * score.std(0) / len(score) ** 0.5).all())


def test_doubt_and_centre_stay_with_their_rows():
    p = prediction(9)
    vague = torch.linspace(0.0, 0.8, 18, dtype=torch.float64).reshape(9, 2)
    own = replace(p, rare=torch.full_like(p.mean, 0.4), outlier_share=0.1, df=torch.full_like(p.mean, 5.0))
    corrected = replace(own, fallback_weight=vague, fallback_location=torch.full_like(p.mean, 3.0))
    # second moments about the mean of the first part; the targets' variance is 4
    second = (1 - vague) * own.variance + vague * (11 * 4.0 + (3.0 - corrected.mean) ** 2)
    torch.testing.assert_close(corrected.variance, second, rtol=1e-9, atol=0)
    torch.testing.assert_close(corrected.distribution.mean, corrected.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(corrected.distribution.variance, corrected.variance, rtol=1e-9, atol=0)
    y = corrected.mean + 1.0
    p = replace(own, _corrected=lambda: corrected)
    joined = Prediction.cat([p[:3], p[3:7]])[3:]
    for part in (p[3:7].corrected, pickle.loads(pickle.dumps(p))[3:7].corrected, joined.corrected):
        for name in ("mean", "variance", "fallback_weight", "fallback_location"):
            assert torch.equal(getattr(part, name), getattr(corrected, name)[3:7])
        torch.testing.assert_close(part.log_prob(y[3:7]), corrected.log_prob(y)[3:7], rtol=1e-12, atol=0)
    lower, upper = corrected.interval(0.9)
    inside = corrected.distribution.cdf(upper) - corrected.distribution.cdf(lower)
    torch.testing.assert_close(inside, torch.full_like(inside, 0.9), rtol=1e-6, atol=0)


def test_of_a_float32_network_ends_are_float32_and_scores_float64():
    p = prediction(2)
    names = ("mean", "epistemic", "aleatoric", "excess")
    narrow = replace(p, **{name: getattr(p, name).float() for name in names})
    for found, expected in zip(narrow.interval(0.9), p.interval(0.9), strict=True):
        assert found.dtype == narrow.quantile(0.2).dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    assert narrow.sample(3).dtype == torch.float32
    assert narrow.log_prob(p.mean.float()).dtype == narrow.crps(p.mean.float()).dtype == torch.float64


def test_several_levels_and_alpha_give_the_intervals_of_each():
    p = prediction(5)
    lower, upper = p.interval([0.5, 0.95])
    assert lower.shape == (2, 5, 2)
    for k, level in enumerate((0.5, 0.95)):
        for ends in (p.interval(level), p.interval(alpha=1 - level)):
            torch.testing.assert_close((lower[k], upper[k]), ends)
    with pytest.raises(ValueError, match=r"level=1\.5"):
        p.interval([0.5, 1.5])
