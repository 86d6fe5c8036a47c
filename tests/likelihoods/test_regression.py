import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import calibrated_scale, two_opinions

from trustgp.experts.mixture import LatentPrediction
from trustgp.likelihoods import KINDS, Regression, Shape
from trustgp.math.calibration import KNOTS, Calibration, CalibrationRows
from trustgp.math.calibration_fit import fit_calibration, held_out_loss, initial_calibration

SEED = torch.Generator().manual_seed(0)


def uniform(*shape):
    return torch.rand(shape, generator=SEED, dtype=torch.float64) + 0.1


OUTPUTS = uniform(4, 2)
NONE = torch.zeros(4, 2, dtype=torch.float64)
MOMENTS = [uniform(4, 2) for _ in range(4)]
OTHERS = uniform(4, 2) / 2, torch.arange(4)[:, None], NONE, NONE
RAW = LatentPrediction(*MOMENTS, *OTHERS, uniform(4, 2).log(), NONE)
WITNESSED = replace(RAW, witness_mean=uniform(4, 2), witness_precision=uniform(4, 2))


def calibration(fade, onset, level, excess, shift, **others):
    values = {"fade": fade, "onset": onset, "level": level, "excess": excess, "shift": shift, **others}
    tensors = {name: torch.tensor(v, dtype=torch.float64) for name, v in ({"reach": 0.3} | values).items()}
    return replace(Calibration.default(len(level), shift=shift), **tensors)


TAILS = {"df": [3.0, 9.0], "share": 0.04, "spread": [5.0, 0.0], "extent": [0.2, 3.0]}
SCALES = {"leverage": 0.7, "varying": 0.6, "constant": [0.4, 1.9], "beyond": 0.15, "growth": [0.7, -0.4]}
OWN, CORRECTED = (
    calibration(0.7, 1.3, [0.5, 2.0], 0.9, 0.0, weight=0.8, trust=[0.3, 1.7], **SCALES, **TAILS),
    calibration(0.6, 1.1, [0.8, 1.5], 0.4, 0.75, weight=1.2, trust=[2.0, 0.1], share=0.1, spread=[0.0, 30.0]),
)
ALL = (OWN, CORRECTED, OWN, CORRECTED)
PREDICTION = Regression().prediction(OUTPUTS, RAW, ALL)


def scale_at(c: Calibration, i: int, j: int) -> float:
    """V / E of one row and output, as products of powers."""
    novelty, before = float(RAW.novelty[i, j]), float(RAW.epistemic[i, j] + RAW.noise[i, j])
    a, b, nu_0, nu_1, gamma = (float(v) for v in (c.fade, c.onset, c.reach, c.beyond, c.varying))
    bounds, kappa = (nu_0, float(c.extent[j]) / before), float(RAW.log_kappa[i, j].exp())
    found = calibrated_scale(a, b, float(c.level[j]), novelty, kappa, *bounds) ** gamma
    found *= calibrated_scale(0.0, b, float(c.constant[j]) / before, novelty, 1.0, *bounds) ** (1 - gamma)
    leverage = float(RAW.log_leverage[i, j].exp())
    found *= calibrated_scale(float(c.leverage), b, 1.0, novelty, leverage, *bounds)
    if novelty > nu_1:
        way = math.log(novelty / nu_1) / -math.log(nu_1)
        found *= math.exp(np.interp(way, [0, *KNOTS], [0, *c.growth]))
    return found


def scales(c: Calibration) -> torch.Tensor:
    return torch.tensor([[scale_at(c, i, j) for j in range(2)] for i in range(4)], dtype=torch.float64)


@pytest.mark.parametrize("raw", [RAW, WITNESSED], ids=["alone", "with a witness"])
@pytest.mark.parametrize("about", ["own", "corrected"])
def test_every_part_of_the_variance_is_its_formula(raw, about):
    prediction = Regression().prediction(OUTPUTS, raw, ALL)
    p, c = (prediction, OWN) if about == "own" else (prediction.corrected, CORRECTED)
    before = scales(c) * (raw.epistemic + raw.noise)
    for i, j in np.ndindex(4, 2):
        values = (raw.residual_mean[i, j], c.weight, raw.witness_mean[i, j], raw.witness_precision[i, j])
        mu, variance = two_opinions(float(before[i, j]), *map(float, values), float(c.trust[j]))
        share = float(raw.epistemic[i, j] / (raw.epistemic + raw.noise)[i, j])
        assert float(p.epistemic[i, j]) == pytest.approx(share * variance, rel=1e-10)
        assert float(p.aleatoric[i, j]) == pytest.approx((1 - share) * variance, rel=1e-10)
        rest = float(c.excess) * (1 - float(c.shift)) ** 2
        assert float(p.excess[i, j]) == pytest.approx(rest * mu**2, rel=1e-10)
        assert float(p.mean[i, j]) == pytest.approx(float(OUTPUTS[i, j]) + float(c.shift) * mu, rel=1e-10)
    torch.testing.assert_close(p.rare, (float(c.share) * c.spread).expand(4, 2), rtol=1e-12, atol=0)
    assert torch.equal(p.df, c.df.expand(4, 2))
    assert p.share == float(c.share)
    assert torch.equal(p.variance, p.epistemic + p.aleatoric + p.excess + p.rare)
    for name in ("epistemic", "aleatoric", "excess", "mean"):  # the paper knows of no witness
        assert torch.equal(getattr(prediction.plain, name), getattr(PREDICTION.plain, name))


def test_the_mean_is_the_networks_and_the_plain_variance_that_of_the_evidence():
    plain = PREDICTION.plain
    assert torch.equal(PREDICTION.mean, OUTPUTS)
    assert torch.equal(plain.mean, OUTPUTS)
    assert torch.equal(plain.epistemic, RAW.epistemic)
    assert torch.equal(plain.aleatoric, RAW.noise)
    assert torch.equal(plain.excess, torch.zeros(4, 2, dtype=torch.float64))
    assert torch.equal(plain.variance, RAW.epistemic + RAW.noise)


def test_shape_and_precision_are_those_of_the_outputs():
    raw = LatentPrediction(*(value[:, :1] for value in vars(RAW).values()))
    one = calibration(1.0, 1.0, [1.0], 1.0, 0.0)
    p = Regression().prediction(OUTPUTS[:, 0].float(), raw, (one,) * 4)
    for name in ("mean", "variance", "std", "epistemic", "aleatoric", "excess"):
        assert getattr(p, name).shape == (4,)
        assert getattr(p, name).dtype == torch.float32
    assert p.novelty.shape == p.expert.shape == (4,)


def test_one_gate_gives_one_expert_a_row_and_several_give_one_each():
    assert PREDICTION.expert.tolist() == [0, 1, 2, 3]
    several = replace(RAW, expert=torch.arange(8).reshape(4, 2))
    assert Regression().prediction(OUTPUTS, several, ALL).expert.shape == (4, 2)


def test_the_residual_is_target_minus_output_in_float64():
    residual = Regression().residual(torch.ones(2, 1), torch.full((2, 1), 3.0))
    assert residual.dtype == torch.float64
    assert residual.tolist() == [[2.0], [2.0]]
    Regression().check(1, torch.arange(3)[:, None], name="train")  # integers are targets


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(3, 2, dtype=torch.complex64), "real numbers"),
        (torch.zeros(3, 2, dtype=torch.bool), "real numbers"),
        (torch.zeros(3, 3), "2 outputs but train has 3 targets"),
    ],
)
def test_targets_that_cannot_be_compared_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        Regression().check(2, targets, name="train")


def test_without_held_out_rows_the_calibrations_are_the_defaults():
    own, corrected, *left_out = Regression().calibrate(None, Shape(3, (1,)), None)
    assert left_out == [own, corrected]
    assert (float(own.shift), float(corrected.shift)) == (0.0, 1.0)
    for c in (own, corrected):
        default = Calibration.default(3, shift=float(c.shift))
        assert all(torch.equal(getattr(c, name), value) for name, value in vars(default).items())


def test_the_outlier_prior_is_kept_with_and_without_held_out_rows():
    targets, shape = uniform(10, 2), Shape(2, (1,))
    for rows in (None, RAW.calibration_rows(OUTPUTS, torch.arange(2))):
        for c in Regression().calibrate(rows, shape, targets):
            assert float(c.share) == 1 / 20
            torch.testing.assert_close(c.spread, targets.var(dim=0), rtol=1e-12, atol=0)
        for c in Regression().calibrate(rows, shape, None):
            assert (float(c.share), c.spread.tolist()) == (0.0, [0.0, 0.0])


def held_out(n: int = 400, size: float = 1.0, novelty: float = 0.0, seed: int = 0) -> CalibrationRows:
    """Residuals of this size where the experts expect those of size 1."""
    residual = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    zeros = torch.zeros_like(residual)
    names = ("residual_mean", "noise", "log_kappa", "witness_mean", "witness_precision")
    names += ("log_leverage", "log_stated")
    values = {"residual": size * residual, "epistemic": zeros + 1.0, "novelty": zeros + novelty}
    return CalibrationRows(output=torch.arange(n) % 2, **values, **dict.fromkeys(names, zeros))


def near_and_far(c: Calibration) -> list[float]:
    """V of E = 1 among the rows and far from them."""
    novelty, one = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    return c.scale(novelty, 0 * one, one, 0 * one, c.level.log(), c.constant.log()).tolist()


def test_left_out_rows_set_the_scale_near_the_data_and_left_out_clusters_far_away():
    shape, near, far = Shape(2, (1,)), held_out(size=0.1), held_out(size=3.0, novelty=0.9, seed=1)
    for c in Regression().calibrate(near, shape, None):
        assert near_and_far(c) == pytest.approx([0.01, 1.0], rel=0.3)
    both = Regression().calibrate(near, shape, None, far=far)
    for c in both:
        assert near_and_far(c)[0] == pytest.approx(0.01, rel=0.3)
        assert 3.0 < near_and_far(c)[1] < 10.0  # 9, pulled towards 1
    assert [float(c.shift) for c in both] == [0.0, 1.0, 0.0, 1.0]
    assert both[0] is both[2]
    assert both[1] is both[3]


def test_held_out_rows_change_the_first_two_and_start_from_what_left_out_rows_had():
    shape = Shape(2, (1,))
    before = Regression().calibrate(held_out(size=0.1), shape, None, far=held_out(size=3.0, novelty=0.9))
    once = Regression().recalibrate(held_out(800, size=0.5, seed=2), shape, before)
    assert [once[2] is before[2], once[3] is before[3]] == [True, True]
    for c, start in zip(once[:2], before[2:], strict=True):
        assert near_and_far(c)[0] == pytest.approx(0.25, rel=0.3)
        assert torch.equal(c.growth, start.growth)
    # each fit starts from the left-out rows, not from the fit before
    again = Regression().recalibrate(held_out(800, size=0.2, seed=3), shape, once)
    straight = Regression().recalibrate(held_out(800, size=0.2, seed=3), shape, before)
    for one, other in zip(again, straight, strict=True):
        assert all(torch.equal(getattr(one, name), value) for name, value in vars(other).items())


def test_every_likelihood_is_made_again_from_its_settings():
    for kind in KINDS.values():
        assert kind(**kind().settings()) == kind()


@pytest.mark.parametrize(("epistemic", "worse"), [(1.0, False), (1e4, True)])
def test_an_error_bar_worse_than_constant_noise_gives_a_warning_with_both_numbers(epistemic, worse):
    held = held_out(novelty=1.0)
    held, residual = replace(held, epistemic=epistemic * held.epistemic), held.residual
    calibrations = Regression().calibrate(None, Shape(2, (1,)), None)
    text = Regression().calibration_warning(held, calibrations)
    assert bool(text) == worse
    if worse:
        variances = [float(residual[k::2].square().mean()) for k in (0, 1)]
        constant = sum(0.5 * (math.log(2 * math.pi * v) + 1.0) for v in variances) / 2
        found = float(0.5 * (math.log(2 * math.pi * epistemic) + residual.square() / epistemic).mean())
        assert f"NLL {found:.2f} against {constant:.2f}" in text
    assert Regression().calibration_warning(held.subset(torch.arange(90)), calibrations) == ""


def test_with_many_rows_a_fit_also_starts_from_the_corrected_scale():
    """The target lies on one of two sides of the output: at most a factor of two is lost."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    residual = normal(700, 2)
    rows = CalibrationRows.of(
        torch.arange(2),
        residual=residual,
        residual_mean=residual + 1e-3 * normal(700, 2),
        epistemic=torch.full_like(residual, 1e-2),
        noise=torch.full_like(residual, 1e-3),
        novelty=0.1 * torch.rand(700, 1, generator=generator, dtype=torch.float64),
        log_kappa=torch.zeros_like(residual),
        witness_mean=torch.zeros_like(residual),
        witness_precision=torch.zeros_like(residual),
        log_leverage=torch.zeros_like(residual),
        log_stated=torch.zeros_like(residual),
    )
    own, corrected, *_ = Regression().calibrate(rows, Shape(2, (1,)), None)
    alone = fit_calibration(rows, initial_calibration(rows, 2, corrected=False))
    assert held_out_loss(own, rows) <= held_out_loss(alone, rows)
    assert held_out_loss(own, rows) < held_out_loss(corrected, rows) + math.log(2) + 0.05
    assert (float(own.shift), float(corrected.shift)) == (0.0, 1.0)
