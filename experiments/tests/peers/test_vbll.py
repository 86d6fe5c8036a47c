"""The variational last layer."""

import math

import numpy as np
import pytest
import torch
from draws import Draws
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from trustgp_experiments.peers import mlp
from trustgp_experiments.peers.vbll import WISHART, VariationalNetwork, Vbll, negative_bound

HOW = {"epochs": 80, "batch_size": 32, "learning_rate": 0.01}


def rows(n: int = 200, outputs: int = 2):
    draws = Draws()
    inputs = draws.normal(n, 3, dtype=torch.float32)
    clean = torch.stack([inputs.sum(dim=1).sin(), inputs[:, 0]], dim=1)[:, :outputs]
    return inputs, clean + 0.1 * draws.normal(clean.shape, dtype=torch.float32)


def perturbed() -> tuple[VariationalNetwork, torch.Tensor, torch.Tensor]:
    """In float64, with a covariance that is not diagonal; 12 rows."""
    inputs, targets = (each[:12].double() for each in rows())
    draws, plain = Draws(1), mlp([3, 4, 2], activation=nn.Tanh).double()
    network = VariationalNetwork(plain, torch.tensor([0.5, 2.0]).double())
    with torch.no_grad():
        for value in network.layer.parameters():
            value += 0.3 * draws.normal(value.shape)
    return network, inputs, targets


def test_the_bound_is_that_of_dense_gaussians_and_quadrature():
    network, inputs, targets = perturbed()
    layer, total = network.layer, 0.0
    phi = torch.cat([network.features(inputs), torch.ones(12, 1).double()], dim=1).detach()
    noise, nodes = layer.log_noise.detach().exp(), np.polynomial.hermite_e.hermegauss(40)
    factor = torch.tril(layer.below.detach(), -1) + torch.diag_embed(layer.log_diagonal.detach().exp())
    for c in range(2):
        covariance = factor[c] @ factor[c].T
        mean, variance = phi @ layer.mean[c].detach(), (phi @ covariance * phi).sum(dim=1)
        for i in range(12):  # E log N(y; f, sigma^2) over f by Gauss and Hermite
            f = float(mean[i]) + math.sqrt(float(variance[i])) * nodes[0]
            squared = (float(targets[i, c]) - f) ** 2
            likely = -0.5 * (np.log(2 * np.pi * float(noise[c])) + squared / float(noise[c]))
            total += float((likely * nodes[1]).sum() / nodes[1].sum())
        posterior = MultivariateNormal(layer.mean[c].detach(), covariance)
        prior = MultivariateNormal(torch.zeros(5).double(), layer.prior[c] * torch.eye(5).double())
        total -= float(kl_divergence(posterior, prior))
        # log density of an inverse Wishart's noise, as the paper's layer has it
        total += float(-2.0 * noise[c].log() - 0.5 * WISHART * layer.prior[c] / noise[c])
    found = negative_bound(network(inputs), targets, rows=12)
    assert float(found) == pytest.approx(-total / 24, rel=1e-10)


def test_variance_is_that_of_the_weights():
    network, inputs, _ = perturbed()
    peer = Vbll(network, single=False, noise=torch.zeros(2).double())
    mean, variance = peer.moments(inputs)
    phi = torch.cat([network.features(inputs), torch.ones(12, 1).double()], dim=1).detach()
    factor = network.layer.factor().detach()
    expected = torch.einsum("nh,chk,cjk,nj->nc", phi, factor, factor, phi)
    torch.testing.assert_close(variance, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(mean, phi @ network.layer.mean.detach().T, rtol=1e-10, atol=1e-12)
