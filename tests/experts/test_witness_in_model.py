"""The witness in a model: where it changes predictions, what it leaves as it was, sizes, files."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import trustgp
from trustgp import Witness, evaluate
from trustgp.experts.witness_fit import groups_left_out
from trustgp.fitting.calibrate import _left_out
from trustgp.fitting.plan import WITNESS_SHARE
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
    assert float((one.corrected.mean - other.corrected.mean).abs().min()) > 0
    assert_close_predictions(cells.predict(40 * inputs), unweighted.predict(40 * inputs), rtol=1e-12)
    for name in PARTS:  # the paper's variance, and the novelty, are the experts'
        assert torch.equal(getattr(one.plain, name), getattr(other.plain, name))
    assert torch.equal(one.novelty, other.novelty)
    model = copy.copy(cells)
    distrusted = tuple(replace(c, trust=torch.zeros_like(c.trust)) for c in cells.calibrations)
    model.state = replace(cells.state, calibrations=distrusted)
    assert_close_predictions(model.predict(inputs), other, rtol=1e-12)


def test_targets_of_pure_noise_are_not_followed(toy, make_mlp):
    generator = torch.Generator().manual_seed(0)
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
    rows, scores, places = _left_out(model.state, model.memory)
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
    assert torch.equal(scores, rows.novelty.reshape(160, 2).mean(dim=1)[own.argsort()])
    assert torch.equal(model.held_scores, scores)


def test_validation_rows_have_the_witness_of_predictions(cells, case, toy):
    inputs, targets = toy(20, seed=7)
    rows = cells.state.likelihood.calibration_rows(*predict_uncalibrated(cells.state, inputs), targets)
    predicted = cells.witness(inputs)
    with torch.no_grad():
        assert torch.equal(rows.witness_mean, (predicted.mean - case.network(inputs)).flatten())
    assert torch.equal(rows.witness_precision, predicted.precision.flatten())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_is_the_networks_output_to_the_bit(case, fit_case, dtype):
    network = copy.deepcopy(case.network).to(dtype)
    rows = case.inputs.to(dtype), case.targets.to(dtype)
    p = fit_case(network=network, train=rows, witness=Witness(rows=40), validation=rows).predict(rows[0])
    with torch.no_grad():
        assert torch.equal(p.mean, network(rows[0]))
    assert p.corrected.mean.dtype == p.variance.dtype == dtype
    assert not torch.equal(p.corrected.mean, p.mean)


def test_a_budget_bounds_it_in_a_fit_and_after_updates(fit_case, toy):
    sizes = []
    for budget in (170_000, 250_000, 10**8):
        model = fit_case(budget=budget)
        assert model.nbytes <= budget
        sizes.append(0 if model.witness is None else model.witness.nbytes)
        assert sizes[-1] <= WITNESS_SHARE * budget
    assert sizes == sorted(sizes)
    assert sizes[-1] == fit_case().witness.nbytes
    model = fit_case(budget=10**6)
    before = model.witness.nbytes
    for seed in (41, 42):
        model.update(toy(300, seed=seed), progress=False)
        assert model.nbytes <= 10**6
        assert model.witness.nbytes <= before
    assert int(model.witness.rows.max()) >= 460  # new rows are among them


def test_a_file_has_it_and_a_loaded_model_is_updated_as_the_saved_one(
    alone, cells, fit_case, case, toy, tmp_path, assert_same_state
):
    alone.save(tmp_path / "without")
    cells.save(tmp_path / "with")
    assert (tmp_path / "with").stat().st_size > (tmp_path / "without").stat().st_size
    assert trustgp.load(tmp_path / "without", case.network).witness is None
    loaded, model = trustgp.load(tmp_path / "with", case.network), fit_case(witness=Witness(rows=30))
    assert loaded.origin.witness == Witness(rows=30)
    assert_close_predictions(loaded.predict(case.inputs), cells.predict(case.inputs), rtol=0, atol=0)
    inputs, targets = toy(40, seed=31)
    inputs = inputs + 4.0
    before = model.witness(inputs).precision
    model.update((inputs, targets), progress=False)
    assert bool((model.witness(inputs).precision > before).all())
    assert torch.equal(model.witness.centroids, cells.witness.centroids)
    loaded.update((inputs, targets), train=(case.inputs, case.targets), progress=False)
    assert_same_state(loaded, model)


class Average(nn.Module):
    """Takes any number of columns."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 2)

    def forward(self, x):
        return self.line(x.mean(dim=1, keepdim=True))


def test_inputs_of_another_width_are_refused(toy):
    inputs, targets = toy(60, seed=0)
    model = trustgp.fit(Average().double().eval(), (inputs, targets), progress=False)
    with pytest.raises(ValueError, match="inputs hold 2 numbers a row; the witness was fitted on 3"):
        model.predict(inputs[:, :2])


def test_a_mean_that_overflows_is_invalid(cells, toy):
    model, witness = copy.copy(cells), cells.witness
    huge = {name: torch.full_like(getattr(witness, name), 1e308) for name in ("targets", "centre")}
    model.state = replace(cells.state, witness=replace(witness, **huge))
    p = model.predict(toy(5, seed=5)[0])
    assert not bool(p.valid.any())
    assert bool(torch.isinf(p.variance).all())
    assert not math.isnan(float(p.corrected.variance.sum()))
