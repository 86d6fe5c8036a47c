"""MC-dropout, and its variance without sampling."""

from itertools import product

import pytest
import torch
from draws import normal
from torch import nn

from trustgp_experiments.peers import MCDropout, PropagatedDropout, mlp
from trustgp_experiments.peers.members import propagated_variance, with_dropout_on


def seeded(network: nn.Module) -> nn.Module:
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=number) / parameter.shape[-1] ** 0.5)
    return network.double().eval()


def deep() -> nn.Sequential:
    """Dropout at the input and behind both hidden layers: 2 + 3 + 3 units that may be dropped."""
    layers = [nn.Dropout(0.25), nn.Linear(2, 3), nn.Identity(), nn.Dropout(0.25), nn.Linear(3, 3)]
    return nn.Sequential(*layers, nn.Dropout(0.25), nn.Linear(3, 2))


def over_all_masks(network: nn.Sequential, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact mean and variance: every pattern of dropped units, weighted by its probability."""
    widths = [2, 3, 3]
    mean, square = torch.zeros(len(inputs), 2).double(), torch.zeros(len(inputs), 2).double()
    for pattern in product((0.0, 1.0), repeat=sum(widths)):
        masks = iter(torch.tensor(pattern).double().split(widths))
        values, weight = inputs, 1.0
        for layer in network:
            if isinstance(layer, nn.Dropout):
                mask, keep = next(masks), 1.0 - layer.p
                values = values * mask / keep
                weight *= float(torch.where(mask > 0, keep, 1.0 - keep).prod())
            else:
                values = layer(values)
        mean, square = mean + weight * values, square + weight * values.square()
    return mean.detach(), (square - mean.square()).detach()


def test_propagated_variance_of_a_linear_network_is_exact_also_in_chunks(monkeypatch):
    network, inputs = seeded(deep()), normal(5, 2, seed=7)
    mean, variance = over_all_masks(network, inputs)
    torch.testing.assert_close(mean, network(inputs).detach(), rtol=1e-12, atol=1e-12)
    for chunk in (2**27, 2 * 9 * 8):
        monkeypatch.setattr("trustgp_experiments.peers.members.CHUNK_BYTES", chunk)
        torch.testing.assert_close(propagated_variance(network, inputs), variance, rtol=1e-10, atol=1e-12)


def test_slopes_of_activations_are_those_of_autograd():
    layers = nn.Linear(3, 3), nn.Dropout(0.4), nn.Linear(3, 3), nn.Softplus(), nn.Linear(3, 1)
    network = seeded(nn.Sequential(*layers))
    inputs = normal(4, 3, seed=7)
    head = network[2:]
    hidden = network[0](inputs).detach()
    for row in range(4):
        slope = torch.autograd.functional.jacobian(head, hidden[row])[0]  # [3]
        expected = (slope.square() * hidden[row].square()).sum() * 0.4 / 0.6
        torch.testing.assert_close(propagated_variance(network, inputs)[row, 0], expected, rtol=1e-12, atol=0)


def test_layers_that_moments_cannot_pass_are_refused_by_name():
    rows = normal(9, 4), normal(9, 4)
    inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    with pytest.raises(ValueError, match=r"'network\.1\.1' is a LayerNorm"):
        PropagatedDropout.fit(nn.Sequential(nn.Dropout(0.1), inner).double(), rows)
    with pytest.raises(ValueError, match="no Dropout layer"):
        PropagatedDropout.fit(mlp([4, 8, 4]).double(), rows)
    with pytest.raises(ValueError, match="one tensor"):
        propagated_variance(seeded(mlp([4, 8, 4], dropout=0.1)), normal(2, 3, 4))


def test_mc_dropout_of_a_linear_network_has_the_exact_mean_and_variance():
    network, inputs = seeded(deep()), normal(5, 2, seed=7)
    mean, variance = over_all_masks(network, inputs)
    fitted = MCDropout.fit(network, (inputs, normal(5, 2, seed=8)), samples=4000, seed=1)
    found = fitted.predict(inputs)
    error = (found.mean - mean).abs() / (variance / 4000).sqrt()
    assert float(error.max()) < 4.0  # in standard errors
    torch.testing.assert_close(found.epistemic, variance, rtol=0.15, atol=0)  # about five standard errors


def test_only_the_dropout_layers_are_in_training_mode():
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2)).train()
    modes = [layer.training for layer in with_dropout_on(network)]  # pyright: ignore[reportGeneralTypeIssues]
    assert modes == [False, False, True, False]
    assert all(layer.training for layer in network)
