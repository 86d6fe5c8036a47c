"""The light default against a slow float64 reference of the same form, a row at a time."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from reliability.test_10_degenerate_data import calibrated
from shared_fixtures import trained
from torch import nn
from witness_reference import witness_opinion

import trustgp
from trustgp.experts.whole import RIDGE
from trustgp.tangents.network import prepare
from trustgp.tangents.sketch import OutputSketchMap


@pytest.fixture(scope="module", params=["chain", "convolutions"])
def fitted(request):
    torch.manual_seed(0)
    inputs = torch.randn(700, 12)
    targets = torch.stack([inputs[:, 0].sin() + inputs[:, 1], inputs[:, 2] * inputs[:, 3]], dim=1)
    targets = targets + 0.1 * torch.randn(targets.shape)
    if request.param == "chain":
        network = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 2))
    else:
        convolution = nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 8, 3)
        network = nn.Sequential(*convolution, nn.Tanh(), nn.Flatten(), nn.Linear(80, 2))
    network = trained(network, inputs[:500], targets[:500], steps=150)
    rows = (inputs[:500], targets[:500])
    model = trustgp.fit(network, rows, validation=(inputs[500:600], targets[500:600]), progress=False)
    return network, model, torch.cat([inputs[600:610], 3 * inputs[600:610]])


def in_double(model, network):
    """The network, and its tangents, in float64."""
    double = prepare(copy.deepcopy(network).double(), "all", None)
    state = model.mixtures[0].tangents.state().items()
    state = {k: v.double() if v.is_floating_point() else v for k, v in state}
    return double, model.origin.tangents.restore(double, state)


def variance_of(model, double, plain, row):
    """About the network's output, of one row [1, d], from what the model holds."""
    mixture = model.mixtures[0]
    phi = plain(row.double()).rows[0]
    projection = mixture.gate.projection
    place = phi @ projection.directions.double() - projection.offset if projection is not None else phi[:0]
    label = 0 if projection is None else int((mixture.gate.centroids - place).norm(dim=1).argmin())
    expert = mixture.experts[label]
    basis = expert.posterior.basis.double()
    inside = basis.T @ phi
    unit = (phi - basis @ inside).square().sum() + (expert.posterior.shrinkage * inside.square()).sum()
    novelty = float(unit / phi.square().sum())
    mean = phi @ expert.posterior.weights
    with torch.no_grad():
        output = double.module(row.double())[0]
    table = {name: getattr(model.witness, name) for name in type(model.witness).__dataclass_fields__}
    opinion = (one[0] for one in witness_opinion(table, row.double()))
    second, _, nu, precision, distance, nearby = opinion
    c = model.calibrations[0]
    raw, outputs = unit * expert.scale + expert.noise, torch.arange(len(second))
    whole, leverage = mixture.whole, torch.ones(len(second), dtype=torch.float64)
    measures = torch.stack([nu, distance])[None].log()
    if whole is not None:  # the convolutions have few gradients, and no sketch
        each = OutputSketchMap(plain)(row.double()).by_output[0]
        basis, ridge = whole.basis.double(), RIDGE * whole.values[-1]
        inverse = torch.linalg.inv((basis * (whole.values + ridge)) @ basis.T)
        leverage = torch.einsum("cd,de,ce->c", each, inverse, each) * whole.units**2 / whole.typical
    given = mixture.log_kappa[label], outputs, measures
    scaled = calibrated(c, raw[None], *given, log_leverage=leverage.log(), log_noise=nearby.log())[0]
    gain = c.trust * precision * scaled
    expected = (c.weight * mean + gain * (second - output)) / (1 + gain)
    left = (1 + gain) / (1 + gain**2)
    assert float(c.shift) == 0
    return left * scaled + c.excess * expected**2 + c.share * c.spread, novelty, label


def with_growth(model):
    """The same, with A, and novel where these rows are."""
    own, *others = model.calibrations
    growth, tails = torch.tensor(0.7, dtype=torch.float64), own.tails.clone()
    tails[0] -= 0.5
    planted = {"growth": growth, "tails": tails}
    changed = copy.copy(model)
    changed.state = replace(model.state, calibrations=(replace(own, **planted), *others))
    return changed


@pytest.mark.parametrize("planted", [False, True], ids=["as fitted", "with growth"])
def test_a_prediction_is_that_of_the_reference(fitted, planted):
    network, model, inputs = fitted
    model = with_growth(model) if planted else model
    prediction = model.predict(inputs)
    assert torch.equal(prediction.mean, network(inputs))
    assert model.num_experts > 1
    c = model.calibrations[0]  # else some of the formula would not be seen
    assert float(prediction.score.max()) > 6 > float(prediction.score.min())
    assert (float(c.weights[1]) > 0) == (model.mixtures[0].whole is not None)
    assert float(c.weights[2]) > 0
    assert float(c.share) > 0
    double = in_double(model, network)
    for i, row in enumerate(inputs.split(1)):
        alone = model.predict(row)
        variance, novelty, label = variance_of(model, *double, row)
        assert int(prediction.expert[i]) == int(alone.expert[0]) == label
        for value in (prediction.variance[i], alone.variance[0]):
            torch.testing.assert_close(value.double(), variance, rtol=1e-5, atol=0)
        assert math.isclose(float(alone.novelty[0]), novelty, rel_tol=1e-4)
