"""The dual form of the linearised network against equation 12 of its paper, in float64."""

import pytest
import torch
from draws import Draws
from torch import nn
from torch.func import functional_call, jacrev

from trustgp_experiments.peers import mlp
from trustgp_experiments.peers.sfr import Sfr


def problem(outputs: int = 2):
    draws = Draws()
    inputs, noise = draws.normal(120, 3), draws.normal(120, outputs)
    network = mlp([3, 8, outputs], activation=nn.Tanh).double().eval()
    targets = network(inputs).detach() + 0.2 * noise
    return network, (inputs[:80], targets[:80]), (inputs[80:], targets[80:])


def jacobians(network: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """[n, C, P]."""
    parameters = {name: value.detach() for name, value in network.named_parameters()}
    found = jacrev(lambda values: functional_call(network, values, (inputs,)))(parameters)
    return torch.cat([value.flatten(2) for value in found.values()], dim=2)


@pytest.mark.parametrize("points", [15, 200])
def test_variance_is_that_of_the_papers_equation(points):
    network, train, validation = problem()
    peer = Sfr.fit(network, train, validation, points=points)
    chosen = torch.randperm(80, generator=torch.Generator().manual_seed(0))[:points]
    new = validation[0][:10]
    every, asked = jacobians(network, train[0]), jacobians(network, new)
    expected = []
    for c in range(2):
        at, z, rows = asked[:, c], every[chosen, c], every[:, c]
        level = (z * z).sum(dim=1).mean()
        inner = (z @ z.T + 1e-8 * level * torch.eye(len(z)).double()) / peer.delta  # with the jitter
        dual = z @ rows.T / peer.delta
        dual = dual @ dual.T / peer.sigma2[c]
        cross = at @ z.T / peer.delta
        middle = torch.linalg.inv(inner) - torch.linalg.inv(inner + dual)
        expected.append((at * at).sum(dim=1) / peer.delta - (cross @ middle * cross).sum(dim=1))
    mean, found = peer.moments(new)
    assert torch.equal(mean, network(new))
    # 1e-4: inverses of kernels that are singular but for the jitter
    torch.testing.assert_close(found, torch.stack(expected, dim=1), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("points", [12, 80])
def test_the_shared_kernel_is_the_mean_over_outputs_and_its_points_are_distinct(points):
    network, train, validation = problem()
    peer = Sfr.fit(network, train, validation, points=points, shared=True)
    (kernel,) = peer.kernels
    places = [int((train[0] - a[:-1]).abs().sum(1).argmin()) for a in kernel.points.activations[0]]
    assert len(set(places)) == points
    every, asked = (jacobians(network, rows).flatten(1) / 2**0.5 for rows in (train[0], validation[0]))
    z, expected = every[places], []
    jitter = 1e-8 * (z * z).sum(dim=1).mean() * torch.eye(points).double()
    inner, dual, cross = z @ z.T + jitter, z @ every.T @ every @ z.T, asked @ z.T
    for noise in peer.sigma2:
        tau = noise * peer.delta
        middle = torch.linalg.inv(inner) - tau * torch.linalg.inv(tau * inner + dual)
        expected.append(((asked * asked).sum(dim=1) - (cross @ middle * cross).sum(dim=1)) / peer.delta)
    _, found = peer.moments(validation[0])
    torch.testing.assert_close(found, torch.stack(expected, dim=1), rtol=1e-3, atol=1e-8)


def test_convolutions_are_served_by_gradients(generator):
    inputs = torch.randn(60, 1, 6, 6, generator=generator)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 1)).eval()
    targets = inputs.mean(dim=(1, 2, 3))[:, None]
    peer = Sfr.fit(network, (inputs[:40], targets[:40]), (inputs[40:], targets[40:]), points=10)
    assert bool((peer.predict(inputs).epistemic > 0).all())
