"""Tails that any peer gets on validation rows, and what trustgp calls rare."""

import numpy as np
import pytest
import torch
from draws import Draws
from scipy import stats
from torch import nn

from trustgp.math.calibration import OutlierPrior
from trustgp_experiments.peers import ConstantNoise, Ensemble, mlp
from trustgp_experiments.peers.tails import Tails


def drawn(n: int = 4000, df: float = 4.0):
    """Errors with heavy tails in units of a variance that is half as large as it should be, [n, 2]."""
    generator = np.random.default_rng(0)
    variance = torch.from_numpy(generator.uniform(0.5, 2.0, (n, 2)))
    unit = torch.from_numpy(generator.standard_t(df, (n, 2))) * ((df - 2.0) / df) ** 0.5
    return unit * (2.0 * variance).sqrt(), variance


def density(tails: Tails, error: torch.Tensor, variance: torch.Tensor) -> np.ndarray:
    """By scipy."""
    found = []
    for c in range(error.shape[1]):
        df, total = float(tails.df[c]), (variance[:, c] * tails.factor[c]).numpy()
        usual = stats.t.pdf(error[:, c].numpy(), df, scale=np.sqrt(total * (df - 2.0) / df))
        far = stats.norm.pdf(error[:, c].numpy(), scale=np.sqrt(total + float(tails.spread[c])))
        found.append((1.0 - float(tails.share)) * usual + float(tails.share) * far)
    return np.stack(found, axis=1)


def test_losses_are_those_of_scipys_densities():
    error, variance = drawn(50)
    two = torch.tensor([3.0, 7.0], dtype=torch.float64)
    tails = Tails(two / 4.0, two, torch.tensor(0.01, dtype=torch.float64), 100.0 * two)
    expected = torch.from_numpy(-np.log(density(tails, error, variance)))
    torch.testing.assert_close(tails.losses(error, variance), expected, rtol=1e-10, atol=1e-10)


def test_factor_and_degrees_of_freedom_are_those_of_the_draws():
    found = Tails.fit(*drawn(), None)
    torch.testing.assert_close(found.factor, torch.full((2,), 2.0).double(), rtol=0.15, atol=0)
    torch.testing.assert_close(found.df, torch.full((2,), 4.0).double(), rtol=0.25, atol=0)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_prediction_with_tails_has_their_density_and_second_moment(shape):
    draws = Draws()
    inputs, targets = draws.normal(300, 3), draws.normal(300, *shape)
    network = mlp([3, 8, 2 if shape else 1], activation=nn.Tanh).double().eval()
    if not shape:
        network = nn.Sequential(network, nn.Flatten(0))
    peer = ConstantNoise.fit(network, (inputs, targets), tails=True)
    said = peer.predict(inputs)
    assert peer.tails is not None
    error = (targets - said.mean).reshape(300, -1)
    expected = np.log(density(peer.tails, error, peer.noise.expand_as(error)))
    found = said.log_prob(targets).reshape(300, -1)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-8, atol=1e-8)
    total = peer.noise * peer.tails.factor + peer.tails.share * peer.tails.spread
    torch.testing.assert_close(said.variance.reshape(300, -1), total.expand_as(error))
    torch.testing.assert_close(said.distribution.variance, said.variance)


def test_rows_that_are_far_off_are_as_rare_as_for_trustgp(generator):
    inputs, targets = torch.randn(120, 3, generator=generator), torch.randn(120, 2, generator=generator)
    networks = [mlp([3, 8, 2], seed=seed).eval() for seed in range(3)]
    train, validation = (inputs[:80], targets[:80]), (inputs[80:], targets[80:])
    rare = OutlierPrior.of(train[1])
    peer = Ensemble.fit(networks, validation, train)
    assert rare is not None
    assert peer.tails is not None
    assert float(peer.tails.share) == float(rare.share) == 0.5 / 80
    torch.testing.assert_close(peer.tails.spread, rare.spread)
