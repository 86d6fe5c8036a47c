"""The fixed-mean Gaussian process against dense matrices in float64."""

import torch
from draws import Draws, normal
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from trustgp_experiments.peers.fmgp import FixedMeanProcess, objective


def process(count: int = 6, outputs: int = 2) -> FixedMeanProcess:
    """With parameters that are not where they begin."""
    drawn = Draws().normal
    made = FixedMeanProcess(drawn(count, 3), drawn(3), drawn(3).exp(), drawn(outputs).exp())
    with torch.no_grad():
        for value in made.parameters():
            value += 0.3 * drawn(*value.shape)
    return made


def dense(made: FixedMeanProcess, inputs: torch.Tensor):
    """Kernels k(x, z) and K of amplitude 1, and the precision that L adds."""
    scaled = (inputs - made.offset) / made.spread

    def kernel(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        apart = (one[:, None] - other[None]) / made.log_length.exp()
        return torch.exp(-0.5 * apart.square().sum(dim=2))

    root = torch.tril(made.root)
    points = made.points
    return kernel(scaled, points), kernel(points, points), root @ root.T


@torch.no_grad()
def test_variance_is_that_of_the_dense_formula():
    made = process()
    inputs = normal(20, 3, seed=1)
    cross, kernel, added = dense(made, inputs)
    # A = (K + (L L^T)^-1)^-1, by Woodbury's identity
    unit = 1.0 - (cross @ torch.linalg.inv(kernel + torch.linalg.inv(added)) * cross).sum(dim=1)
    expected = unit[:, None] * made.log_amplitude.exp()
    torch.testing.assert_close(made(inputs)[:, :2], expected, rtol=1e-8, atol=1e-10)


@torch.no_grad()
def test_the_objective_is_that_of_two_processes_which_share_a_variance():
    made, draws = process(), Draws(2)
    inputs, targets = draws.normal(20, 3), draws.normal(20, 4)
    cross, kernel, added = dense(made, inputs)
    middle = torch.linalg.inv(kernel + torch.linalg.inv(added))
    total = 0.0
    for c in range(2):
        amplitude, noise = made.log_amplitude[c].exp(), made.log_noise[c].exp()
        variance = amplitude * (1.0 - (cross @ middle * cross).sum(dim=1)) + noise
        prior = MultivariateNormal(torch.zeros(6).double(), amplitude * kernel)
        narrowed = amplitude * (kernel - kernel @ middle @ kernel)
        for mean, at in (
            (targets[:, 2 + c], torch.zeros(6).double()),
            (cross @ made.weights[:, c], kernel @ made.weights[:, c]),
        ):
            total -= Normal(mean, variance.sqrt()).log_prob(targets[:, c]).sum()
            total += kl_divergence(MultivariateNormal(at, narrowed), prior)
    found = objective(made(inputs), targets, rows=20)
    torch.testing.assert_close(found, total / 40, rtol=1e-8, atol=0)
