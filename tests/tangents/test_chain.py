"""Chains of layers by explicit formulas, against gradients layer by layer."""

import itertools

import pytest
import torch
from torch import nn

from trustgp.tangents import JacobianRows, Sketch
from trustgp.tangents.chain import BACKWARD
from trustgp.tangents.network import prepare

MIX = torch.tensor([[1.0, -1.0, 1.0]], dtype=torch.float64) / 3**0.5
TANGENTS = [Sketch(256, width=16), Sketch(64), JacobianRows(), JacobianRows(keep=70)]


def network_of(kind: type[nn.Module], *, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(30, 20), kind(), nn.Dropout(0.5))
    inner[1].inplace = hasattr(inner[1], "inplace")
    layers = (nn.Linear(9, 30, bias=bias), kind(), inner, nn.Identity(), nn.Linear(20, 3))
    return nn.Sequential(*layers).double().eval()


def rows_of(n: int = 11) -> torch.Tensor:
    return torch.randn(n, 9, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("kind", [kind for kind in BACKWARD if kind is not nn.Linear])
def test_features_are_those_of_the_layers_and_outputs_are_the_networks_to_the_bit(kind):
    inputs = rows_of()
    for bias, tangents in itertools.product((True, False), TANGENTS):
        network = network_of(kind, bias=bias)
        tangent_map = tangents.bind(prepare(network, "all", None), MIX, inputs, inputs)
        assert tangent_map.chain_features() is not None
        features, outputs = tangent_map.with_outputs(inputs)
        expected = tangent_map.collector(len(inputs))
        tangent_map.gradients(inputs, expected)
        torch.testing.assert_close(features.rows, expected.rows(), rtol=1e-11, atol=1e-12)
        assert torch.equal(outputs, network(inputs))
        assert torch.equal(tangent_map(inputs[:1]).rows, tangent_map(inputs[:1]).rows)


def test_chosen_parameters_have_the_same_columns():
    names, inputs = ["0.weight", "2.0.bias", "4.weight"], rows_of()
    prepared = prepare(network_of(nn.Tanh), names, None)
    tangent_map = JacobianRows(parameters=names).bind(prepared, MIX, inputs, inputs)
    assert tangent_map.chain_features() is not None
    expected = tangent_map.collector(len(inputs))
    tangent_map.gradients(inputs, expected)
    torch.testing.assert_close(tangent_map(inputs).rows, expected.rows(), rtol=1e-11, atol=1e-12)


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
def test_other_networks_do_not_use_the_formulas(make):
    inputs, network = rows_of(), make()
    tangent_map = JacobianRows().bind(prepare(network, "all", None), MIX, inputs, inputs)
    assert tangent_map.chain_features() is None
    with torch.no_grad():
        assert torch.equal(tangent_map.with_outputs(inputs)[1], network(inputs))
