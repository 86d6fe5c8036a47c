"""The distribution of a target, against scipy and integrals in float64."""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
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
each_case = each("case", CASES)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def made(*cases: tuple[float, ...], mean: float = MEAN) -> PredictiveDistribution:
    """One entry for each case."""
    offset, scale, df, share, spread = double(*itertools.chain(*cases)).reshape(-1, 5).T
    return PredictiveDistribution(torch.full_like(scale, mean), offset, scale, df, share, spread)


def at(case: tuple[float, ...], errors: np.ndarray) -> tuple[PredictiveDistribution, torch.Tensor]:
    """The same distribution for each error, and the targets there."""
    errors = torch.as_tensor(errors, dtype=torch.float64)
    return made(*[case] * len(errors)), MEAN + errors


class Reference:
    """By scipy, in terms of the error."""

    def __init__(self, offset: float, scale: float, df: float, share: float, spread: float) -> None:
        sides = [stats.t(df, side * offset, scale) for side in (-1, 1)]
        self.variance = scale**2 * df / (df - 2) + offset**2
        self.far = math.sqrt(self.variance + spread)
        self.parts = [*sides, stats.norm(0, self.far)]
        self.weights = [(1 - share) / 2, (1 - share) / 2, share]
        self.variance += share * spread
        self.offset, self.scale = offset, scale

    def mixed(self, name: str, z: np.ndarray) -> np.ndarray:
        return sum(w * getattr(part, name)(z) for w, part in zip(self.weights, self.parts, strict=True))

    def log_density(self, z: np.ndarray) -> np.ndarray:
        logs = np.stack([part.logpdf(z) for part in self.parts])
        return special.logsumexp(logs, axis=0, b=np.array(self.weights)[:, None])

    def half_line(self, until: float, *breaks: float) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights of an integral over errors from 0 to `until`, dense where anything bends."""
        d, s = self.offset, self.scale
        away = s * np.sinh(np.linspace(0, np.arcsinh(until / s), 4000))
        wide = self.far * np.linspace(0, 12, 400)
        ends = np.concatenate([[0.0, until], breaks, d - away, d + away, wide])
        ends = np.unique(ends[(ends >= 0) & (ends <= until)])
        nodes, weights = np.polynomial.legendre.leggauss(8)
        middle, half = (ends[1:] + ends[:-1])[:, None] / 2, np.diff(ends)[:, None] / 2
        return (middle + half * nodes).ravel(), (half * weights).ravel()


@each_case
def test_the_density_integrates_to_one_and_its_second_moment_is_the_variance(case):
    reference = Reference(*case)
    z, w = reference.half_line(1e80)  # with 2.2 degrees of freedom the second moment comes from far away
    density = at(case, z)[0].log_prob(MEAN + torch.from_numpy(z)).exp().numpy()
    assert 2 * (w @ density) == pytest.approx(1, rel=1e-7)
    p = made(case, mean=0.0)
    density = p.log_prob(torch.from_numpy(z)).exp().numpy()
    assert 2 * (w @ (density * z * z)) == pytest.approx(float(p.variance), rel=1e-7)
    assert float(p.variance) == pytest.approx(reference.variance, rel=1e-14)


@each_case
def test_the_log_density_is_that_of_scipys_mixture(case):
    reference = Reference(*case)
    errors = np.concatenate([sign * reference.far * np.geomspace(1e-6, 1e3, 60) for sign in (-1, 1)])
    errors = np.concatenate([errors, [0.0, case[0], -case[0]]])
    p, y = at(case, errors)
    # lgamma loses 1e-9 at a million degrees of freedom
    np.testing.assert_allclose(p.log_prob(y), reference.log_density(errors), rtol=1e-9, atol=5e-9)


@each_case
def test_the_cdf_is_that_of_scipys_mixture(case):
    reference = Reference(*case)
    errors = reference.far * np.linspace(-9, 9, 201)
    p, y = at(case, errors)
    np.testing.assert_allclose(p.cdf(y), reference.mixed("cdf", errors), rtol=0, atol=1e-14)


@each_case
def test_what_lies_within_a_distance_is_the_integral_of_the_density(case):
    reference = Reference(*case)
    for distance in reference.far * np.array([0.01, 0.3, 1.0, 4.0]):
        z, w = reference.half_line(distance)
        inside = 2 * (w @ made(case, mean=0.0).log_prob(torch.from_numpy(z)).exp().numpy())
        assert float(made(case).within(double(distance))) == pytest.approx(inside, rel=1e-7, abs=1e-12)


@each_case
def test_quantiles_invert_the_cdf_also_in_the_tails(case):
    reference, q = Reference(*case), np.array(TAILS)
    p = made(*[case] * len(q))
    error = (p.icdf(double(*TAILS)) - MEAN).numpy()
    # of the smaller side: near 1 a cdf says little
    tail = reference.mixed("cdf", -np.abs(error))
    np.testing.assert_allclose(tail, np.minimum(q, 1 - q), rtol=1e-6)
    assert (np.sign(error) == np.sign(q - 0.5)).all()
    assert error[TAILS.index(0.5)] == 0.0


@each_case
def test_the_half_width_is_that_of_the_central_interval(case):
    for level in (1e-3, 0.5, 0.95, 0.999):
        half, p = float(made(case).half_width(level)), made(case)
        assert half == pytest.approx(float(p.icdf(0.5 + level / 2)) - MEAN, rel=1e-8)
        assert half == pytest.approx(MEAN - float(p.icdf(0.5 - level / 2)), rel=1e-8)
        assert float(p.within(double(half))) == pytest.approx(level, rel=1e-6)


@each_case
def test_crps_is_the_integral_it_is_defined_by(case):
    reference = Reference(*case)
    errors = reference.far * np.array([0.0, 0.05, -0.5, 1.3, -6.0, 80.0])
    p, y = at(case, errors)
    expected = []
    for error in np.abs(errors):
        z, w = reference.half_line(1e6 * (reference.far + error), error)
        below, above = reference.mixed("cdf", z), reference.mixed("sf", z)
        # (F(z) - 1{z >= y})^2, and by symmetry the same at -z
        expected.append(w @ (np.where(z < error, below, above) ** 2 + above**2))
    np.testing.assert_allclose(p.crps(y), expected, rtol=1e-6)


# draws


@each("case", [case for case in CASES if case[2] > 4])
def test_draws_have_the_moments_of_the_distribution(case):
    k = 200_000
    x = made(case, mean=0.0).sample((k,), torch.Generator().manual_seed(0)).numpy()
    assert x.shape == (k, 1)
    assert abs(x.mean()) < 5 * x.std() / k**0.5
    squares = x**2
    assert abs(squares.mean() - Reference(*case).variance) < 5 * squares.std() / k**0.5


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


# ends of the range


def test_where_nothing_is_known_everything_is_infinite_and_other_entries_stay():
    finite, p = made(CASES[3], CASES[4]), made(CASES[3], CASES[4], CASES[3])
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
    p = PredictiveDistribution(
        mean, torch.tensor(0.5), torch.tensor([1.0, 2.0]), double(4.0), double(0.1), double(3.0)
    )
    y = mean + 0.3
    for found in (p.log_prob(y), p.cdf(y), p.within(y - mean), p.crps(y), p.half_width(0.5), p.variance):
        assert found.shape == (3, 2)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found[0], found[2], rtol=1e-6, atol=0)
        assert found[0, 0] != found[0, 1]
    assert p.sample((5,)).shape == (5, 3, 2)


# the density that is fitted


def test_the_log_density_can_be_differentiated_in_all_of_it():
    values = [
        double(*each) for each in ((0.3, -2.0), (0.5, 0.0), (0.8, 3.0), (4.0, 30.0), (0.1, 0.01), (2.0, 9.0))
    ]
    assert torch.autograd.gradcheck(log_density, [value.requires_grad_() for value in values])


def test_no_offset_is_one_of_zero():
    error, scale, df, share, spread = (double(v) for v in (0.7, 2.0, 5.0, 0.1, 3.0))
    found, expected = (log_density(error, offset, scale, df, share, spread) for offset in (None, 0 * error))
    assert float(found) == pytest.approx(float(expected), rel=1e-14)
