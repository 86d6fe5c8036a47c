"""Promise 41: logits on a wrong scale are noticed."""

import warnings

import pytest
import torch
from reliability.helpers import mlp, quiet_fit
from torch import nn

CENTRES = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]], dtype=torch.float64)


class Scaled(nn.Module):
    def __init__(self, network: nn.Module, factor: float) -> None:
        super().__init__()
        self.network, self.factor = network, factor

    def forward(self, x):
        return self.factor * self.network(x)


@pytest.fixture(scope="module")
def classes():
    """A network of three overlapping classes, its training rows, and rows it was not trained on."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (500,), generator=generator)
    x = CENTRES[labels] + torch.randn(500, 2, generator=generator, dtype=torch.float64)
    network = mlp(2, 8, 3)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x[:250]), labels[:250]).backward()
        optimiser.step()
    return network, (x[:250], labels[:250]), (x[250:], labels[250:])


@pytest.mark.parametrize(("factor", "warned"), [(1.0, False), (1e-3, True), (1e3, True)])
def test_a_temperature_far_from_one_warns(classes, factor, warned):
    network, train, validation = classes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_fit(Scaled(network, factor), train, validation=validation, likelihood="classification")
    assert (
        any("no logits of a cross entropy, or on another scale" in str(w.message) for w in caught) == warned
    )
