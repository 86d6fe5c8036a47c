"""Networks trained like the one given, their seconds and their bytes."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from trustgp_experiments.core.recipes import mlp_recipe
from trustgp_experiments.peers import Bundle, fit_methods, train
from trustgp_experiments.peers.bundle import fresh_like
from trustgp_experiments.peers.size import shipped_bytes


def rows(n: int = 60, outputs: int = 2):
    inputs = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return inputs, torch.stack([inputs.sum(dim=1).sin()] * outputs, dim=1)


@pytest.fixture(params=[False, True], ids=["one by one", "together"])
def bundle(request) -> Bundle:
    recipe = mlp_recipe([3, 8, 2], activation=nn.Tanh, epochs=2, batch_size=16, together=request.param)
    inputs, targets = rows()
    train, validation = (inputs[:40], targets[:40]), (inputs[40:], targets[40:])
    return recipe.bundle(train, validation, seed=1, dropout=0.1, device="cpu")


def test_a_network_of_the_same_seed_is_trained_as_train_would(bundle):
    (found,) = bundle.trained_like(seeds=[7])
    fresh = fresh_like(bundle.network, seed=7)
    expected = train(fresh, *bundle.train, seed=7, epochs=2, batch_size=16, learning_rate=3e-3)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value)
    assert not torch.equal(found[0].weight, bundle.network[0].weight)


def test_the_last_layer_may_have_other_outputs_and_the_loss_is_given(bundle):
    def loss(outputs, targets):
        return (outputs[:, :2] - targets).abs().mean() + outputs[:, 2:].square().mean()

    found = bundle.trained_like(seeds=[1, 2], outputs=5, loss=loss)
    assert [one(bundle.train[0]).shape for one in found] == [(40, 5), (40, 5)]
    assert not torch.equal(found[0][0].weight, found[1][0].weight)
    assert bundle.network(bundle.train[0]).shape == (40, 2)


def test_seconds_of_networks_are_known_and_shown_by_method(bundle):
    assert set(bundle.seconds) == {"network", "ensemble", "dropout"}
    assert all(seconds > 0 for seconds in bundle.seconds.values())
    names = ["network + noise", "ensemble of 5", "MC-dropout 20"]
    alone, five, dropping = fit_methods(bundle, names)
    assert alone.training_seconds == 0.0
    assert five.training_seconds == bundle.seconds["ensemble"]
    assert dropping.training_seconds == bundle.seconds["dropout"]


def test_weights_that_cannot_be_drawn_anew_are_named():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    with pytest.raises(ValueError, match="reset_parameters"):
        fresh_like(nn.Sequential(Odd(), nn.Linear(3, 1)), seed=0)


def test_bytes_are_those_of_the_tensors_each_storage_once():
    @dataclass
    class Peer:
        network: nn.Module
        again: nn.Module
        values: dict

    network, whole = nn.Linear(3, 2), torch.zeros(100)
    own = 4 * (3 * 2 + 2)
    assert shipped_bytes(Peer(network, network, {})) == own
    # of a storage that is looked at in parts, the parts
    assert shipped_bytes(Peer(network, network, {"a": [whole[:5]], "b": (whole[5:9],)})) == own + 36
