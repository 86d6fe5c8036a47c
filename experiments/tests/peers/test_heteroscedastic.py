"""Networks that give variances."""

import pytest
import torch
from draws import Draws, normal
from torch import nn

from trustgp_experiments.peers import Bundle, mlp, train
from trustgp_experiments.peers.heteroscedastic import Heteroscedastic, beta_nll, heteroscedastic


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_gradients_are_those_of_the_paper(beta):
    draws = Draws()
    outputs, targets = draws.normal(50, 6), draws.normal(50, 3)
    outputs.requires_grad_(True)
    (found,) = torch.autograd.grad(beta_nll(outputs, targets, beta=beta), outputs)
    mean, variance = outputs.detach()[:, :3], outputs.detach()[:, 3:].exp()
    error = mean - targets
    by_mean = variance ** (beta - 1.0) * error
    by_log = 0.5 * variance**beta * (1.0 - error.square() / variance)
    expected = torch.cat([by_mean, by_log], dim=1) / targets.numel()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_means_that_disagree_are_epistemic_and_variances_are_not():
    inputs = normal(80, 3)
    targets = inputs[:, :2] + 0.3 * inputs[:, 1:].flip(1)
    networks = [mlp([3, 8, 4], activation=nn.Tanh, seed=seed).double().eval() for seed in range(3)]
    peer = Heteroscedastic.fit(networks, (inputs, targets))
    said = peer.predict(inputs)
    with torch.no_grad():
        every = torch.stack([network(inputs) for network in networks])
    size = peer.scale * peer.tails.factor
    torch.testing.assert_close(said.mean, every[..., :2].mean(dim=0))
    torch.testing.assert_close(said.epistemic, size * every[..., :2].var(dim=0, unbiased=False))
    torch.testing.assert_close(said.aleatoric, size * every[..., 2:].exp().mean(dim=0))


def test_noise_that_grows_with_an_input_is_learnt(generator):
    inputs = 2 * torch.rand(600, 2, generator=generator) - 1
    size = 0.05 + 0.5 * inputs[:, :1].clamp_min(0.0)
    targets = inputs[:, 1:].sin() + size * torch.randn(600, 1, generator=generator)
    how = {"epochs": 40, "batch_size": 64, "learning_rate": 0.01}
    rows, validation = (inputs[:400], targets[:400]), (inputs[400:], targets[400:])
    network = train(mlp([2, 16, 1], activation=nn.Tanh), *rows, **how)
    peer = heteroscedastic(Bundle(network, [], None, rows, validation, training=how))
    said = peer.predict(inputs[400:])
    quiet, loud = inputs[400:, 0] < -0.2, inputs[400:, 0] > 0.6
    assert float(said.std[loud].mean()) > 2.0 * float(said.std[quiet].mean())
    assert peer.loss_on(validation) < float(targets[400:].std().log()) + 1.5
