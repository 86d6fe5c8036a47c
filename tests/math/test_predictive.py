"""The distribution of a target, against scipy and integrals in float64."""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from draws import Draws
from many import each
from scipy import special, stats

from trustgp.math.predictive import MAX_DF, PredictiveDistribution, log_density

MEAN = 0.7
# offset, scale, degrees of freedom, share of rows that are far off, and by which variance
CASES = [
    (0.0, 1.0, MAX_DF, 0.0, 0.0),
    (0.0, 1.0, 5.0, 0.0, 0.0),
    (1.5, 0.5, 3.0, 0.0, 0.0),
    (0.7, 2.0, 8.0, 0.02, 50.0),
    (4.0, 0.3, 2.5, 0.1, 400.0),
    (0.5, 1.0, 2.2, 0.01, 1e4),
    (0.0, 1e-3, 30.0, 1e-3, 1.0),
    (0.0, 1.0, 1e3, 0.3, 1e8),
    (1e3, 1.0, 4.0, 0.3, 1e4),
]
TAILS = (1e-6, 1e-3, 0.02, 0.3, 0.4999, 0.5, 0.5001, 0.8, 0.975, 0.999, 1 - 1e-6)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# the same, with the weight of the distribution of the training targets, and its centre
DOUBTS = [(0.3, 2.0), (0.05, -40.0), (0.9, 0.7), (1e-4, 1e3)]
DOUBTFUL = [(*CASES[k], *DOUBTS[i % 4]) for i, k in enumerate((3, 4, 6, 8))]
each_case = each("case", [*((*case, 0.0, 0.0) for case in CASES), *DOUBTFUL])


def made(*cases: tuple[float, ...], mean: float = MEAN) -> PredictiveDistribution:
    """One entry for each case."""
    values = double(*itertools.chain(*((*case, 0.0, 0.0)[:7] for case in cases))).reshape(-1, 7).T
    return PredictiveDistribution(torch.full_like(values[0], mean), *values)


class Mixed:
    """By scipy: parts and their weights."""

    def __init__(self, offset, scale, df, share, spread, vague=0.0, centre=0.0) -> None:
        far = math.sqrt(scale**2 * df / (df - 2) + offset**2 + spread)
        parts = [*(stats.t(df, MEAN + side * offset, scale) for side in (-1, 1)), stats.norm(MEAN, far)]
        usual = (1 - vague) * (1 - share) / 2
        self.parts, self.weights = parts, [usual, usual, (1 - vague) * share]
        if vague:
            parts.append(stats.t(2.2, centre, math.sqrt(spread)))
            self.weights.append(vague)
        self.mean = sum(w * part.mean() for w, part in zip(self.weights, self.parts, strict=True))
        about = [part.var() + (part.mean() - self.mean) ** 2 for part in self.parts]
        self.variance = float(np.dot(self.weights, about))
        self.width = max(far, abs(centre - MEAN) * (vague > 0))

    def __call__(self, name: str, y):
        return sum(w * getattr(part, name)(y) for w, part in zip(self.weights, self.parts, strict=True))

    def points(self, until: float, count: int) -> np.ndarray:
        """Targets about each part, and far from all."""
        steps = np.sinh(np.linspace(-np.arcsinh(until), np.arcsinh(until), count))
        return np.concatenate([part.mean() + part.std() * steps for part in self.parts])

    def score(self, y: float) -> float:
        """The integral of (F - 1{z >= y})^2, in pieces."""
        nodes, weights = np.polynomial.legendre.leggauss(8)
        ends = np.unique([y, *self.points(3e7, 300)])
        middle, half = (ends[1:] + ends[:-1])[:, None] / 2, np.diff(ends)[:, None] / 2
        z, w = (middle + half * nodes).ravel(), (half * weights).ravel()
        return float(w @ np.where(z < y, self("cdf", z), self("sf", z)) ** 2)


@each_case
def test_moments_density_quantiles_and_intervals_are_those_of_scipys_mixture(case):
    mixed, p = Mixed(*case), made(case)
    about = mixed.variance + (mixed.mean - MEAN) ** 2
    assert float(p.variance) == pytest.approx(about, rel=1e-9)
    y = mixed.points(1e3, 61)
    each_log = [part.logpdf(y) for part in mixed.parts]
    logs = special.logsumexp(each_log, axis=0, b=np.array(mixed.weights)[:, None])
    # lgamma loses 1e-9 at a million degrees of freedom
    np.testing.assert_allclose(p.log_prob(torch.from_numpy(y)), logs, rtol=1e-9, atol=5e-9)
    np.testing.assert_allclose(p.cdf(torch.from_numpy(y)), mixed("cdf", y), rtol=0, atol=1e-14)
    tails = np.array(TAILS)
    quantiles = made(*[case] * len(tails)).icdf(double(*TAILS)).numpy()
    smaller = np.where(tails < 0.5, mixed("cdf", quantiles), mixed("sf", quantiles))
    np.testing.assert_allclose(smaller, np.minimum(tails, 1 - tails), rtol=1e-6)
    assert case[5] or quantiles[TAILS.index(0.5)] == MEAN
    for level in (1e-3, 0.5, 0.95, 0.999):
        half = float(p.half_width(level))
        inside = mixed("cdf", float(p.mean) + half) - mixed("cdf", float(p.mean) - half)
        assert inside == pytest.approx(level, rel=1e-6)
        assert float(p.within(double(half))) == pytest.approx(inside, rel=1e-9)


@each_case
def test_crps_is_the_integral_it_is_defined_by(case):
    mixed = Mixed(*case)
    y = np.array([MEAN, case[6], MEAN + mixed.width, MEAN - 30 * mixed.width])
    scores = made(*[case] * len(y)).crps(torch.from_numpy(y))
    expected = [mixed.score(float(each)) for each in y]
    np.testing.assert_allclose(scores, expected, rtol=1e-4 if case[5] else 1e-6)


@each("case", [case for case in CASES if case[2] > 4])
def test_draws_have_the_moments_of_the_distribution(case):
    k = 200_000
    x = made(case).sample((k,), torch.Generator().manual_seed(0)).numpy() - MEAN
    assert x.shape == (k, 1)
    assert abs(x.mean()) < 5 * x.std() / k**0.5
    squares = x**2
    assert abs(squares.mean() - Mixed(*case).variance) < 5 * squares.std() / k**0.5


def test_entries_are_drawn_apart_and_a_generator_repeats_them():
    p = made(CASES[3], CASES[3], CASES[1])
    one, again = (p.sample((4000,), torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, p.sample((4000,), torch.Generator().manual_seed(4)))
    ranks = stats.spearmanr(one.numpy()).statistic
    assert np.abs(ranks - np.eye(3)).max() < 5 / 4000**0.5
    with torch.random.fork_rng(devices=[]):
        drawn = [(torch.manual_seed(seed), p.sample((3,)))[1] for seed in (5, 5, 6)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@each("case", DOUBTFUL[:3])
def test_draws_with_doubt_are_those_of_scipys_mixture(case):
    k, mixed = 50_000, Mixed(*case)
    x = made(case).sample((k,), torch.Generator().manual_seed(0)).numpy()[:, 0]
    assert abs(x.mean() - mixed.mean) < 5 * (mixed.variance / k) ** 0.5
    assert stats.kstest(x, lambda y: mixed("cdf", y)).pvalue > 1e-3


def test_entries_without_doubt_do_not_depend_on_others_in_doubt():
    y, few = MEAN + torch.linspace(-9, 9, len(CASES), dtype=torch.float64), double(*[0.0] * len(CASES), 0.4)
    alone, mixed = made(*CASES), replace(made(*CASES, CASES[3]), vague=few, centre=double(5.0))
    none = replace(alone, vague=double(0.0), centre=double(5.0))
    for name, at in {"log_prob": y, "cdf": y, "crps": y, "icdf": 0.9, "half_width": 0.9}.items():
        expected = getattr(alone, name)(at)
        assert torch.equal(getattr(none, name)(at), expected)
        beside = getattr(mixed, name)(at if at is not y else torch.cat([y, y[:1]]))
        torch.testing.assert_close(beside[:-1], expected, rtol=1e-8, atol=0)
    for name in ("mean", "variance"):
        assert torch.equal(getattr(mixed, name)[:-1], getattr(alone, name))


@each("vague", [0.0, 0.3])
def test_where_nothing_is_known_everything_is_infinite_and_other_entries_stay(vague):
    finite, p = made(CASES[3], CASES[4]), made(CASES[3], CASES[4], CASES[3])
    finite, p = (replace(one, vague=double(vague), centre=double(2.0)) for one in (finite, p))
    p = replace(p, scale=torch.cat([finite.scale, double(math.inf)]))
    y, inf = double(0.1, 2.0, 0.1), math.inf
    ends = {"log_prob": -inf, "within": 0.0, "crps": inf, "half_width": inf, "icdf": inf}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, end in ends.items():
            one, other = (0.9, 0.9) if name in ("half_width", "icdf") else (y, y[:2])
            values, alone = getattr(p, name)(one), getattr(finite, name)(other)
            assert float(values[2]) == end
            torch.testing.assert_close(values[:2], alone, rtol=1e-9, atol=0)
    assert float(p.icdf(0.1)[2]) == -inf


@each("share", [0.0, 0.01])
@each("df", [2.2, 5.0, 1e6])
def test_a_mean_that_is_no_number_has_no_density(df, share):
    p = made((0.0, 1.0, df, share, 1.0), (0.0, 1.0, df, share, 1.0))
    p = replace(p, loc=double(0.0, math.nan))
    assert torch.isneginf(p.log_prob(double(0.0, 0.0))).tolist() == [False, True]
    assert p.crps(double(0.0, 0.0))[1] == math.inf


def test_extreme_values_stay_finite():
    cases = [
        (ratio * scale, scale, df, share, far * scale**2)
        for scale in (1e-12, 1.0, 1e12)
        for ratio in (0.0, 1.0, 1e4)
        for df in (2.2, 1e6)
        for share, far in ((0.0, 0.0), (1e-6, 1e12), (0.3, 1e6))
    ]
    p = made(*cases, mean=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for distance in (0.0, 1e-6, 1.0, 1e4, 1e12):
            y = distance * p.scale
            inside, crps = p.within(y), p.crps(y)
            assert bool(torch.isfinite(p.log_prob(y)).all())
            assert bool(((inside >= 0) & (inside <= 1)).all())
            assert bool((torch.isfinite(crps) & (crps > 0)).all())
            # a target farther away than anything is scored by its distance
            assert distance < 1e12 or bool(((crps - y).abs() < 1e-5 * y).all())
        for level in (1e-3, 0.5, 1 - 1e-6):
            half = p.half_width(level)
            assert bool((torch.isfinite(half) & (half > 0)).all())
            # a width is right to 1e-10 of itself: at this offset to 1e-6 of the scale
            torch.testing.assert_close(p.within(half), torch.full_like(half, level), rtol=1e-5, atol=1e-12)
    assert bool(torch.isfinite(p.sample((10,), torch.Generator().manual_seed(0))).all())


def test_entries_broadcast_and_answers_are_float64():
    mean = torch.arange(6.0).reshape(3, 2)
    tails = double(4.0), double(0.1), double(3.0)
    p = PredictiveDistribution(mean, torch.tensor(0.5), torch.tensor([1.0, 2.0]), *tails)
    y = mean + 0.3
    for found in (p.log_prob(y), p.cdf(y), p.within(y - mean), p.crps(y), p.half_width(0.5), p.variance):
        assert found.shape == (3, 2)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found[0], found[2], rtol=1e-6, atol=0)
        assert found[0, 0] != found[0, 1]
    assert p.sample((5,)).shape == (5, 3, 2)


def test_the_log_density_can_be_differentiated_in_all_of_it():
    pairs = (0.3, -2.0), (0.5, 0.0), (0.8, 3.0), (4.0, 30.0), (0.1, 0.01), (2.0, 9.0)
    assert torch.autograd.gradcheck(log_density, [double(*pair).requires_grad_() for pair in pairs])


def test_intervals_grow_as_much_as_all_half_widths_say():
    draws = Draws(3)
    a, b, c, d, e, g = draws.uniform(6, 50, 2)
    p = PredictiveDistribution(a, b, c + 0.1, 3.0 + d, 0.1 * e, 4.0 * g)
    y = p.loc + 3.0 * draws.normal(50, 2)
    ratios = ((y - p.loc).abs() / p.half_width(0.8)).flatten().sort().values
    for rank in (1, 30, 70, 99, 100):
        expected = ratios[rank - 1].clamp_min(1.0)
        torch.testing.assert_close(p.widening(y, 0.8, rank), expected, rtol=1e-9, atol=0)
