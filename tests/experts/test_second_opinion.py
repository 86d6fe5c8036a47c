"""What the witness does to a model: where it is heard, where it is silent, and what stays as it was."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import trustgp
from trustgp import Threads, Witness, evaluate
from trustgp.experts.witness_fit import groups_left_out
from trustgp.fitting.calibrate import _left_out
from trustgp.fitting.plan import WITNESS_SHARE
from trustgp.state.model_state import answers

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
def unheard(alone, cells):
    """The model without a witness, calibrated as the one with it."""
    model = copy.copy(alone)
    model.state = replace(alone.state, calibrations=cells.calibrations)
    return model


def assert_close_predictions(one, other, rtol=1e-9, atol=1e-12):
    for a, b in ((one, other), (one.corrected, other.corrected), (one.plain, other.plain)):
        for name in PARTS:
            torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=rtol, atol=atol, msg=name)


# heard and silent


def test_there_is_one_unless_it_is_not_wanted(fitted, alone):
    assert fitted.witness is not None
    assert alone.witness is None
    assert fitted.origin.witness == Witness()
    assert alone.origin.witness is None


def test_the_experts_are_the_same_with_and_without(cells, alone, state_of):
    with_it, without = state_of(cells), state_of(alone)
    assert without.keys() == {name for name in with_it if not name.startswith("witness.")}
    different = [name for name in without if not torch.equal(with_it[name], without[name])]
    assert all(name.startswith("calibration.") for name in different)  # left-out rows hear it
    assert "calibration.0.trust" in different


def test_near_the_rows_it_is_heard_and_far_away_the_experts_speak_alone(cells, unheard, toy):
    near = toy(30, seed=5)[0]
    one, other = cells.predict(near), unheard.predict(near)
    assert float((one.corrected.mean - other.corrected.mean).abs().min()) > 0
    assert_close_predictions(cells.predict(40 * near), unheard.predict(40 * near), rtol=1e-12)
    for name in PARTS:  # the paper's variance, and the novelty, are the experts'
        assert torch.equal(getattr(one.plain, name), getattr(other.plain, name))
    assert torch.equal(one.novelty, other.novelty)


def test_without_trust_the_experts_speak_alone(cells, unheard, toy):
    model = copy.copy(cells)
    silenced = tuple(replace(c, trust=torch.zeros_like(c.trust)) for c in cells.calibrations)
    model.state = replace(cells.state, calibrations=silenced)
    inputs = toy(30, seed=5)[0]
    assert_close_predictions(model.predict(inputs), unheard.predict(inputs), rtol=1e-12)


def test_it_finds_the_errors_of_a_network_that_has_learnt_its_rows_by_heart(toy, make_mlp):
    """Residuals of nearly nothing on the training rows, and errors on all others."""
    inputs, targets = toy(120, seed=1)
    network = make_mlp(width=64, seed=3)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(500):
        optimiser.zero_grad()
        loss = (network(inputs) - targets).square().mean()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 2e-3
    new, held = toy(300, seed=2), toy(100, seed=3)
    options = {"validation": held, "progress": False}
    alone, heard = (
        evaluate(trustgp.fit(network, (inputs, targets), witness=w, **options), new, progress=False).corrected
        for w in (None, Witness(neighbours=60))  # of few rows that are smooth, many tell more
    )
    assert alone.mse > 0.02
    assert heard.mse < 0.7 * alone.mse
    assert heard.nll < alone.nll - 0.1
    assert heard.coverage == pytest.approx(0.95, abs=0.04)


def test_of_noise_it_makes_nothing(toy, make_mlp):
    """Targets that have nothing to do with the inputs: the corrected mean must not follow them."""
    generator = torch.Generator().manual_seed(0)
    inputs, held, new = (toy(n, seed=n)[0] for n in (150, 250, 400))
    noise = [torch.randn(len(x), 2, generator=generator).double() for x in (inputs, held, new)]
    network = make_mlp()
    with torch.no_grad():
        network[4].weight.zero_()
        network[4].bias.zero_()  # the best there is
    model = trustgp.fit(network, (inputs, noise[0]), validation=(held, noise[1]), progress=False)
    found = evaluate(model, (new, noise[2]), progress=False)
    assert found.corrected.mse < 1.03 * found.mse
    assert found.coverage == pytest.approx(0.95, abs=0.03)
    assert found.corrected.coverage == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("groups", [None, torch.arange(160) // 16], ids=["rows", "groups"])
def test_rows_that_are_left_out_hear_it_with_themselves_or_their_group_left_out(fit_case, case, groups):
    model = fit_case(groups=groups, witness=Witness(rows=40))
    every = torch.arange(160)
    said = groups_left_out(model.witness, every if groups is None else groups, every)
    held, scores, places = _left_out(model.state, model.memory)
    assert torch.equal(places, every)
    own = torch.cat([expert.rows[: int(expert.own)] for expert in model.mixtures[0].experts])
    assert sorted(own.tolist()) == every.tolist()
    # target less residual is the output of the network as if it had been trained without the group
    output = case.targets[own].flatten() - held.residual
    torch.testing.assert_close(held.witness_mean, said.mean[own].flatten() - output, rtol=1e-9, atol=1e-12)
    assert torch.equal(held.witness_precision, said.precision[own].flatten())
    assert torch.equal(held.output, torch.arange(2).repeat(160))
    labels = torch.cat([torch.full((int(e.own),), i) for i, e in enumerate(model.mixtures[0].experts)])
    assert torch.equal(held.log_kappa, model.mixtures[0].log_kappa[labels].flatten())
    assert torch.equal(scores, held.novelty.reshape(160, 2).mean(dim=1)[own.argsort()])
    assert torch.equal(model.held_scores, scores)


def test_validation_rows_hear_it_as_predictions_do(cells, case, toy):
    inputs, targets = toy(20, seed=7)
    held = cells.state.likelihood.calibration_rows(*answers(cells.state, inputs), targets)
    said = cells.witness(inputs)
    with torch.no_grad():
        outputs = case.network(inputs)
    assert torch.equal(held.witness_mean, (said.mean - outputs).flatten())
    assert torch.equal(held.witness_precision, said.precision.flatten())


# what stays as it was


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_is_the_networks_output_to_the_bit(case, fit_case, dtype):
    network = copy.deepcopy(case.network).to(dtype)
    rows = case.inputs.to(dtype), case.targets.to(dtype)
    model = fit_case(network=network, train=rows, witness=Witness(rows=40), validation=rows)
    p = model.predict(rows[0])
    with torch.no_grad():
        assert torch.equal(p.mean, network(rows[0]))
    assert p.corrected.mean.dtype == p.variance.dtype == dtype
    assert not torch.equal(p.corrected.mean, p.mean)


def test_a_row_is_predicted_the_same_in_any_company_and_order(cells, toy):
    inputs = toy(60, seed=5)[0]
    whole = cells.predict(inputs)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    for index in (order, order[:9], order[:1]):
        again = cells.predict(inputs[index])
        for a, b in ((again, whole), (again.corrected, whole.corrected)):
            for name in PARTS:
                expected = getattr(b, name)[index]
                torch.testing.assert_close(getattr(a, name), expected, rtol=1e-9, atol=1e-12)


def test_a_row_of_nan_leaves_the_others_as_they_are_to_the_bit(cells, toy):
    inputs = toy(20, seed=5)[0]
    spoiled = torch.cat([inputs[:5], torch.full((1, 3), torch.nan).double(), inputs[5:]])
    keep = torch.arange(21) != 5
    alone, among = cells.predict(inputs), cells.predict(spoiled)
    assert not bool(among.valid[5])
    for a, b in ((among, alone), (among.corrected, alone.corrected)):
        for name in PARTS:
            assert torch.equal(getattr(a, name)[keep], getattr(b, name)), name


IN_UNITS = {"num_experts": 1, "witness": Witness(rows=40)}


@pytest.fixture(scope="module")
def in_usual_units(fit_case, toy):
    """A witness in the units of the case."""
    return fit_case(validation=toy(100, seed=6), **IN_UNITS).witness


@pytest.mark.parametrize(("inputs", "targets"), [(1e6, 1.0), (1e-6, 1.0), (1.0, 1e8), (1.0, 1e-8)])
def test_units_do_not_matter(case, fit_case, in_usual_units, toy, inputs, targets):
    network = copy.deepcopy(case.network)
    with torch.no_grad():
        network[0].weight /= inputs
        network[4].weight *= targets
        network[4].bias *= targets
    x, held = toy(30, seed=5)[0], toy(100, seed=6)
    plain = in_usual_units(x)
    train = (inputs * case.inputs, targets * case.targets)
    validation = (inputs * held[0], targets * held[1])
    other = fit_case(network=network, train=train, validation=validation, **IN_UNITS).witness(inputs * x)
    torch.testing.assert_close(targets * plain.mean, other.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(targets**2 * plain.variance, other.variance, rtol=1e-6, atol=0)
    torch.testing.assert_close(plain.precision, targets**2 * other.precision, rtol=1e-5, atol=0)


def test_any_number_of_threads_gives_the_same_model(fit_case, assert_same_state, toy):
    before = torch.get_num_threads()
    models = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            groups = torch.arange(160) // 20
            models.append(fit_case(witness=Witness(rows=40), groups=groups, executor=Threads(count)))
    finally:
        torch.set_num_threads(before)
    assert_same_state(*models)


# inputs of other kinds


class Pair(nn.Module):
    """Takes a vector and a number, by name."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, a, b):
        return self.network(torch.cat([a, b[:, None]], dim=1))


def test_tuples_and_dicts_in_any_order_are_the_same_rows(case, fit_case, cells):
    a, b = case.inputs[:, :2], case.inputs[:, 2]
    expected = cells.predict(case.inputs)
    options = {"network": Pair(case.network), "witness": Witness(rows=30)}
    pair = fit_case(train=((a, b), case.targets), **options)
    named = fit_case(train=({"a": a, "b": b}, case.targets), **options)
    for p in (pair.predict((a, b)), named.predict({"a": a, "b": b}), named.predict({"b": b, "a": a})):
        torch.testing.assert_close(p.corrected.mean, expected.corrected.mean, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(p.variance, expected.variance, rtol=1e-9, atol=0)


def test_whole_numbers_are_not_spoken_of(fit_case, case):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(5, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.embed(x).tanh())

    numbers = torch.arange(160) % 5
    model = fit_case(network=Table().double().eval(), train=(numbers, case.targets), num_experts=1)
    assert model.witness is None
    assert model.origin.witness == Witness()
    assert bool(torch.isfinite(model.predict(numbers).variance).all())


def test_few_rows_are_not_spoken_of(fit_case, case):
    assert fit_case(train=(case.inputs[:49], case.targets[:49])).witness is None
    assert fit_case(train=(case.inputs[:50], case.targets[:50])).witness is not None


# what it may hold


def test_within_a_budget_it_takes_at_most_its_share(fit_case, toy):
    found = []
    for budget in (170_000, 250_000, 10**6, 10**8):
        model = fit_case(budget=budget)
        assert model.nbytes <= budget
        if model.witness is not None:
            assert model.witness.nbytes <= WITNESS_SHARE * budget
        found.append(0 if model.witness is None else model.witness.nbytes)
    assert found == sorted(found)
    assert found[-1] == fit_case().witness.nbytes


def test_a_budget_holds_with_it_after_many_more_rows(fit_case, toy):
    model = fit_case(budget=10**6)
    held = model.witness.nbytes
    for seed in (1, 2):
        model.update(toy(300, seed=40 + seed), progress=False)
        assert model.nbytes <= 10**6
        assert model.witness.nbytes <= held
    assert int(model.witness.rows.max()) >= 460  # new rows are among them


def test_an_update_makes_it_better_where_the_new_rows_are(cells, fit_case, toy):
    model = fit_case(witness=Witness(rows=30))
    inputs, targets = toy(40, seed=31)
    inputs = inputs + 4.0
    before = model.witness(inputs).precision
    model.update((inputs, targets), progress=False)
    assert bool((model.witness(inputs).precision > before).all())
    assert torch.equal(model.witness.centroids, cells.witness.centroids)


# files


def test_a_file_without_one_holds_none_of_its_tensors(alone, cells, case, tmp_path):
    alone.save(tmp_path / "alone")
    cells.save(tmp_path / "heard")
    sizes = [(tmp_path / name).stat().st_size for name in ("alone", "heard")]
    assert sizes[1] > sizes[0]
    assert trustgp.load(tmp_path / "alone", case.network).witness is None
    loaded = trustgp.load(tmp_path / "heard", case.network)
    assert loaded.origin.witness == Witness(rows=30)
    assert_close_predictions(loaded.predict(case.inputs), cells.predict(case.inputs), rtol=0, atol=0)


def test_a_loaded_model_is_updated_as_the_one_that_was_saved(
    fit_case, case, toy, tmp_path, assert_same_state
):
    model = fit_case(witness=Witness(rows=30))
    model.save(tmp_path / "arm")
    loaded = trustgp.load(tmp_path / "arm", case.network)
    added = toy(15, seed=31)
    model.update(added, progress=False)
    loaded.update(added, train=(case.inputs, case.targets), progress=False)
    assert_same_state(loaded, model)


def test_inputs_of_another_width_are_refused(toy):
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(1, 2)

        def forward(self, x):  # any number of columns
            return self.line(x.mean(dim=1, keepdim=True))

    inputs, targets = toy(60, seed=0)
    model = trustgp.fit(Average().double().eval(), (inputs, targets), progress=False)
    with pytest.raises(ValueError, match="inputs hold 2 numbers a row; the witness was fitted on 3"):
        model.predict(inputs[:, :2])


def test_a_mean_that_overflows_is_no_answer(cells, toy):
    model = copy.copy(cells)
    targets, centre = (
        torch.full_like(value, 1e308) for value in (cells.witness.targets, cells.witness.centre)
    )
    model.state = replace(cells.state, witness=replace(cells.witness, targets=targets, centre=centre))
    p = model.predict(toy(5, seed=5)[0])
    assert not bool(p.valid.any())
    assert bool(torch.isinf(p.variance).all())
    assert not math.isnan(float(p.corrected.variance.sum()))
