import math
from dataclasses import fields, replace

import pytest
import torch
from reference import calibrated_scale, two_opinions
from torch import nn

import trustgp
from trustgp.experts.mixture import LatentPrediction
from trustgp.likelihoods import KINDS, Regression, Shape
from trustgp.math.calibration import Calibration, CalibrationRows

SEED = torch.Generator().manual_seed(0)


def uniform(*shape):
    return torch.rand(shape, generator=SEED, dtype=torch.float64) + 0.1


OUTPUTS = uniform(4, 2)
SILENT = torch.zeros(4, 2, dtype=torch.float64)
RAW = LatentPrediction(
    uniform(4, 2),
    uniform(4, 2),
    uniform(4, 2),
    uniform(4, 2),
    uniform(4, 2) / 2,
    torch.arange(4)[:, None],
    SILENT,
    SILENT,
)
HEARD = replace(RAW, witness_mean=uniform(4, 2), witness_precision=uniform(4, 2))


def calibration(fade, onset, level, excess, shift, reach=0.3, weight=1.0, trust=None, rare=None):
    trust = [1.0] * len(level) if trust is None else trust
    rare = [0.0] * len(level) if rare is None else rare
    values = (fade, onset, level, excess, reach, shift, weight, trust, rare)
    return Calibration(*(torch.tensor(v, dtype=torch.float64) for v in values))


OWN, CORRECTED = (
    calibration(0.7, 1.3, [0.5, 2.0], 0.9, 0.0, weight=0.8, trust=[0.3, 1.7], rare=[0.2, 0.0]),
    calibration(0.6, 1.1, [0.8, 1.5], 0.4, 0.75, weight=1.2, trust=[2.0, 0.1], rare=[0.0, 3.0]),
)
PREDICTION = Regression().prediction(OUTPUTS, RAW, (OWN, CORRECTED))


def scales(c: Calibration) -> torch.Tensor:
    return torch.tensor(
        [
            [
                calibrated_scale(
                    float(c.fade),
                    float(c.onset),
                    float(c.level[j]),
                    float(RAW.novelty[i, j]),
                    float(RAW.log_kappa[i, j].exp()),
                    float(c.reach),
                )
                for j in range(2)
            ]
            for i in range(4)
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("about", ["own", "corrected"])
def test_every_part_of_the_variance_is_its_formula(about):
    p, c = (PREDICTION, OWN) if about == "own" else (PREDICTION.corrected, CORRECTED)
    torch.testing.assert_close(p.epistemic, scales(c) * RAW.epistemic, rtol=1e-10, atol=0)
    torch.testing.assert_close(p.aleatoric, scales(c) * RAW.noise, rtol=1e-10, atol=0)
    rest = (1 - float(c.shift)) ** 2
    expected = float(c.weight) * RAW.residual_mean
    torch.testing.assert_close(p.excess, float(c.excess) * rest * expected**2, rtol=1e-10, atol=0)
    torch.testing.assert_close(p.mean, OUTPUTS + float(c.shift) * expected, rtol=1e-10, atol=0)
    assert torch.equal(p.rare, c.rare.expand(4, 2))
    assert torch.equal(p.variance, p.epistemic + p.aleatoric + p.excess + p.rare)


@pytest.mark.parametrize("about", ["own", "corrected"])
def test_with_a_witness_every_part_is_that_of_two_opinions(about):
    prediction, c = Regression().prediction(OUTPUTS, HEARD, (OWN, CORRECTED)), OWN
    p = prediction
    if about == "corrected":
        p, c = prediction.corrected, CORRECTED
    before = scales(c) * (RAW.epistemic + RAW.noise)
    for i in range(4):
        for j in range(2):
            heard = (float(value[i, j]) for value in (HEARD.witness_mean, HEARD.witness_precision))
            mu, variance = two_opinions(
                float(before[i, j]),
                float(RAW.residual_mean[i, j]),
                float(c.weight),
                *heard,
                float(c.trust[j]),
            )
            share = float(RAW.epistemic[i, j] / (RAW.epistemic + RAW.noise)[i, j])
            assert float(p.epistemic[i, j]) == pytest.approx(share * variance, rel=1e-10)
            assert float(p.aleatoric[i, j]) == pytest.approx((1 - share) * variance, rel=1e-10)
            rest = float(c.excess) * (1 - float(c.shift)) ** 2
            assert float(p.excess[i, j]) == pytest.approx(rest * mu**2, rel=1e-10)
            mean = float(OUTPUTS[i, j]) + float(c.shift) * mu
            assert float(p.mean[i, j]) == pytest.approx(mean, rel=1e-10)
    assert torch.equal(prediction.mean, OUTPUTS)
    for name in ("epistemic", "aleatoric", "excess", "mean"):  # the paper knows of no witness
        assert torch.equal(getattr(prediction.plain, name), getattr(PREDICTION.plain, name))


def test_the_mean_is_the_networks_output_to_the_bit():
    assert torch.equal(PREDICTION.mean, OUTPUTS)
    assert torch.equal(PREDICTION.plain.mean, OUTPUTS)


def test_the_plain_variance_is_what_the_evidence_says():
    plain = PREDICTION.plain
    assert torch.equal(plain.epistemic, RAW.epistemic)
    assert torch.equal(plain.aleatoric, RAW.noise)
    assert torch.equal(plain.excess, torch.zeros(4, 2, dtype=torch.float64))
    assert torch.equal(plain.variance, RAW.epistemic + RAW.noise)


def test_shape_and_precision_are_those_of_the_outputs():
    raw = LatentPrediction(*(value[:, :1] for value in vars(RAW).values()))
    one = calibration(1.0, 1.0, [1.0], 1.0, 0.0)
    p = Regression().prediction(OUTPUTS[:, 0].float(), raw, (one, one))
    for name in ("mean", "variance", "std", "epistemic", "aleatoric", "excess"):
        assert getattr(p, name).shape == (4,)
        assert getattr(p, name).dtype == torch.float32
    assert p.novelty.shape == p.expert.shape == (4,)


def test_one_gate_gives_one_expert_a_row_and_several_give_one_each():
    assert PREDICTION.expert.tolist() == [0, 1, 2, 3]
    several = replace(RAW, expert=torch.arange(8).reshape(4, 2))
    assert Regression().prediction(OUTPUTS, several, (OWN, CORRECTED)).expert.shape == (4, 2)


def test_the_residual_is_target_minus_output_in_float64():
    residual = Regression().residual(torch.ones(2, 1), torch.full((2, 1), 3.0))
    assert residual.dtype == torch.float64
    assert residual.tolist() == [[2.0], [2.0]]


def test_whole_numbers_are_targets():
    Regression().check(1, torch.arange(3)[:, None], name="train")


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
    own, corrected = Regression().calibrate(None, Shape(3, (1,)), None)
    assert (float(own.shift), float(corrected.shift)) == (0.0, 1.0)
    for c in (own, corrected):
        assert [float(c.fade), float(c.onset), float(c.excess)] == [1.0, 1.0, 1.0]
        assert c.level.tolist() == c.trust.tolist() == [1.0] * 3
        assert float(c.weight) == 1.0


def test_what_the_rows_cannot_rule_out_is_kept_with_and_without_held_out_rows():
    targets, shape = uniform(10, 2), Shape(2, (1,))
    rare = targets.var(dim=0) / 20
    held = RAW.calibration_rows(OUTPUTS, torch.arange(2))
    for rows in (None, held):
        assert all(torch.equal(c.rare, rare) for c in Regression().calibrate(rows, shape, targets))
        assert all(c.rare.tolist() == [0.0, 0.0] for c in Regression().calibrate(rows, shape, None))


def test_every_likelihood_is_made_again_from_its_settings():
    for kind in KINDS.values():
        assert kind(**kind().settings()) == kind()


@pytest.mark.parametrize(("epistemic", "worse"), [(1.0, False), (1e4, True)])
def test_an_error_bar_worse_than_constant_noise_is_doubted_with_both_numbers(epistemic, worse):
    residual = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zeros = torch.zeros_like(residual)
    held = CalibrationRows(
        residual=residual,
        residual_mean=zeros,
        epistemic=zeros + epistemic,
        noise=zeros,
        novelty=zeros + 1.0,
        log_kappa=zeros,
        output=torch.arange(400) % 2,
        witness_mean=zeros,
        witness_precision=zeros,
    )
    calibrations = Regression().calibrate(None, Shape(2, (1,)), None)
    text = Regression().calibration_warning(held, calibrations)
    assert bool(text) == worse
    if worse:
        variances = [float(residual[k::2].square().mean()) for k in (0, 1)]
        constant = sum(0.5 * (math.log(2 * math.pi * v) + 1.0) for v in variances) / 2
        found = float(0.5 * (math.log(2 * math.pi * epistemic) + residual.square() / epistemic).mean())
        assert f"NLL {found:.2f} against {constant:.2f}" in text
    few = CalibrationRows(**{field.name: getattr(held, field.name)[:90] for field in fields(CalibrationRows)})
    assert Regression().calibration_warning(few, calibrations) == ""


def test_doubts_are_told_where_fit_and_update_are_called(monkeypatch):
    monkeypatch.setattr(Regression, "calibration_warning", lambda self, rows, calibrations: "a doubt")
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double().eval()
    rows = (uniform(40, 2), uniform(40, 2))
    with pytest.warns(UserWarning, match="a doubt") as fitted:
        model = trustgp.fit(network, rows, validation=rows, num_experts=1, progress=False)
    with pytest.warns(UserWarning, match="a doubt") as updated:
        model.update((uniform(5, 2), uniform(5, 2)), progress=False)
    for found in (fitted, updated):
        assert [one.filename for one in found if "a doubt" in str(one.message)] == [__file__]
