import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import calibrated_scale, inverse_of, leave_out, two_opinions

from trustgp.math.calibration import (
    STEADY,
    Calibration,
    CalibrationRows,
    fit_calibration,
    held_out_loss,
    leave_groups_out,
    leave_one_out,
    pooled,
    steady_log_kappa,
    unruled,
)


def problem(rows=18, width=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return phi @ phi.T, torch.randn(rows, 2, generator=generator, dtype=torch.float64)


def calibration(
    fade=1.0,
    onset=1.0,
    level=(1.0, 1.0),
    excess=1.0,
    shift=0.0,
    reach=1.0,
    weight=1.0,
    trust=(1.0, 1.0),
    rare=(0.0, 0.0),
) -> Calibration:
    values = (fade, onset, level, excess, reach, shift, weight, trust, rare)
    return Calibration(*(torch.tensor(value, dtype=torch.float64) for value in values))


def generated(truth: Calibration, rows: int, seed: int = 0, *, heard: bool = False) -> CalibrationRows:
    """Held-out rows whose errors have exactly the distribution that `truth` describes.

    `heard`: with a witness, who is sometimes surer than the experts and sometimes less so.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(rows, generator=generator, dtype=torch.float64)

    output = torch.randint(0, 2, (rows,), generator=generator)
    novelty, log_kappa = uniform(0, 1), uniform(-3, 3)
    epistemic, noise = uniform(0.1, 2), uniform(0.1, 0.5)
    shift = torch.randn(rows, generator=generator, dtype=torch.float64)
    said, precision = torch.zeros_like(shift), torch.zeros_like(shift)
    if heard:
        said, precision = 2 * torch.randn(rows, generator=generator).double(), uniform(-2, 2).exp()
    variance = truth.scale(novelty, log_kappa, truth.level[output].log()) * (epistemic + noise)
    expected, left = pooled(truth, variance, shift, said, precision, truth.trust[output])
    variance = left * variance + truth.excess * (1 - truth.shift) ** 2 * expected.square()
    residual = truth.shift * expected + variance.sqrt() * torch.randn(rows, generator=generator).double()
    return CalibrationRows(residual, shift, epistemic, noise, novelty, log_kappa, output, said, precision)


@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_leave_one_out_equals_leaving_each_row_out(tau):
    gram, residual = problem()
    found = leave_one_out(inverse_of(gram, tau), residual)
    expected = leave_out(gram, residual, torch.arange(len(gram)), tau)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_leave_groups_out_equals_leaving_each_group_out(tau):
    gram, residual = problem()
    groups = torch.tensor([3, 0, 0, 7, 3, 7, 7, 0, 1, 1, 1, 3, 5, 5, 5, 5, 0, 9])
    found = leave_groups_out(inverse_of(gram, tau), residual, groups)
    expected = leave_out(gram, residual, groups, tau)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_groups_of_one_row_are_leave_one_out():
    gram, residual = problem()
    inverse = inverse_of(gram, 0.1)
    pairs = zip(
        leave_groups_out(inverse, residual, torch.arange(18)), leave_one_out(inverse, residual), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_one_group_of_all_rows_is_the_prior():
    gram, residual = problem()
    errors, variances = leave_groups_out(inverse_of(gram, 0.5), residual, torch.zeros(18))
    torch.testing.assert_close(errors, residual, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(variances, gram.diagonal() + 0.5, rtol=1e-10, atol=0)


@given(
    st.floats(0.1, 3),
    st.floats(0.1, 3),
    st.floats(0.1, 5),
    st.floats(0, 1),
    st.floats(0.01, 100),
    st.floats(0.01, 1),
)
def test_scale_is_the_formula(fade, onset, level, novelty, kappa, reach):
    found = calibration(fade, onset, reach=reach).scale(
        torch.tensor(novelty, dtype=torch.float64),
        torch.tensor(math.log(kappa), dtype=torch.float64),
        torch.tensor(math.log(level), dtype=torch.float64),
    )
    assert float(found) == pytest.approx(
        calibrated_scale(fade, onset, level, novelty, kappa, reach), rel=1e-10
    )


def test_scale_is_kappa_on_the_data_and_one_far_away():
    novelty = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = calibration().scale(novelty, torch.tensor(math.log(0.2), dtype=torch.float64), torch.zeros(()))
    expected = torch.tensor([0.2, 1.0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def test_defaults_are_all_one():
    default = Calibration.default(3, shift=1.0)
    numbers = (default.fade, default.onset, default.excess, default.shift, default.reach, default.weight)
    assert [float(v) for v in numbers] == [1.0] * 6
    assert default.level.tolist() == default.trust.tolist() == [1.0, 1.0, 1.0]
    assert default.rare.tolist() == [0.0, 0.0, 0.0]


@given(
    st.floats(1e-3, 1e3),
    st.floats(-3, 3),
    st.floats(0, 2),
    st.floats(-3, 3),
    st.floats(1e-6, 1e6),
    st.floats(0.01, 9),
)
def test_two_opinions_are_pooled_by_their_precisions(variance, shift, weight, heard, precision, trust):
    values = [torch.tensor([v], dtype=torch.float64) for v in (variance, shift, heard, precision, trust)]
    expected, left = pooled(calibration(weight=weight), *values)
    mean, total = two_opinions(variance, shift, weight, heard, precision, trust)
    assert float(expected) == pytest.approx(mean, rel=1e-10, abs=1e-12)
    assert float(left * variance) == pytest.approx(total, rel=1e-10)


def test_without_a_witness_the_experts_word_stands_however_little_they_know():
    variance = torch.tensor([0.5, 1e300, torch.inf], dtype=torch.float64)
    zero, one = torch.zeros_like(variance), torch.ones_like(variance)
    expected, left = pooled(calibration(weight=0.7), variance, 2 * one, one, zero, one)
    assert expected.tolist() == [1.4] * 3
    assert left.tolist() == [1.0] * 3


@pytest.mark.parametrize("precision", [1e-9, 1e9])
def test_of_two_unequal_opinions_the_surer_prevails(precision):
    one = torch.ones(1, dtype=torch.float64)
    expected, left = pooled(calibration(), one, 2 * one, 5 * one, precision * one, one)
    assert float(expected) == pytest.approx(2.0 if precision < 1 else 5.0, rel=1e-8)
    assert float(left) == pytest.approx(1.0 if precision < 1 else 1 / precision, rel=1e-8)


def test_two_equal_opinions_are_worth_one():
    one = torch.ones(1, dtype=torch.float64)
    expected, left = pooled(calibration(), 4 * one, 2 * one, 2 * one, one / 4, one)
    assert (float(expected), float(left)) == (2.0, 1.0)


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
def test_held_out_loss_with_a_witness_is_the_gaussian_likelihood(shift):
    truth = calibration(0.7, 1.5, (0.5, 2.0), 0.8, shift, weight=0.6, trust=(0.5, 3.0))
    rows = generated(truth, 40, heard=True)
    total = 0.0
    for i in range(40):
        output = int(rows.output[i])
        scale = calibrated_scale(
            0.7, 1.5, float(truth.level[output]), float(rows.novelty[i]), math.exp(rows.log_kappa[i])
        )
        mean, variance = two_opinions(
            scale * float(rows.epistemic[i] + rows.noise[i]),
            float(rows.residual_mean[i]),
            0.6,
            float(rows.witness_mean[i]),
            float(rows.witness_precision[i]),
            float(truth.trust[output]),
        )
        variance += 0.8 * (1 - shift) ** 2 * mean**2
        error = float(rows.residual[i]) - shift * mean
        total += 0.5 * (math.log(2 * math.pi * variance) + error**2 / variance)
    assert float(held_out_loss(truth, rows)) == pytest.approx(total / 40, rel=1e-10)


def test_held_out_loss_is_the_gaussian_likelihood():
    truth = calibration(0.7, 1.5, (0.5, 2.0), 0.8, 0.3)
    rows = generated(truth, 40)
    total = 0.0
    for i in range(40):
        scale = calibrated_scale(
            0.7, 1.5, float(truth.level[rows.output[i]]), float(rows.novelty[i]), math.exp(rows.log_kappa[i])
        )
        variance = (
            scale * float(rows.epistemic[i] + rows.noise[i]) + 0.8 * 0.49 * float(rows.residual_mean[i]) ** 2
        )
        normal = torch.distributions.Normal(0.3 * rows.residual_mean[i], variance**0.5)
        total -= float(normal.log_prob(rows.residual[i]))
    assert float(held_out_loss(truth, rows)) == pytest.approx(total / 40, rel=1e-10)


def test_fit_recovers_the_numbers_that_generated_the_rows():
    truth = calibration(0.6, 2.0, (0.5, 3.0), 0.4, 0.0, reach=0.95)
    found = fit_calibration(generated(truth, 10_000), 2, corrected=False)
    # Statistical: 10,000 rows fix each number to a few per cent.
    for name in ("fade", "onset", "level", "excess"):
        torch.testing.assert_close(getattr(found, name), getattr(truth, name), rtol=0.1, atol=0)
    assert float(found.shift) == 0.0


def test_held_out_rows_speak_up_to_the_novelty_of_most_of_them():
    rows = generated(calibration(), 1000)
    familiar = replace(rows, novelty=0.1 * rows.novelty)
    found = fit_calibration(familiar, 2, corrected=False)
    assert float(found.reach) == pytest.approx(float(familiar.novelty.quantile(0.95)), rel=1e-2)


def test_what_was_fitted_near_the_data_fades_far_away():
    small = calibration(level=(0.01, 0.01), reach=0.05)
    zero, level = torch.zeros((), dtype=torch.float64), torch.tensor(0.01, dtype=torch.float64)
    near, far = (
        float(small.scale(torch.tensor(nu, dtype=torch.float64), zero, level.log())) for nu in (0.01, 0.5)
    )
    assert near < 0.015
    assert far > 0.7


def test_fit_recovers_the_weight_of_the_residual_mean():
    truth = calibration(0.6, 2.0, (0.5, 3.0), 1.0, 1.0, weight=0.4)
    found = fit_calibration(generated(truth, 10_000), 2, corrected=True)
    # Statistical, as above.
    assert float(found.weight) == pytest.approx(0.4, abs=0.05)
    assert float(found.shift) == 1.0


@pytest.mark.parametrize("corrected", [False, True])
def test_fit_recovers_the_trust_in_a_witness(corrected):
    shift = 1.0 if corrected else 0.0
    truth = calibration(0.6, 2.0, (0.5, 3.0), 0.8, shift, 0.95, weight=0.7, trust=(0.2, 0.8))
    found = fit_calibration(generated(truth, 20_000, heard=True), 2, corrected=corrected)
    # Statistical, as above; about the network's own output only the size of the expected error counts.
    torch.testing.assert_close(found.trust, truth.trust, rtol=0.1 if corrected else 0.3, atol=0)
    assert float(found.weight) == pytest.approx(0.7, abs=0.05 if corrected else 0.2)


@pytest.mark.parametrize("corrected", [False, True])
def test_trust_goes_to_who_is_right(corrected):
    rows = generated(calibration(shift=1.0), 4000, heard=True)
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(1)).double()
    error = noise / rows.witness_precision.sqrt()
    right = replace(rows, witness_mean=rows.residual + error)
    wrong = replace(rows, witness_mean=rows.residual + 10 * error)
    first, second = (fit_calibration(case, 2, corrected=corrected).trust for case in (right, wrong))
    assert bool((first > 0.5).all())
    assert bool((second < 0.1).all())
    certain = replace(rows, witness_mean=rows.residual + 0.01 * error)
    assert bool((fit_calibration(certain, 2, corrected=corrected).trust > first).all())


def test_without_a_witness_its_trust_and_the_experts_weight_stay():
    rows = generated(calibration(0.6, 2.0, (0.5, 3.0), 0.4), 500)
    found = fit_calibration(rows, 2, corrected=False)
    assert found.trust.tolist() == [1.0, 1.0]
    assert float(found.weight) == 1.0  # its square is the weight of the excess
    assert fit_calibration(rows, 2, corrected=True).trust.tolist() == [1.0, 1.0]


def test_fit_is_pulled_to_the_defaults_when_rows_are_few():
    truth = calibration(0.3, 3.0, (0.2, 5.0), 0.2, 0.0)

    def distance(rows: int) -> float:
        found = fit_calibration(generated(truth, rows), 2, corrected=False)
        logs = torch.cat([found.fade.log()[None], found.onset.log()[None], found.level.log()])
        return float(logs.abs().max())

    assert distance(1) < 1.0 < distance(4000)


def test_fit_never_makes_the_penalised_likelihood_worse_than_the_defaults():
    rows = generated(calibration(2.0, 0.5, (4.0, 0.1), 3.0, 0.0), 500)
    found = fit_calibration(rows, 2, corrected=False)
    default = Calibration.default(2, shift=0.0)
    assert float(held_out_loss(found, rows)) < float(held_out_loss(default, rows))


def test_what_n_rows_cannot_rule_out_is_half_a_row_in_n_off_by_a_full_spread():
    targets = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e4])
    expected = [statistics.variance(column) / 100 for column in targets.double().T.tolist()]
    assert unruled(targets).tolist() == pytest.approx(expected, rel=1e-10)
    assert unruled(targets[:1]).tolist() == [0.0, 0.0]
    assert unruled(torch.ones(9, 1)).tolist() == [0.0]


def test_what_cannot_be_ruled_out_is_kept_by_a_fit_and_changes_no_other_number():
    rare = torch.tensor([0.3, 0.0], dtype=torch.float64)
    rows = generated(calibration(), 200)
    found, without = (fit_calibration(rows, 2, corrected=False, rare=r) for r in (rare, None))
    assert torch.equal(found.rare, rare)
    others = vars(without).keys() - {"rare"}
    assert all(torch.equal(getattr(found, name), getattr(without, name)) for name in others)


@pytest.mark.parametrize("seed", [40, 41, 42])
def test_a_search_that_tries_absurd_steps_comes_back(seed):
    """With seed 41 the line search once went to where everything overflows, and stayed there."""
    truth = calibration(0.3, 1.0, (0.2, 3.0), 0.3, 1.0, weight=0.5, trust=(5.0, 0.1))
    rows = generated(truth, 800, seed=seed, heard=True)
    rows = replace(rows, witness_precision=100 * rows.witness_precision, log_kappa=2 * rows.log_kappa)
    found = fit_calibration(rows, 2, corrected=False)
    default = Calibration.default(2, shift=0.0)
    assert float(held_out_loss(found, rows)) < float(held_out_loss(default, rows))
    assert all(bool(torch.isfinite(value).all()) for value in vars(found).values())


@pytest.mark.parametrize("size", [1e3, torch.nan])
def test_a_search_that_ends_worse_than_it_began_is_not_heeded(monkeypatch, size):
    class Lost:
        def __init__(self, numbers, **_):
            self.numbers = numbers

        def zero_grad(self):
            pass

        def step(self, closure):
            loss = closure()
            with torch.no_grad():
                self.numbers[0].fill_(size)
            return loss

    monkeypatch.setattr(torch.optim, "LBFGS", Lost)
    found = fit_calibration(generated(calibration(), 50, heard=True), 2, corrected=True)
    default = Calibration.default(2, shift=1.0)
    assert all(torch.equal(getattr(found, name), value) for name, value in vars(default).items())


def test_the_loss_of_absurd_numbers_is_finite():
    rows = generated(calibration(), 50, heard=True)
    for size in (1e-5, 1e5):
        absurd = calibration(size, size, (size, size), size, 0.0, weight=size, trust=(size, size))
        assert math.isfinite(float(held_out_loss(absurd, rows)))


def test_fit_keeps_the_defaults_when_the_rows_are_useless():
    rows = generated(calibration(), 10)
    useless = replace(rows, residual=torch.full_like(rows.residual, torch.nan))
    found = fit_calibration(useless, 2, corrected=False)
    assert float(found.fade) == float(found.onset) == 1.0


def test_steady_kappa_is_the_weighted_average_of_the_logarithms():
    log_kappa = torch.tensor([[0.0, 1.0], [2.0, -1.0], [5.0, 5.0]], dtype=torch.float64)
    rows = torch.tensor([10, 30, 0])
    average = (10 * log_kappa[0] + 30 * log_kappa[1]) / 40
    expected = torch.stack(
        [
            (10 * log_kappa[0] + STEADY * average) / (10 + STEADY),
            (30 * log_kappa[1] + STEADY * average) / (30 + STEADY),
            average,
        ]
    )
    torch.testing.assert_close(steady_log_kappa(log_kappa, rows), expected, rtol=1e-10, atol=1e-12)


def test_held_out_parts_are_laid_end_to_end():
    rows = generated(calibration(), 10)
    first = CalibrationRows(**{name: value[:4] for name, value in vars(rows).items()})
    rest = CalibrationRows(**{name: value[4:] for name, value in vars(rows).items()})
    joined = CalibrationRows.cat([first, rest])
    assert len(joined) == 10
    assert all(torch.equal(getattr(joined, name), value) for name, value in vars(rows).items())
