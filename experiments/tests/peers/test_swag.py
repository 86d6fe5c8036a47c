"""Weights as they wander."""

import pytest
import torch
from draws import Draws, normal
from torch import nn
from torch.nn.functional import cross_entropy

from trustgp_experiments.peers import Bundle, mlp, train
from trustgp_experiments.peers.sampled import RANK, Swag, SwagClassifier, WeightMoments, wander

HOW = {"epochs": 5, "batch_size": 32, "learning_rate": 0.01}


def bundle(*, classes: bool = False) -> Bundle:
    draws, how = Draws(), HOW
    inputs, noise = draws.normal(150, 3, dtype=torch.float32), draws.normal(150, 2, dtype=torch.float32)
    targets = torch.stack([inputs.sum(dim=1).sin()] * 2, dim=1) + 0.1 * noise
    if classes:
        targets, how = (targets[:, 0] > 0).long(), {**HOW, "loss": cross_entropy}
    train_rows, validation = (inputs[:100], targets[:100]), (inputs[100:], targets[100:])
    network = train(mlp([3, 8, 2], activation=nn.Tanh), *train_rows, **how)
    return Bundle(network, [], None, train_rows, validation, training=how)


def test_moments_deviations_and_draws_are_those_of_the_paper():
    vectors = normal(30, 3)
    seen = WeightMoments()
    for vector in vectors:
        seen.add(vector)
    torch.testing.assert_close(seen.mean, vectors.mean(dim=0))
    torch.testing.assert_close(seen.square, vectors.square().mean(dim=0))
    running = [vectors[k] - vectors[: k + 1].mean(dim=0) for k in range(30)]
    torch.testing.assert_close(torch.stack(seen.deviations), torch.stack(running[-RANK:]))
    drawn = seen.draw(200_000, seed=0)
    deviations = torch.stack(seen.deviations)
    variance = vectors.var(dim=0, unbiased=False)
    expected = 0.5 * torch.diag(variance) + 0.5 * deviations.T @ deviations / (RANK - 1)
    # 0.02: some standard errors of 200,000 draws
    torch.testing.assert_close(drawn.T.cov(), expected, rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.mean(dim=0), vectors.mean(dim=0), rtol=0, atol=0.02)


def test_the_network_goes_on_from_where_it_is_and_stays_as_it_was():
    given = bundle()
    before = torch.cat([value.detach().flatten() for value in given.network.parameters()])
    seen = wander(given, 0.1)
    assert seen.n == RANK
    after = torch.cat([value.detach().flatten() for value in given.network.parameters()])
    assert torch.equal(before, after)
    assert float((seen.mean - before).norm() / before.norm()) < 0.5
    assert given._meter.training > 0


def test_batch_normalisation_and_an_unknown_training_are_refused():
    given = bundle()
    with pytest.raises(ValueError, match="must say how"):
        Swag.fit(Bundle(given.network, [], None, given.train, given.validation))
    normed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    with pytest.raises(ValueError, match="batch normalisation"):
        Swag.fit(Bundle(normed, [], None, given.train, given.validation, training=HOW))


def test_classes_have_probabilities_at_one_temperature():
    given = bundle(classes=True)
    peer, inputs = SwagClassifier.fit(given), given.validation[0]
    expected = (peer.members(inputs) / peer.temperature).softmax(dim=2).mean(dim=0)
    torch.testing.assert_close(peer.predict(inputs).probabilities, expected)
    assert peer.predict(inputs).mutual_information is not None
