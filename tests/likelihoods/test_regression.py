import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from draws import Draws, normal
from reference import nearness, pooled_scale, two_opinions, vague_share

from trustgp.experts.mixture import LatentPrediction
from trustgp.likelihoods import KINDS, Regression, Shape
from trustgp.math.calibration import STATISTICS, Calibration
from trustgp.math.calibration_fit import fit_calibration, held_out_loss, initial_calibration
from trustgp.math.held_out import CalibrationRows

SEED = torch.Generator().manual_seed(0)


def uniform(*shape):
    return torch.rand(shape, generator=SEED, dtype=torch.float64) + 0.1


OUTPUTS = uniform(4, 2)
NONE = torch.zeros(4, 2, dtype=torch.float64)
MOMENTS = [uniform(4, 2) for _ in range(4)]
LOGS = {name: uniform(4, 2).log() for name in STATISTICS[1:]}
RAW = LatentPrediction(*MOMENTS, uniform(4, 2) / 2, torch.arange(4)[:, None], NONE, NONE, **LOGS)
OPINION = {"witness_mean": uniform(4, 2), "witness_precision": uniform(4, 2)}
NEAREST = torch.tensor([[-3.0, 0.0], [-1.0, 1.0], [-0.5, 2.0], [0.0, 3.0]]).double()
WITNESSED = replace(RAW, **OPINION, nearest=NEAREST)


def calibration(shift, **others):
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in others.items()}
    return replace(Calibration.default(2, shift=shift), **tensors)


TAILS = {"df": [3.0, 9.0], "share": 0.04, "spread": [5.0, 0.5], "centre": [1.0, -2.0]}
POOL = {"weights": [0.8, 0.3, 0.1, 0.2], "bias": [0.4, -0.3], "growth": 0.7}
OWN, CORRECTED = (
    calibration(0.0, excess=0.9, weight=0.8, trust=[0.3, 1.7], **POOL, **TAILS),
    calibration(0.75, excess=0.4, weight=1.2, trust=[2.0, 0.1], **TAILS | {"spread": [0.0, 30.0]}, vague=0.7),
)
ALL = (OWN, CORRECTED, OWN, CORRECTED)
PREDICTION = Regression().prediction(OUTPUTS, RAW, ALL)


def near_and_scale(c: Calibration, raw: LatentPrediction, i: int, j: int) -> tuple[float, float]:
    """u, and V / E of one row and output."""
    before = float(raw.epistemic[i, j] + raw.noise[i, j])
    variances = (raw.epistemic + raw.noise)[i].tolist()
    own = math.log(sum(raw.novelty[i].tolist()) / 2), sum(map(math.log, variances)) / 2
    near = nearness(c.tails, own if raw.nearest is None else raw.nearest[i].tolist())
    z = [before * math.exp(raw.log_kappa[i, j]), *(math.exp(getattr(raw, name)[i, j]) for name in LOGS)]
    values = (c.weights.tolist(), z, before, float(c.growth))
    return near, pooled_scale(near, float(c.bias[j]), *values)


@pytest.mark.parametrize("raw", [RAW, WITNESSED], ids=["alone", "with a witness"])
@pytest.mark.parametrize("about", ["own", "corrected"])
def test_every_part_of_the_variance_is_its_formula(raw, about):
    prediction = Regression().prediction(OUTPUTS, raw, ALL)
    p, c = (prediction, OWN) if about == "own" else (prediction.corrected, CORRECTED)
    for i, j in np.ndindex(4, 2):
        (near, scale), total = near_and_scale(c, raw, i, j), float((raw.epistemic + raw.noise)[i, j])
        values = (raw.residual_mean[i, j], c.weight, raw.witness_mean[i, j], raw.witness_precision[i, j])
        mu, variance = two_opinions(scale * total, *map(float, values), float(c.trust[j]))
        share = float(raw.epistemic[i, j]) / total
        assert float(p.epistemic[i, j]) == pytest.approx(share * variance, rel=1e-10)
        assert float(p.aleatoric[i, j]) == pytest.approx((1 - share) * variance, rel=1e-10)
        excess = float(c.excess) * (1 - float(c.shift)) ** 2 * mu**2
        assert float(p.excess[i, j]) == pytest.approx(excess, rel=1e-10)
        loc, centre, spread = float(OUTPUTS[i, j] + c.shift * mu), float(c.centre[j]), float(c.spread[j])
        vague = float(c.vague) * vague_share(near) * (spread > 0)
        assert float(p.mean[i, j]) == pytest.approx(loc, rel=1e-10)
        # second moments of both parts, about the mean of the first
        usual, marginal = variance + excess + float(c.share) * spread, 11 * spread + (centre - loc) ** 2
        second = (1 - vague) * usual + vague * marginal
        assert float(p.variance[i, j]) == pytest.approx(second, rel=1e-9)
        if about == "corrected":
            assert (float(p.fallback_weight[i, j]), float(p.fallback_location[i, j])) == (
                pytest.approx(vague, rel=1e-10),
                centre,
            )
            assert float(p.distribution.loc[i, j]) == pytest.approx(loc, rel=1e-10)
    torch.testing.assert_close(p.rare, (float(c.share) * c.spread).expand(4, 2), rtol=1e-12, atol=0)
    torch.testing.assert_close(p.distribution.variance, p.variance, rtol=1e-10, atol=0)
    assert torch.equal(p.df, c.df.expand(4, 2))
    assert p.outlier_share == float(c.share)
    assert prediction.fallback_weight is None
    assert torch.equal(prediction.score, OWN.nearness(raw.measures())[1])
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
    raw = LatentPrediction(**{name: value[:, :1] for name, value in vars(RAW).items() if value is not None})
    one = Calibration.default(1, shift=0.0)
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


def test_without_held_out_rows_the_calibrations_are_the_defaults():
    own, corrected, *left_out = Regression().calibrate(None, Shape(3, (1,)), None)
    assert left_out == [own, corrected]
    assert (float(own.shift), float(corrected.shift)) == (0.0, 1.0)
    for c in (own, corrected):
        default = Calibration.default(3, shift=float(c.shift))
        assert all(torch.equal(getattr(c, name), value) for name, value in vars(default).items())


def test_the_outlier_prior_is_kept_with_and_without_held_out_rows():
    targets, shape = uniform(10, 2), Shape(2, (1,))
    for rows in (None, RAW.calibration_rows(OUTPUTS, torch.arange(2), OUTPUTS)):
        for c in Regression().calibrate(rows, shape, targets):
            assert float(c.share) == 1 / 20
            torch.testing.assert_close(c.spread, targets.var(dim=0), rtol=1e-12, atol=0)
            torch.testing.assert_close(c.centre, targets.mean(dim=0), rtol=1e-12, atol=0)
            assert float(c.vague) == (0.75 if rows is not None and c.shift else 0.0)
        for c in Regression().calibrate(rows, shape, None):
            assert (float(c.share), c.spread.tolist()) == (0.0, [0.0, 0.0])


def held_out(n: int = 400, size: float = 1.0, novelty: float = 0.01, seed: int = 0) -> CalibrationRows:
    """Residuals of this size where the experts expect those of size 1."""
    residual = normal(n, seed=seed)
    one = torch.ones(n // 2, 2, dtype=torch.float64)
    measures = torch.linspace(-1, 1, n // 2, dtype=torch.float64)[:, None].expand(-1, 2)
    values = {"residual": size * residual.reshape(-1, 2), "epistemic": one, "novelty": novelty * one}
    return CalibrationRows.of(torch.arange(2), **values, measures=measures)


def near_and_far(c: Calibration) -> list[float]:
    """V of E = 1 among the rows and far from them, of the first output."""
    one = torch.ones(1, 2, dtype=torch.float64)
    raw = {name: 0 * one for name in ("noise", "log_kappa", *LOGS)} | {"epistemic": one, "novelty": one}
    return [float(c.scale(SimpleNamespace(**raw), one, u * one)[0, 0]) for u in (1.0, 0.0)]


def test_left_out_rows_set_the_scale_near_the_data_and_left_out_clusters_far_away():
    shape, near, far = Shape(2, (1,)), held_out(size=0.1), held_out(size=3.0, novelty=0.9, seed=1)
    for c in Regression().calibrate(near, shape, None):
        assert near_and_far(c) == pytest.approx([0.01, 1.0], rel=0.3)
    both = Regression().calibrate(near, shape, None, far=far)
    for c in both:
        assert near_and_far(c)[0] == pytest.approx(0.01, rel=0.3)
        assert 3.0 < near_and_far(c)[1] < 10.0  # 9, pulled towards 1
    # nothing tells that the corrected mean is better
    assert [float(c.shift) for c in both] == [0.0, 0.0, 0.0, 1.0]
    assert both[0] is both[2]


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
    draws = Draws()
    residual, other, novelty = draws.normal(700, 2), draws.normal(700, 2), 0.1 * draws.uniform(700, 1)
    values = {"residual": residual, "residual_mean": residual + 1e-3 * other, "novelty": novelty}
    values |= {"epistemic": torch.full_like(residual, 1e-2), "noise": torch.full_like(residual, 1e-3)}
    rows = CalibrationRows.of(torch.arange(2), **values)
    own, corrected, *_ = Regression().calibrate(rows, Shape(2, (1,)), None)
    alone = fit_calibration(rows, initial_calibration(rows, 2, corrected=False))
    assert held_out_loss(own, rows) <= held_out_loss(alone, rows)
    assert held_out_loss(own, rows) < held_out_loss(corrected, rows) + math.log(2) + 0.05
    assert (float(own.shift), float(corrected.shift)) == (0.0, 1.0)
