"""The witness in a model: where it changes predictions, what it leaves as it was."""

import copy
import math
from dataclasses import replace

import pytest
import torch

import trustgp
from trustgp import Witness, evaluate
from trustgp.experts.witness_fit import groups_left_out
from trustgp.fitting.calibrate import _left_out
from trustgp.math.quantiles import TailShares
from trustgp.state.model_state import predict_uncalibrated

PARTS = ("mean", "epistemic", "aleatoric", "excess", "novelty")


@pytest.fixture(scope="module")
def alone(fit_case):
    """The case's model without a witness."""
    return fit_case(witness=None)


@pytest.fixture(scope="module")
def cells(fit_case):
    """The case's model with a witness of several cells."""
    model = fit_case(witness=Witness(rows=30))
    assert len(model.witness.sizes) > 3
    return model


@pytest.fixture(scope="module")
def unweighted(alone, cells):
    """The model without a witness, calibrated as the one with it."""
    model = copy.copy(alone)
    model.state = replace(alone.state, calibrations=cells.calibrations)
    return model


def assert_close_predictions(one, other, rtol=1e-9, atol=1e-12, index=slice(None)):
    for a, b in ((one, other), (one.corrected, other.corrected), (one.plain, other.plain)):
        for name in PARTS:
            expected = getattr(b, name)[index]
            torch.testing.assert_close(getattr(a, name), expected, rtol=rtol, atol=atol, msg=name)


def test_the_experts_are_the_same_with_and_without(fitted, cells, alone, state_of):
    assert (fitted.origin.witness, alone.origin.witness) == (Witness(), None)
    assert fitted.witness is not None
    assert alone.witness is None
    with_it, without = state_of(cells), state_of(alone)
    assert without.keys() == {name for name in with_it if not name.startswith("witness.")}
    different = [name for name in without if not torch.equal(with_it[name], without[name])]
    assert all(name.startswith("calibration.") for name in different)
    assert "calibration.0.trust" in different


def test_far_away_or_without_trust_predictions_are_those_of_the_experts(cells, unweighted, toy):
    inputs = toy(30, seed=5)[0]
    one, other = cells.predict(inputs), unweighted.predict(inputs)
    assert float((one.std - other.std).abs().min()) > 0
    for name in PARTS:  # the paper's variance, and the novelty, are the experts'
        assert torch.equal(getattr(one.plain, name), getattr(other.plain, name))
    assert torch.equal(one.novelty, other.novelty)
    far = [replace(c, tails=TailShares.novel().table) for c in cells.calibrations]
    distrusted = tuple(replace(c, trust=torch.zeros_like(c.trust)) for c in far)
    for rows, calibrations in ((40 * inputs, tuple(far)), (inputs, distrusted)):
        both = [copy.copy(model) for model in (cells, unweighted)]
        for model in both:
            model.state = replace(model.state, calibrations=calibrations)
        assert_close_predictions(both[0].predict(rows), both[1].predict(rows), rtol=1e-12)


def test_targets_of_pure_noise_are_not_followed(toy, make_mlp, generator):
    inputs, validation, new = (toy(n, seed=n)[0] for n in (150, 250, 400))
    noise = [torch.randn(len(x), 2, generator=generator).double() for x in (inputs, validation, new)]
    network = make_mlp()
    with torch.no_grad():
        network[4].weight.zero_()
        network[4].bias.zero_()
    model = trustgp.fit(network, (inputs, noise[0]), validation=(validation, noise[1]), progress=False)
    report = evaluate(model, (new, noise[2]), progress=False)
    assert report.corrected.mse < 1.03 * report.mse
    assert report.coverage == pytest.approx(0.95, abs=0.03)
    assert report.corrected.coverage == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("groups", [None, torch.arange(160) // 16], ids=["rows", "groups"])
def test_calibration_rows_have_the_witness_without_themselves_or_their_group(fit_case, case, groups):
    model, every = fit_case(groups=groups, witness=Witness(rows=40)), torch.arange(160)
    predicted = groups_left_out(model.witness, every if groups is None else groups, every)
    rows, measures, places = _left_out(model.state, model.memory)
    assert torch.equal(places, every)
    own = torch.cat([expert.rows[: int(expert.own)] for expert in model.mixtures[0].experts])
    assert sorted(own.tolist()) == every.tolist()
    # target less residual is the output of the network as if it had been trained without the group
    output = case.targets[own].flatten() - rows.residual
    expected = predicted.mean[own].flatten() - output
    torch.testing.assert_close(rows.witness_mean, expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(rows.witness_precision, predicted.precision[own].flatten())
    assert torch.equal(rows.output, torch.arange(2).repeat(160))
    labels = torch.cat([torch.full((int(e.own),), i) for i, e in enumerate(model.mixtures[0].experts)])
    assert torch.equal(rows.log_kappa, model.mixtures[0].log_kappa[labels].flatten())
    expected = torch.stack([predicted.novelty, predicted.distance], dim=1).clamp_min(1e-12).log()
    torch.testing.assert_close(measures, expected, rtol=1e-12, atol=0)
    assert torch.equal(rows.measures, expected[own].repeat_interleave(2, dim=0))
    assert torch.equal(rows.log_noise, predicted.noise[own].log().flatten())
    assert torch.equal(rows.target, case.targets[own].flatten())
    assert torch.equal(model.held_scores, model.calibrations[0].nearness(measures)[1])


def test_validation_rows_have_the_witness_of_predictions(cells, case, toy):
    inputs, targets = toy(20, seed=7)
    rows = cells.state.likelihood.calibration_rows(*predict_uncalibrated(cells.state, inputs), targets)
    predicted = cells.witness(inputs)
    assert torch.equal(rows.witness_mean, (predicted.mean - case.network(inputs)).flatten())
    assert torch.equal(rows.witness_precision, predicted.precision.flatten())


def test_a_mean_that_overflows_is_invalid(cells, toy):
    model, witness = copy.copy(cells), cells.witness
    huge = {name: torch.full_like(getattr(witness, name), 1e308) for name in ("targets", "centre")}
    model.state = replace(cells.state, witness=replace(witness, **huge))
    p = model.predict(toy(5, seed=5)[0])
    assert not bool(p.valid.any())
    assert bool(torch.isinf(p.variance).all())
    assert not math.isnan(float(p.corrected.variance.sum()))
