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
from reference import nearness, pooled_scale, two_opinions, vague_share
from scipy import optimize, stats

from trustgp.experts import witness_fit
from trustgp.math import calibration as cal
from trustgp.math import calibration_fit as fits
from trustgp.math.calibration import STATISTICS, Calibration, OutlierPrior, pooled, steady_log_kappa
from trustgp.math.calibration_fit import fit_calibration, fit_growth, held_out_loss, initial_calibration
from trustgp.math.held_out import CalibrationRows, constant_noise
from trustgp.math.predictive import MAX_DF
from trustgp.math.quantiles import TailShares


def number(value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def calibration(shift=0.0, outputs=2, **others) -> Calibration:
    """The defaults, which their own test checks, but for what is given."""
    default = Calibration.default(outputs, shift=shift)
    return replace(default, **{name: number(value) for name, value in others.items()})


POOL = {"weights": (0.8, 0.3, 0.15, 0.2), "bias": (0.4, -0.7), "growth": 0.5}
TAILS = {"df": (3.0, 12.0), "share": 0.05, "spread": (9.0, 30.0), "centre": (1.0, -4.0), "vague": 0.6}
TAILED = calibration(excess=0.8, weight=0.6, trust=(0.5, 3.0), **POOL, **TAILS)


def opinions(c: Calibration, rows: CalibrationRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """u, mu and L V of each row, entry by entry in plain Python."""
    values = []
    for i in range(len(rows)):
        row = {name: float(value[i]) for name, value in vars(rows).items() if name != "measures"}
        j, before = int(row["output"]), row["epistemic"] + row["noise"]
        near = nearness(c.tails, rows.measures[i].tolist())
        z = [before * math.exp(row["log_kappa"]), *(math.exp(row[name]) for name in STATISTICS[1:])]
        scale = pooled_scale(near, float(c.bias[j]), c.weights.tolist(), z, before, float(c.growth))
        predicted = (row["residual_mean"], float(c.weight), row["witness_mean"], row["witness_precision"])
        values.append((near, *two_opinions(scale * before, *predicted, float(c.trust[j]))))
    near, mu, variance = np.array(values).T
    return near, mu, variance


def log_densities(c: Calibration, rows: CalibrationRows) -> np.ndarray:
    """Log density of each row by the distributions of scipy."""
    near, mu, variance = opinions(c, rows)
    df, spread, centre = (getattr(c, name)[rows.output].numpy() for name in ("df", "spread", "centre"))
    z, share = float(c.shift), float(c.share)
    error, d = rows.residual.numpy() - z * mu, math.sqrt(float(c.excess)) * (1 - z) * np.abs(mu)
    student = stats.t(df, scale=np.sqrt(variance * (df - 2) / df))
    far = stats.norm(scale=np.sqrt(spread + variance + d**2))
    usual = 0.5 * (student.pdf(error - d) + student.pdf(error + d))
    density, vague = (1 - share) * usual + share * far.pdf(error), float(c.vague) * vague_share(near)
    marginal = stats.t(2.2, centre, np.sqrt(np.where(spread > 0, spread, 1.0))).pdf(rows.target.numpy())
    return np.log(np.where(spread > 0, (1 - vague) * density + vague * marginal, density))


def generated(
    truth: Calibration, rows: int, seed: int = 0, *, witness=False, novelty=(0.0, 1.0), far=0.5
) -> CalibrationRows:
    """Held-out rows whose errors have exactly the distribution that `truth` describes.

    `witness`: with one that is sometimes surer than the experts and sometimes less so. Novelty measures are
    uniform from -3 to `far`.
    """
    rng = np.random.default_rng(seed)
    output, size = np.arange(rows) % 2, np.exp(rng.uniform(-2, 2, rows))
    values = {name: rng.uniform(-3, 3, rows) for name in ("log_kappa", *STATISTICS[1:])}
    values |= {"epistemic": size * rng.uniform(0.1, 2, rows), "noise": size * rng.uniform(0.1, 0.5, rows)}
    values |= {"residual_mean": rng.normal(size=rows), "novelty": rng.uniform(*novelty, rows)}
    values |= {"measures": rng.uniform(-3, far, (rows, 2)), "output": output}
    values |= {"witness_mean": 2 * witness * rng.normal(size=rows), "residual": size, "target": size}
    values |= {"witness_precision": witness * np.exp(rng.uniform(-2, 2, rows))}
    blank = CalibrationRows(**{name: torch.from_numpy(value) for name, value in values.items()})
    near, mu, variance = opinions(truth, blank)
    df, spread, centre = (getattr(truth, name).numpy()[output] for name in ("df", "spread", "centre"))
    offset = math.sqrt(truth.excess) * (1 - float(truth.shift)) * mu * rng.choice([-1, 1], rows)
    usual = offset + np.sqrt(variance * (df - 2) / df) * rng.standard_t(df)
    rare = rng.uniform(size=rows) < float(truth.share)
    usual = np.where(rare, np.sqrt(spread + variance + offset**2) * rng.normal(size=rows), usual)
    outputs = centre + rng.normal(size=rows)
    doubtful = rng.uniform(size=rows) < float(truth.vague) * vague_share(near)
    marginal = centre + np.sqrt(spread) * rng.standard_t(2.2, rows)
    target = np.where(doubtful, marginal, outputs + float(truth.shift) * mu + usual)
    return replace(blank, residual=torch.from_numpy(target - outputs), target=torch.from_numpy(target))


def changed(before: Calibration, after: Calibration) -> set[str]:
    """Names of the fields that differ."""
    return {name for name in FIELDS if not torch.equal(getattr(before, name), getattr(after, name))}


FIELDS = tuple(vars(TAILED))


POSITIVE, WEIGHT, GROWTH = st.floats(0.01, 100), st.sampled_from([0.0, 0.3, 1.0]), [0.0, -4.0, 1.7]
STATISTIC = st.tuples(*[WEIGHT] * 4), st.tuples(*[POSITIVE] * 4)


@given(st.floats(0, 1), st.floats(-2, 2), *STATISTIC, POSITIVE, st.sampled_from(GROWTH))
def test_scale_is_the_formula(near, bias, weights, values, variance, growth):
    kappa, *others = values
    logs = {name: number([[math.log(v)]]) for name, v in zip(STATISTICS[1:], others, strict=True)}
    parts = {"epistemic": 0.25 * variance, "noise": 0.75 * variance, "log_kappa": math.log(kappa)}
    raw = SimpleNamespace(**{name: number([[value]]) for name, value in parts.items()}, **logs)
    z = [variance * kappa, *others]
    expected = pytest.approx(pooled_scale(near, bias, weights, z, variance, growth), rel=1e-9)
    c = calibration(outputs=1, weights=weights, bias=(bias,), growth=growth)
    assert float(c.scale(raw, raw.epistemic + raw.noise, number([[near]]))) == expected
    folded, rare = c.folded(torch.device("cpu"), torch.float32)
    assert float(folded.scale(raw, raw.epistemic + raw.noise, number([[near]]))) == expected
    assert rare.dtype == torch.float32
    huge = replace(c, bias=number([1e4]))
    scale = float(huge.scale(raw, raw.epistemic + raw.noise, number([[1.0]])))
    assert scale == pytest.approx(math.exp(cal.MAX_LOG_SCALE), rel=1e-9)


def test_how_near_a_row_is_depends_on_the_share_of_held_out_rows_that_are_more_novel():
    rows = generated(calibration(), 60)
    c = replace(calibration(), tails=TailShares.fit(rows.measures).table)
    measures = torch.cat([rows.measures, 4 * rows.measures, number([[500.0, 500.0], [-1e30, 0.0]])])
    near, exponent = c.nearness(measures)
    assert near.tolist() == pytest.approx([nearness(c.tails, row) for row in measures.tolist()], rel=1e-10)
    expected = 1 / (1 + 0.005 * exponent.clamp_max(60).exp())
    assert near.tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    assert 0 < float(near.min()) < 1e-20
    assert float(near[:60].median()) > 0.98


def test_defaults_are_the_experts_alone_without_growth_or_doubt_and_gaussian():
    default = Calibration.default(3, shift=1.0)
    assert [float(getattr(default, name)) for name in ("excess", "shift", "weight")] == [1.0] * 3
    assert [float(getattr(default, name)) for name in ("share", "vague", "growth")] == [0.0] * 3
    assert default.weights.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert default.trust.tolist() == [1.0] * 3
    for name in ("bias", "spread", "centre"):
        assert getattr(default, name).tolist() == [0.0] * 3
    assert default.df.tolist() == [MAX_DF] * 3
    assert torch.equal(default.tails, TailShares.default().table)
    outliers = OutlierPrior(number(0.1), number([2.0]), number([3.0]))
    with_outliers = Calibration.default(1, shift=0.0, outliers=outliers)
    assert [float(getattr(with_outliers, name)) for name in outliers._fields] == [0.1, 2.0, 3.0]


@pytest.mark.parametrize("corrected", [False, True])
def test_a_fit_starts_with_the_variance_of_the_experts_on_average(corrected):
    rows = replace(generated(TAILED, 9), log_noise=torch.zeros(9).double())  # without a witness
    outliers = OutlierPrior(number(0.1), number([2.0] * 3), number([3.0] * 3))
    start = initial_calibration(rows, 3, corrected=corrected, outliers=outliers)
    first, second, _, fourth = fits.INITIAL_WEIGHTS
    assert start.weights.tolist() == [first, second, 0.0, fourth]
    experts = (rows.epistemic + rows.noise).log() + rows.log_kappa
    for output in (0, 1):
        own = rows.output == output
        pool = first * experts + second * rows.log_leverage + fourth * rows.log_stated + start.bias[output]
        assert statistics.mean(pool[own].tolist()) == pytest.approx(statistics.mean(experts[own].tolist()))
    assert float(start.bias[2]) == 0.0
    assert (float(start.shift), float(start.vague)) == (corrected, fits.INITIAL_VAGUE * corrected)
    assert start.df.tolist() == [10.0] * 3
    assert torch.equal(start.tails, TailShares.fit(rows.measures).table)
    assert float(initial_calibration(rows, 3, corrected=corrected).vague) == 0.0


@given(*(st.floats(*ends) for ends in ((1e-3, 1e3), (-3, 3), (0, 2), (-3, 3), (1e-6, 1e6), (0.01, 9))))
def test_experts_and_witness_are_pooled_by_their_precisions(
    variance, shift, weight, second, precision, trust
):
    values = [number([v]) for v in (variance, shift, second, precision, trust)]
    expected, left = pooled(calibration(weight=weight), *values)
    mean, total = two_opinions(variance, shift, weight, second, precision, trust)
    assert float(expected) == pytest.approx(mean, rel=1e-10, abs=1e-12)
    assert float(left * variance) == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize(
    ("shift", "witness", "vague"),
    [(0.0, True, 0.6), (0.0, False, 0.0), (0.3, True, 0.0), (1.0, False, 0.6), (1.0, True, 0.6)],
)
def test_held_out_loss_is_minus_the_mean_log_density_and_its_gradient_equals_differences(
    shift, witness, vague
):
    truth = replace(TAILED, shift=number(shift), vague=number(vague))
    rows = generated(truth, 40, witness=witness)
    assert held_out_loss(truth, rows) == pytest.approx(-log_densities(truth, rows).mean(), rel=1e-10)
    entries, values = fits.entries_of(truth, rows), {name: getattr(truth, name).numpy() for name in FIELDS}
    slopes = fits.loss_and_slopes(values, entries)[1]
    assert set(slopes) == set(fits.FREE)
    for name, slope in slopes.items():
        assert slope.shape == values[name].shape
        for place in np.ndindex(slope.shape):
            ends = []
            for step in (0.0 if name == "vague" and not vague else -1e-6, 1e-6):
                moved = values[name].copy()
                moved[place] += step
                loss = -fits.loss_and_slopes(values | {name: moved}, entries)[0].mean()
                ends.append((step, loss))
            (low, before), (high, after) = ends
            rel = 1e-5 if low else 1e-4
            assert slope[place] == pytest.approx((after - before) / (high - low), rel=rel, abs=1e-8), name
    zero = (set() if witness else {"trust"}) | ({"excess"} if shift == 1.0 else set())
    assert {name for name, slope in slopes.items() if not slope.any()} == zero


def test_where_targets_are_constant_nothing_is_in_doubt():
    truth = replace(TAILED, spread=number([0.0, 30.0]))
    rows = generated(truth, 40)
    assert held_out_loss(truth, rows) == pytest.approx(-log_densities(truth, rows).mean(), rel=1e-10)
    values = {name: getattr(truth, name).numpy() for name in FIELDS}
    assert fits.loss_and_slopes(values, fits.entries_of(truth, rows))[1]["vague"] != 0.0


@pytest.mark.parametrize(("shift", "witness"), [(0.0, False), (1.0, True)])
def test_a_fit_is_stationary_under_a_gaussian_prior_on_centred_statistics(monkeypatch, shift, witness):
    """In logarithms about the start; b is the level of the pool at the mean of its statistics."""
    monkeypatch.setattr(fits, "TOLERANCE", 1e-15)
    rows = generated(replace(TAILED, shift=number(shift)), 60, witness=witness)
    outliers = OutlierPrior(*(getattr(TAILED, name) for name in OutlierPrior._fields))
    start, spread, share = initial_calibration(rows, 2, corrected=bool(shift), outliers=outliers), 0.3, 0.5
    fit = fit_calibration(rows, start, spread=spread, share=share, steps=3000)
    others = {"weight", "trust"} if witness else {"excess"}
    assert changed(start, fit) == {"weights", "bias", "df", *others}
    experts = (rows.epistemic + rows.noise).log() + rows.log_kappa
    columns = [experts, *(getattr(rows, name) for name in STATISTICS[1:])]
    centre = number([[float(column[rows.output == j].mean()) for column in columns] for j in (0, 1)])

    def at(weights, excess, trust, df, level, weight) -> Calibration:
        w = start.weights * weights.exp()
        tails = fits.MIN_DF + (start.df - fits.MIN_DF) * df.exp()
        bias = start.bias + level - centre @ (w - start.weights)
        values = {"weights": w, "bias": bias, "df": tails, "excess": start.excess * excess.exp().squeeze()}
        values |= {"trust": start.trust * trust.exp(), "weight": start.weight + weight.squeeze()}
        return replace(start, **values)

    def loss(free: np.ndarray) -> float:
        pull = 0.5 * float((free**2).sum()) / spread**2 / (share * len(rows))
        return pull - log_densities(at(*torch.from_numpy(free).split([4, 1, 2, 2, 2, 1])), rows).mean()

    level = fit.bias - start.bias + centre @ (fit.weights - start.weights)
    ratios = [fit.weights / start.weights, (fit.excess / start.excess)[None], fit.trust / start.trust]
    ratios += [(fit.df - fits.MIN_DF) / (start.df - fits.MIN_DF)]
    free = torch.cat([torch.cat(ratios).log(), level, (fit.weight - start.weight)[None]]).numpy()
    assert loss(free) < loss(np.zeros(12)) - 0.01
    for i in range(12 if witness else 11):
        step = 1e-4 * np.eye(12)[i]
        assert (loss(free + step) - loss(free - step)) / 2e-4 == pytest.approx(0.0, abs=2e-6), i


def test_without_a_witness_its_trust_and_the_experts_weight_stay():
    rows = generated(calibration(bias=(0.5, 3.0), excess=0.4), 300)
    own, corrected = (calibration(shift=z, df=(10.0, 10.0)) for z in (0.0, 1.0))
    fit = fit_calibration(rows, own)
    assert changed(own, fit) == {"weights", "excess", "bias", "df"}  # v^2 is a factor of the excess
    fit = fit_calibration(rows, corrected)
    assert changed(corrected, fit) == {"weights", "bias", "df", "weight"}
    assert fit.weights[1:].tolist() == [0.0] * 3
    silent = replace(rows, residual=torch.zeros(300).double())
    assert fit_calibration(silent, TAILED) is TAILED


def test_constant_calibration_is_one_student_t_for_each_output():
    truth = calibration(weights=(0.0,) * 4, bias=(0.5, -3.0), df=(4.0, 6.0), excess=0.0)
    rows = generated(truth, 2000, far=-2.5)
    start = replace(initial_calibration(rows, 2, corrected=False), tails=TailShares.default().table)
    fit = fits.constant_calibration(rows, start, spread=100.0)
    for name in ("excess", "weight", "trust", "weights"):
        assert not getattr(fit, name).any()
    for j in (0, 1):
        own = rows.residual[rows.output == j].numpy()
        df, _, scale = stats.t.fit(own, floc=0.0)
        assert float(fit.df[j]) == pytest.approx(df, rel=0.1)
        assert float(fit.bias[j]) == pytest.approx(math.log(scale**2 * df / (df - 2)), abs=0.1)
    squares = [statistics.mean(float(r) ** 2 for r in rows.residual[k::2]) for k in (0, 1)]
    assert constant_noise(rows, 3).tolist() == pytest.approx([*squares, 1.0], rel=1e-12)
    silent = replace(rows, residual=0 * rows.residual)
    evidence = [statistics.mean((rows.epistemic + rows.noise)[k::2].tolist()) for k in (0, 1)]
    assert constant_noise(silent, 2).tolist() == pytest.approx(evidence, rel=1e-12)


@pytest.mark.parametrize(("bias", "chosen"), [((0.0, 0.0), 0.1), ((3.7, -3.9), fits.PRIOR_STD)])
def test_the_prior_is_chosen_by_cross_validation_in_thirds(bias, chosen):
    start = calibration(shift=1.0)
    rows = generated(calibration(shift=1.0, bias=bias), 84, seed=0, far=-2.0)
    lots = np.array_split(np.arange(84).reshape(42, 2), fits.FOLDS)  # both outputs of a row go together
    total = dict.fromkeys(fits.PRIOR_STDS, 0.0)
    for spread in fits.PRIOR_STDS:
        for lot in lots:
            rest = torch.from_numpy(np.setdiff1d(np.arange(84), lot))
            fit = fit_calibration(rows.subset(rest), start, spread=spread, steps=fits.FOLD_STEPS)
            total[spread] -= log_densities(fit, rows.subset(torch.from_numpy(lot.flatten()))).sum()
    assert min(total, key=total.__getitem__) == chosen
    assert fits.choose_spread(rows, start) == chosen
    assert fits.choose_spread(rows.subset(torch.arange(4)), start) == fits.PRIOR_STDS[0]
    assert fits.choose_spread(CalibrationRows.cat([rows] * 8), start) == fits.PRIOR_STD
    assert fits.MANY_ROWS <= 8 * 42


def test_rows_that_are_not_novel_do_not_change_growth():
    start, large = calibration(shift=1.0, growth=1.0), calibration(bias=(4.0, 4.0))
    rows = generated(large, 300, novelty=(0.0, 0.1))
    assert fit_growth(rows, start) is start
    far = generated(large, 300, seed=1, novelty=(0.1, 1.0))
    both, alone = fit_growth(CalibrationRows.cat([rows, far]), start), fit_growth(far, start)
    torch.testing.assert_close(both.growth, alone.growth, rtol=1e-10, atol=0)
    assert changed(start, both) == {"growth"}
    assert float(both.growth) != 0


@pytest.mark.parametrize("vague", [0.0, 0.6])
def test_growth_and_doubt_are_the_penalised_optimum_that_a_search_without_slopes_finds(monkeypatch, vague):
    novel = replace(TAILED, vague=number(vague), tails=TailShares.novel().table)
    rows = generated(replace(novel, growth=number(2.0)), 30, novelty=(0.1, 1.0))
    scales, odds = np.array([fits.PRIOR_STD, fits.VAGUE_STD]), vague / (1 - vague)

    def at(free: np.ndarray) -> dict[str, torch.Tensor]:
        growth, now = fits.MAX_GROWTH * math.tanh(free[0] / fits.MAX_GROWTH), odds * math.exp(free[1])
        return {"growth": number(growth), "vague": number(now / (1 + now))}

    def loss(free: np.ndarray) -> float:
        pull = 0.5 * float(((free / scales) ** 2).sum()) / fits.EFFECTIVE_FAR_ROWS
        return pull - log_densities(replace(novel, **at(free)), rows).mean()

    options = {"xatol": 1e-3, "fatol": 1e-7}
    best = optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options=options)
    monkeypatch.setattr(fits, "TOLERANCE", 1e-12)
    start = replace(TAILED, vague=number(vague))
    fit = fit_growth(rows, start)
    for name, expected in at(best.x).items():
        torch.testing.assert_close(getattr(fit, name), expected, rtol=0, atol=3e-3)
    assert changed(start, fit) == {"growth", *(["vague"] if vague else [])}


def test_the_outlier_prior_is_half_a_row_in_n_with_the_moments_of_the_targets():
    targets = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e4])
    share, spread, centre = OutlierPrior.of(targets)
    assert (float(share), spread.dtype, centre.dtype) == (0.01, torch.float64, torch.float64)
    columns = targets.double().T.tolist()
    assert spread.tolist() == pytest.approx([*map(statistics.variance, columns)], rel=1e-10)
    assert centre.tolist() == pytest.approx([*map(statistics.mean, columns)], rel=1e-10)
    assert OutlierPrior.of(targets[:1]) is None
    assert OutlierPrior.of(torch.ones(9, 1)).spread.tolist() == [0.0]


@pytest.mark.parametrize("end", [1e3, math.nan])
def test_a_search_that_ends_above_its_start_is_discarded(monkeypatch, end):
    def lost(at, start, **_):
        return SimpleNamespace(x=start + 3.0, fun=end)

    monkeypatch.setattr(optimize, "minimize", lost)
    rows, start = generated(calibration(), 50, witness=True), calibration(shift=1.0)
    assert fit_calibration(rows, start) is start
    assert changed(start, fit_growth(rows, start)) == set()


def test_steady_kappa_is_the_weighted_average_of_the_logarithms():
    log_kappa, n_0 = number([[0.0, 1.0], [2.0, -1.0], [5.0, 5.0]]), cal.SHRINKAGE_ROWS
    average = (10 * log_kappa[0] + 30 * log_kappa[1]) / 40
    first, second = ((n * log_kappa[i] + n_0 * average) / (n + n_0) for i, n in enumerate((10, 30)))
    steady = steady_log_kappa(log_kappa, torch.tensor([10, 30, 0]))
    torch.testing.assert_close(steady, torch.stack([first, second, average]), rtol=1e-10, atol=1e-12)


def test_the_supported_novelty_is_a_quantile_with_a_lower_bound():
    assert float(witness_fit._reach(torch.arange(100.0).flip(0))) == 95.0
    assert float(witness_fit._reach(torch.zeros(9, dtype=torch.float64))) == cal.MIN_SUPPORT


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
