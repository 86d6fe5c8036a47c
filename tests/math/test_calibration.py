"""The calibration of the error bar: every formula in plain Python, every fit against what was planted."""

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import calibrated_scale, two_opinions
from scipy import optimize, stats

from trustgp.math.calibration import (
    KNOTS,
    MAX_SUPPORT,
    MAX_VARIANCE,
    MIN_SUPPORT,
    SHRINKAGE_ROWS,
    Calibration,
    CalibrationRows,
    OutlierPrior,
    pooled,
    steady_log_kappa,
    support_quantile,
)
from trustgp.math.calibration_fit import (
    EFFECTIVE_FAR_ROWS,
    FOLD_STEPS,
    FOLDS,
    FREE,
    MAX_GROWTH,
    MIN_FAR_NOVELTY,
    PRIOR_STD,
    PRIOR_STDS,
    choose_spread,
    constant_noise,
    fit_calibration,
    fit_growth,
    held_out_loss,
    initial_calibration,
    loss_and_slopes,
)
from trustgp.math.predictive import MAX_DF


def number(value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def calibration(
    fade=1.0, onset=1.0, level=(1.0, 1.0), excess=1.0, shift=0.0, reach=1.0, **others
) -> Calibration:
    """The defaults, which their own test checks, but for what is given."""
    values = {"fade": fade, "onset": onset, "level": level, "excess": excess, "reach": reach, **others}
    default = Calibration.default(len(level), shift=shift)
    return replace(default, **{name: number(value) for name, value in values.items()})


SCALED = {"reach": 0.6, "varying": 0.7, "constant": (0.3, 1.4), "beyond": 0.2, "growth": (0.4, 1.3)}
TAILS = {"df": (3.0, 12.0), "share": 0.05, "spread": (9.0, 30.0), "extent": (1.0, 1.5)}
TAILED = calibration(0.7, 1.5, (0.5, 2.0), 0.8, weight=0.6, trust=(0.5, 3.0), leverage=0.4, **SCALED, **TAILS)


def far_field(beyond: float, growth, novelty: float) -> float:
    """A: broken lines over the share of the way from nu_1 to 1, in log nu."""
    if novelty <= beyond:
        return 0.0
    return float(np.interp(math.log(novelty / beyond) / math.log(1 / beyond), [0, *KNOTS], [0, *growth]))


def scale_of(
    c: Calibration, output: int, novelty: float, kappa: float, variance: float, leverage=1.0
) -> float:
    """V / E as products of powers, in plain Python."""
    a, b, nu_0, gamma = (float(v) for v in (c.fade, c.onset, c.reach, c.varying))
    bounds = (nu_0, float(c.extent[output]) / variance)
    varying = calibrated_scale(a, b, float(c.level[output]), novelty, kappa, *bounds)
    constant = calibrated_scale(0.0, b, float(c.constant[output]) / variance, novelty, 1.0, *bounds)
    of_all_rows = calibrated_scale(float(c.leverage), b, 1.0, novelty, leverage, *bounds)
    far = math.exp(far_field(float(c.beyond), c.growth, novelty))
    return varying**gamma * constant ** (1 - gamma) * of_all_rows * far


def log_densities(c: Calibration, rows: CalibrationRows) -> np.ndarray:
    """Log density of each row by the distributions of scipy, all before them entry by entry."""
    places, variances = [], []
    for i in range(len(rows)):
        row = {name: float(value[i]) for name, value in vars(rows).items()}
        j, before = int(row["output"]), row["epistemic"] + row["noise"]
        kappa, leverage = math.exp(row["log_kappa"]), math.exp(row["log_leverage"])
        scale = scale_of(c, j, row["novelty"], kappa, before, leverage)
        predicted = (row["residual_mean"], float(c.weight), row["witness_mean"], row["witness_precision"])
        mu, variance = two_opinions(scale * before, *predicted, float(c.trust[j]))
        places.append(mu)
        variances.append(variance)
    mu, variance = np.array(places), np.array(variances)
    z, share, df, spread = float(c.shift), float(c.share), c.df[rows.output].numpy(), c.spread[rows.output]
    error, d = rows.residual.numpy() - z * mu, math.sqrt(float(c.excess)) * (1 - z) * np.abs(mu)
    student = stats.t(df, scale=np.sqrt(variance * (df - 2) / df))
    far = stats.norm(scale=np.sqrt(spread.numpy() + variance + d**2))
    usual = 0.5 * (student.pdf(error - d) + student.pdf(error + d))
    return np.log((1 - share) * usual + share * far.pdf(error))


def generated(
    truth: Calibration, rows: int, seed: int = 0, *, with_witness: bool = False, novelty=(0.0, 1.0)
) -> CalibrationRows:
    """Held-out rows whose errors have exactly the distribution that `truth` describes.

    `with_witness`: with a witness, who is sometimes surer than the experts and sometimes less so.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(rows, generator=generator, dtype=torch.float64)

    def normal() -> torch.Tensor:
        return torch.randn(rows, generator=generator, dtype=torch.float64)

    output = torch.arange(rows) % 2
    novelty, log_kappa = uniform(*novelty), uniform(-3, 3)
    log_leverage = 2 * torch.sin(torch.arange(rows).double())
    size = uniform(-2, 2).exp()
    epistemic, noise, shift = size * uniform(0.1, 2), size * uniform(0.1, 0.5), normal()
    predicted, precision = torch.zeros_like(shift), torch.zeros_like(shift)
    if with_witness:
        predicted, precision = 2 * normal(), uniform(-2, 2).exp()
    before = zip(output, novelty, log_kappa.exp(), epistemic + noise, log_leverage.exp(), strict=True)
    scales = number([scale_of(truth, int(j), *(float(v) for v in rest)) for j, *rest in before])
    expected, left = pooled(
        truth, scales * (epistemic + noise), shift, predicted, precision, truth.trust[output]
    )
    variance = left * scales * (epistemic + noise)
    df, side = truth.df[output], torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    drawn = torch.from_numpy(np.random.default_rng(seed).standard_t(df.numpy()))
    offset = truth.excess.sqrt() * (1 - truth.shift) * expected
    usual = side * offset + (variance * (df - 2) / df).sqrt() * drawn
    far = (truth.spread[output] + variance + offset.square()).sqrt() * normal()
    residual = truth.shift * expected + torch.where(uniform(0, 1) < truth.share, far, usual)
    values = (residual, shift, epistemic, noise, novelty, log_kappa, output, predicted, precision)
    return CalibrationRows(*values, log_leverage, torch.zeros_like(residual))


def fitted(rows: CalibrationRows, shift: float = 0.0) -> Calibration:
    """From where nothing is known: Gaussian, no constant noise."""
    return fit_calibration(rows, Calibration.default(2, shift=shift))


@given(
    *(st.floats(*bounds) for bounds in ((0.1, 3), (0.1, 3), (0.1, 5), (0, 1), (0.01, 100))),
    *(st.floats(*bounds) for bounds in ((0.01, 1), (0.01, 1), (0.01, 100), (0.01, 100), (0.1, 0.99))),
    st.tuples(st.floats(-4, 4), st.floats(-4, 4)),
    st.floats(0.01, 100),
    st.floats(0, 2),
    st.floats(0.01, 100),
)
def test_scale_is_the_formula(
    fade,
    onset,
    level,
    novelty,
    kappa,
    reach,
    varying,
    constant,
    variance,
    beyond,
    growth,
    extent,
    w,
    leverage,
):
    others = {
        "varying": varying,
        "constant": (constant,),
        "beyond": beyond,
        "extent": (extent,),
        "leverage": w,
    }
    c = calibration(fade, onset, (level,), reach=reach, growth=growth, **others)
    values = (number([novelty]), number([math.log(kappa)]), number([variance]), number([math.log(leverage)]))
    expected = pytest.approx(scale_of(c, 0, novelty, kappa, variance, leverage), rel=1e-9)
    assert float(c.scale(*values, c.level.log(), c.constant.log())) == expected
    folded, logs, _ = c.folded(torch.device("cpu"), torch.float64)
    assert float(folded.scale(*values, *logs)) == expected


def test_defaults_are_one_without_growth_and_gaussian():
    default = Calibration.default(3, shift=1.0)
    ones = ("fade", "onset", "excess", "shift", "reach", "weight", "varying", "beyond")
    assert [float(getattr(default, name)) for name in ones] == [1.0] * 8
    assert default.level.tolist() == default.trust.tolist() == default.constant.tolist() == [1.0] * 3
    assert default.growth.tolist() == [0.0] * len(KNOTS)
    assert default.df.tolist() == [MAX_DF] * 3
    assert (float(default.share), default.spread.tolist()) == (0.0, [0.0] * 3)
    assert default.extent.tolist() == [MAX_VARIANCE] * 3
    assert float(default.leverage) == 0.0
    assert default.folded(torch.device("cpu"), torch.float32)[2].dtype == torch.float32


def test_a_fit_begins_with_the_mean_squared_residual_as_constant_noise():
    rows = generated(calibration(), 9)
    found = initial_calibration(rows, 3, corrected=True)
    squares = [[float(r) ** 2 for r in rows.residual[k::2]] for k in (0, 1)]
    assert found.constant.tolist() == pytest.approx([*map(statistics.mean, squares), 1.0], rel=1e-12)
    assert float(found.shift) == 1.0
    assert 0 < float(found.varying) < 1
    assert bool((found.df < 100).all())
    none = replace(rows, residual=torch.zeros(9).double())
    expected = [[float(e) for e in (rows.epistemic + rows.noise)[k::2]] for k in (0, 1)]
    assert constant_noise(none, 2).tolist() == pytest.approx([*map(statistics.mean, expected)], rel=1e-12)


@given(
    st.floats(1e-3, 1e3),
    st.floats(-3, 3),
    st.floats(0, 2),
    st.floats(-3, 3),
    st.floats(1e-6, 1e6),
    st.floats(0.01, 9),
)
def test_experts_and_witness_are_pooled_by_their_precisions(
    variance, shift, weight, with_witness, precision, trust
):
    values = [number([v]) for v in (variance, shift, with_witness, precision, trust)]
    expected, left = pooled(calibration(weight=weight), *values)
    mean, total = two_opinions(variance, shift, weight, with_witness, precision, trust)
    assert float(expected) == pytest.approx(mean, rel=1e-10, abs=1e-12)
    assert float(left * variance) == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize(
    ("shift", "with_witness"), [(0.0, True), (0.0, False), (0.3, True), (1.0, False), (1.0, True)]
)
def test_held_out_loss_is_minus_the_mean_log_density_and_its_gradient_equals_differences(shift, with_witness):
    truth = replace(TAILED, shift=number(shift), beyond=number(0.2), growth=number([0.5, -0.3]))
    rows = generated(truth, 40, with_witness=with_witness)
    assert held_out_loss(truth, rows) == pytest.approx(-log_densities(truth, rows).mean(), rel=1e-10)
    entries = {name: value.numpy() for name, value in vars(rows).items()}
    values = {name: value.numpy() for name, value in vars(truth).items()}
    slopes = loss_and_slopes(values, entries)[1]
    assert set(slopes) == set(FREE)
    for name, slope in slopes.items():
        assert slope.shape == values[name].shape
        for place in np.ndindex(slope.shape):
            ends = []
            for step in (-1e-6, 1e-6):
                moved = values[name].copy()
                moved[place] += step
                ends.append(loss_and_slopes(values | {name: moved}, entries)[0])
            assert slope[place] == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-5, abs=1e-8), name
    zero = (set() if with_witness else {"trust"}) | ({"excess"} if shift == 1.0 else set())
    assert {name for name, slope in slopes.items() if not slope.any()} == zero


def test_reach_and_extent_are_quantiles_of_the_novelty_and_of_the_variance_of_each_output():
    rows = generated(calibration(), 1000)
    epistemic = torch.where(rows.output == 1, 1e3, 1.0) * rows.epistemic
    rows = replace(rows, novelty=0.1 * rows.novelty, epistemic=epistemic)
    c = fitted(rows)
    assert float(c.reach) == pytest.approx(float(rows.novelty.quantile(0.95)), rel=1e-2)
    assert float(support_quantile(torch.zeros(9, dtype=torch.float64))) == MIN_SUPPORT
    for output in (0, 1):
        variance = (rows.epistemic + rows.noise)[rows.output == output]
        assert float(c.extent[output]) == pytest.approx(float(variance.quantile(0.95)), rel=0.05)
    one_output = fitted(rows.subset(rows.output == 0)).extent
    assert one_output.tolist() == [float(c.extent[0]), MAX_VARIANCE]


def test_without_a_witness_its_trust_and_the_experts_weight_stay():
    rows = generated(calibration(0.6, 2.0, (0.5, 3.0), 0.4), 500)
    found = fitted(rows)
    assert found.trust.tolist() == [1.0, 1.0]
    assert float(found.weight) == 1.0  # its square is the weight of the excess
    assert fitted(rows, shift=1.0).trust.tolist() == [1.0, 1.0]


def test_the_prior_is_a_gaussian_of_this_spread_about_the_start_in_logarithms():
    """Of c alone: the loss there, and what is added, against a search over a grid."""
    rows = generated(calibration(level=(9.0, 9.0), shift=1.0), 24)
    alike = replace(rows, novelty=torch.zeros(24).double(), residual_mean=torch.zeros(24).double())
    start = replace(calibration(shift=1.0), fade=number(0.0))
    for spread in (0.1, 1.0):
        found = fit_calibration(alike, start, spread=spread)
        for output in (0, 1):
            own = alike.subset(alike.output == output)
            variance = (own.epistemic + own.noise).numpy()

            def loss(free: float, own=own, variance=variance, spread=spread) -> float:
                density = stats.norm(scale=np.sqrt(variance * math.exp(free))).logpdf(own.residual.numpy())
                return 0.5 * (free / spread) ** 2 - float(density.sum())

            best = optimize.minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9})
            assert float(found.level[output].log()) == pytest.approx(best.x, abs=1e-3)


@pytest.mark.parametrize(("level", "chosen"), [((1.0, 1.0), 0.1), ((40.0, 0.02), PRIOR_STD)])
def test_the_prior_is_chosen_by_cross_validation_in_thirds(level, chosen):
    rows, start = generated(calibration(level=level, shift=1.0), 84, seed=3), calibration(shift=1.0)
    lots = np.array_split(np.arange(84).reshape(42, 2), FOLDS)  # both outputs of a row go together
    total = dict.fromkeys(PRIOR_STDS, 0.0)
    for spread in PRIOR_STDS:
        for lot in lots:
            rest = torch.from_numpy(np.setdiff1d(np.arange(84), lot))
            found = fit_calibration(rows.subset(rest), start, spread=spread, steps=FOLD_STEPS)
            total[spread] -= log_densities(found, rows.subset(torch.from_numpy(lot.flatten()))).sum()
    assert min(total, key=total.__getitem__) == chosen
    assert choose_spread(rows, start) == chosen


def test_rows_at_most_as_novel_as_nu_1_do_not_change_growth():
    start = calibration(reach=0.3, shift=1.0)
    rows = generated(calibration(level=(50.0, 50.0)), 300, novelty=(0.0, 0.3))
    found = fit_growth(rows, start)
    assert found.growth.tolist() == [0.0, 0.0]
    assert float(found.beyond) == 0.3
    far = generated(calibration(level=(50.0, 50.0)), 300, seed=1, novelty=(0.3, 1.0))
    both = fit_growth(CalibrationRows.cat([rows, far]), start)
    torch.testing.assert_close(both.growth, fit_growth(far, start).growth, rtol=1e-10, atol=0)
    assert bool((both.growth != 0).any())


def test_growth_is_the_penalised_optimum_that_a_search_without_slopes_finds():
    start = replace(TAILED, growth=number([0.0, 0.0]), reach=number(0.25))
    rows = generated(replace(TAILED, growth=number([1.0, 3.0])), 60, novelty=(0.25, 1.0))

    def loss(free: np.ndarray) -> float:
        growth = number((MAX_GROWTH * np.tanh(free / MAX_GROWTH)).tolist())
        there = replace(start, growth=growth, beyond=number(0.25))
        pull = 0.5 * float((free**2).sum()) / PRIOR_STD**2 / EFFECTIVE_FAR_ROWS
        return pull - log_densities(there, rows).mean()

    best = optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-9})
    expected = MAX_GROWTH * np.tanh(best.x / MAX_GROWTH)
    assert fit_growth(rows, start).growth.tolist() == pytest.approx(expected.tolist(), abs=2e-3)


@pytest.mark.parametrize(("reach", "beyond"), [(1e-6, MIN_FAR_NOVELTY), (0.4, 0.4), (1.0, MAX_SUPPORT)])
def test_growth_begins_at_the_reach_within_bounds(reach, beyond):
    found = fit_growth(generated(calibration(), 50), calibration(reach=reach))
    assert float(found.beyond) == beyond


def test_the_outlier_prior_is_half_a_row_in_n_with_the_variance_of_the_targets():
    targets = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e4])
    share, spread = OutlierPrior.of(targets)
    assert (float(share), spread.dtype) == (0.01, torch.float64)
    expected = [statistics.variance(column) for column in targets.double().T.tolist()]
    assert spread.tolist() == pytest.approx(expected, rel=1e-10)
    assert OutlierPrior.of(targets[:1]) is None
    assert OutlierPrior.of(torch.ones(9, 1)).spread.tolist() == [0.0]


@pytest.mark.parametrize("end", [1e3, math.nan])
def test_a_search_that_ends_above_its_start_is_discarded(monkeypatch, end):
    def lost(at, start, **_):
        return SimpleNamespace(x=start + 3.0, fun=end)

    monkeypatch.setattr(optimize, "minimize", lost)
    rows, start = generated(calibration(), 50, with_witness=True), Calibration.default(2, shift=1.0)
    both = (fit_calibration(rows, start), {"reach", "extent"}), (fit_growth(rows, start), {"beyond"})
    for stopped, moved in both:
        same = {name for name, value in vars(start).items() if torch.equal(getattr(stopped, name), value)}
        assert same >= set(vars(start)) - moved


def test_steady_kappa_is_the_weighted_average_of_the_logarithms():
    log_kappa, n_0 = number([[0.0, 1.0], [2.0, -1.0], [5.0, 5.0]]), SHRINKAGE_ROWS
    average = (10 * log_kappa[0] + 30 * log_kappa[1]) / 40
    first, second = ((n * log_kappa[i] + n_0 * average) / (n + n_0) for i, n in enumerate((10, 30)))
    found = steady_log_kappa(log_kappa, torch.tensor([10, 30, 0]))
    torch.testing.assert_close(found, torch.stack([first, second, average]), rtol=1e-10, atol=1e-12)


def test_rows_are_joined_and_drawn_the_same_each_time():
    rows = generated(calibration(), 100)
    joined = CalibrationRows.cat([rows.subset(torch.arange(4)), rows.subset(torch.arange(100) >= 4)])
    assert len(joined) == 100
    assert all(torch.equal(getattr(joined, name), value) for name, value in vars(rows).items())
    assert rows.sample(100) is rows
    sample = rows.sample(30)
    places = [int((rows.residual == value).nonzero()) for value in sample.residual]
    assert len(set(places)) == 30
    assert torch.equal(sample.novelty, rows.novelty[places])
    assert torch.equal(sample.residual, rows.sample(30).residual)
    assert max(places) > 60
