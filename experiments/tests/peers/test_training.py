"""Training, alone and together."""

import copy

import pytest
import torch
from torch import nn

from trustgp_experiments.peers import mlp, train, train_many


def rows(n: int = 90):
    inputs = torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    return inputs, torch.stack([inputs[:, 0].sin(), inputs.prod(1)], dim=1)


def same_weights(a: nn.Module, b: nn.Module, **tolerance) -> None:
    for (name, x), (other, y) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert name == other
        torch.testing.assert_close(x, y, **tolerance)


OPTIONS = {"epochs": 10, "batch_size": 16, "learning_rate": 0.01, "weight_decay": 0.01}


def test_many_networks_train_as_each_would_alone():
    inputs, targets = rows()
    starts = [mlp([2, 16, 16, 2], activation=nn.SiLU, seed=seed) for seed in (3, 4, 5)]
    starts = [start.double() for start in starts]
    inputs, targets = inputs.double(), targets.double()
    together = train_many(starts, inputs, targets, seeds=[7, 8, 9], **OPTIONS)
    for start, seed, found in zip(starts, (7, 8, 9), together, strict=True):
        # Adam divides by the root of a squared gradient, which magnifies the rounding of batched products
        same_weights(found, train(start, inputs, targets, seed=seed, **OPTIONS), rtol=1e-8, atol=1e-10)


def test_the_same_seed_trains_the_same_network_and_another_another():
    inputs, targets = rows()
    first, again, other = (train(mlp([2, 8, 2]), inputs, targets, seed=s, **OPTIONS) for s in (0, 0, 1))
    same_weights(first, again, rtol=0, atol=0)
    assert not torch.equal(first[0].weight, other[0].weight)  # pyright: ignore[reportIndexIssue]


def test_dropout_adds_layers_behind_the_activations_and_leaves_the_weights_as_they_were():
    plain, dropping = (mlp([2, 8, 8, 2], activation=nn.Tanh, dropout=p, seed=4) for p in (0.0, 0.3))
    layers = [type(layer) for layer in dropping]  # pyright: ignore[reportGeneralTypeIssues]
    assert layers == [nn.Linear, nn.Tanh, nn.Dropout, nn.Linear, nn.Tanh, nn.Dropout, nn.Linear]
    assert {layer.p for layer in dropping.modules() if isinstance(layer, nn.Dropout)} == {0.3}
    for x, y in zip(plain.parameters(), dropping.parameters(), strict=True):
        assert torch.equal(x, y)
    assert not any(isinstance(layer, nn.Dropout) for layer in plain.modules())


@pytest.mark.parametrize("together", [False, True])
def test_network_data_and_global_generator_stay_as_they_were(together):
    inputs, targets = rows()
    start = nn.Sequential(mlp([2, 8, 8]), nn.Dropout(0.2), nn.Linear(8, 2))
    before = copy.deepcopy(start), inputs.clone(), targets.clone(), torch.get_rng_state()
    mlp([2, 8, 2], seed=9)
    if together:
        train_many([start, start], inputs, targets, **OPTIONS)
    else:
        train(start, inputs, targets, **OPTIONS)
    same_weights(start, before[0], rtol=0, atol=0)
    assert start.training
    assert torch.equal(inputs, before[1])
    assert torch.equal(targets, before[2])
    assert torch.equal(torch.get_rng_state(), before[3])


def test_options_that_cannot_be_are_refused():
    inputs, targets = rows()
    with pytest.raises(ValueError, match="2 seeds for 1 networks"):
        train_many([mlp([2, 8, 2])], inputs, targets, seeds=[0, 1], **OPTIONS)
    with pytest.raises(ValueError, match="inputs and outputs"):
        mlp([3])
    with pytest.raises(ValueError, match=r"dropout=1\.0"):
        mlp([2, 8, 2], dropout=1.0)
