"""Promise 41: logits on a wrong scale are noticed."""

import warnings

import pytest
import torch
from draws import Draws
from reliability.helpers import mlp, quiet_fit
from tiny_networks import adam
from torch.nn.functional import cross_entropy
from zoo import Net

CENTRES = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def classes():
    """A network of three overlapping classes, its training rows, and rows it was not trained on."""
    draws = Draws()
    labels = draws.whole(0, 3, 500)
    x = CENTRES[labels] + draws.normal(500, 2)
    network = adam(mlp(2, 8, 3), lambda net: cross_entropy(net(x[:250]), labels[:250]), 150, 0.02)
    return network, (x[:250], labels[:250]), (x[250:], labels[250:])


@pytest.mark.parametrize(("factor", "warned"), [(1.0, False), (1e-3, True), (1e3, True)])
def test_a_temperature_far_from_one_warns(classes, factor, warned):
    network, train, validation = classes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaled = Net(lambda net, x: factor * net.network(x), network=network)
        quiet_fit(scaled, train, validation=validation, likelihood="classification")
    found = ["no logits of a cross entropy, or on another scale" in str(one.message) for one in caught]
    assert any(found) == warned
