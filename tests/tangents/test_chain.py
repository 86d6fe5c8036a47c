"""Chains of known layers, forward and back by hand, and the signs with which outputs are mixed."""

import itertools

import pytest
import torch
from torch import nn

from trustgp.tangents import JacobianRows, Sketch
from trustgp.tangents.base import leading_signs
from trustgp.tangents.chain import FUNCTIONS
from trustgp.tangents.network import prepare

MIX = torch.tensor([[1.0, -1.0, 1.0]], dtype=torch.float64) / 3**0.5
TANGENTS = [Sketch(256, width=16), Sketch(64), JacobianRows(), JacobianRows(keep=70)]


def network_of(kind: type[nn.Module], *, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(30, 20), kind(), nn.Dropout(0.5))
    layers = (nn.Linear(9, 30, bias=bias), kind(), inner, nn.Identity(), nn.Linear(20, 3))
    return nn.Sequential(*layers).double().eval()


def rows_of(n: int = 11) -> torch.Tensor:
    return torch.randn(n, 9, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("kind", FUNCTIONS, ids=lambda kind: kind.__name__)
def test_features_are_those_that_layers_tell_and_outputs_are_the_networks_to_the_bit(kind):
    inputs = rows_of()
    for bias, tangents in itertools.product((True, False), TANGENTS):
        network = network_of(kind, bias=bias)
        found = tangents.bind(prepare(network, "all", None), MIX, inputs, inputs)
        assert found.chain_features() is not None
        features, outputs = found.with_outputs(inputs)
        expected = found.collector(len(inputs))
        found.gradients(inputs, expected)
        torch.testing.assert_close(features.rows, expected.rows(), rtol=1e-11, atol=1e-12)
        assert torch.equal(outputs, network(inputs))
        assert torch.equal(found(inputs[:1]).rows, found(inputs[:1]).rows)


def test_some_of_the_parameters_are_those_columns():
    names, inputs = ["0.weight", "2.0.bias", "4.weight"], rows_of()
    prepared = prepare(network_of(nn.Tanh), names, None)
    found = JacobianRows(parameters=names).bind(prepared, MIX, inputs, inputs)
    assert found.chain_features() is not None
    expected = found.collector(len(inputs))
    found.gradients(inputs, expected)
    torch.testing.assert_close(found(inputs).rows, expected.rows(), rtol=1e-11, atol=1e-12)


class Watched(nn.Sequential):
    """Not a plain chain: its forward is its own."""

    def forward(self, x):
        return 2.0 * super().forward(x)


def hooked() -> nn.Module:
    network = network_of(nn.ReLU)
    network[1].register_forward_hook(lambda module, given, made: 2.0 * made)
    return network


@pytest.mark.parametrize(
    "make",
    [
        lambda: Watched(nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 3)).double().eval(),
        lambda: nn.Sequential(nn.Linear(9, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double().eval(),
        hooked,
    ],
    ids=["its own forward", "another layer", "a hook"],
)
def test_what_is_no_chain_goes_the_usual_way(make):
    inputs, network = rows_of(), make()
    found = JacobianRows().bind(prepare(network, "all", None), MIX, inputs, inputs)
    assert found.chain_features() is None
    with torch.no_grad():
        assert torch.equal(found.with_outputs(inputs)[1], network(inputs))


@pytest.mark.parametrize("seed", range(6))
def test_leading_signs_lose_little_against_the_best_of_all(seed):
    half = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).double()
    energy = half @ half.T
    every = torch.tensor([[1, *rest] for rest in itertools.product((1, -1), repeat=5)]).double()
    best = torch.einsum("sc,ce,se->s", every, energy, every).max()
    signs = leading_signs(energy)
    assert signs[0] == 1
    assert set(signs.abs().tolist()) == {1.0}
    assert float(signs @ energy @ signs) >= 0.9 * float(best)
