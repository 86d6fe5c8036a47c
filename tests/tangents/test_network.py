"""The private copy of a network, the choice of its parameters, and the networks that are refused."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from draws import normal
from reference import dense_jacobian
from torch import nn
from zoo import Net

from trustgp.tangents.network import check_network, choose_parameters, prepare

ROWS = normal(6, 3)


def of_the_batch(mixing):
    """A network whose rows look at each other, in one way or another."""
    torch.manual_seed(0)
    return Net(lambda net, x: net.layer(mixing(x)), layer=nn.Linear(3, 2)).double().eval()


def linear(*after):
    return nn.Sequential(nn.Linear(3, 4), *after).double()


MIXING = {
    "mean of the batch": lambda x: x - x.mean(dim=0),
    "largest of the batch": lambda x: x / x.abs().max(),
    "another row": lambda x: x.flip(0),
    "sum of earlier rows": lambda x: x.cumsum(0),
    "sum of later rows": lambda x: x.flip(0).cumsum(0).flip(0),
}
REFUSED = {
    **{name: (of_the_batch(mixing), "depends on the other rows") for name, mixing in MIXING.items()},
    "sampling": (of_the_batch(lambda x: x + torch.randn_like(x)), "deterministic"),
    "dropout": (linear(nn.Dropout(0.5)).train(), r"layer '1' .*call network.eval\(\)"),
    "batch norm": (linear(nn.BatchNorm1d(4)).train(), r"layer '1' .*call network.eval\(\)"),
    "another dtype": (nn.Linear(3, 1), r"\(6, 3\) torch.float64"),
    "[n, 2, 2, 1]": (linear(nn.Unflatten(1, (2, 2, 1))).eval(), r"\[n, C\] is needed"),
    "[4n]": (linear(nn.Flatten(0)).eval(), "one a row is needed"),
    "a function": (lambda x: x, "Module"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_without_a_meaningful_error_bar_are_refused(name):
    network, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        check_network(network, ROWS)


def test_choices_of_parameters():
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert choose_parameters(network, "all") == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert choose_parameters(network, "last") == ["1.weight", "1.bias"]
    assert choose_parameters(network, ["1.bias", "0.weight"]) == ["0.weight", "1.bias"]
    network[1].requires_grad_(False)
    assert choose_parameters(network, "all") == ["0.weight", "0.bias"]
    assert choose_parameters(network, "last") == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("choice", "message"), [("first", '"all", "last"'), (["2.weight"], "not in the network"), ([], "it has")]
)
def test_choices_without_parameters_are_refused(choice, message):
    with pytest.raises(ValueError, match=message):
        choose_parameters(nn.Sequential(nn.Linear(3, 4)), choice)


def test_the_prepared_network_shares_nothing_with_the_users():
    network = nn.Linear(3, 2).double()
    prepared = prepare(network, "all", None)
    with torch.no_grad():
        network.weight.zero_()
    assert bool((prepared.parameters["weight"] != 0).any())
    assert all(p.requires_grad for p in network.parameters())
    assert not any(p.requires_grad for p in prepared.module.parameters())


def test_a_cloned_recurrent_layer_does_not_move_its_weights(monkeypatch):
    """On a GPU that needs their addresses, which tensors inside torch.func do not have."""
    asked = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda layer: asked.append(layer))
    prepared = prepare(nn.GRU(3, 2), "all", None)
    clone = prepared.clone()
    asked.clear()
    clone.flatten_parameters()
    assert asked == []
    prepared.module.flatten_parameters()
    assert asked == [prepared.module]


def test_directional_derivatives_are_the_dense_jacobian_times_the_direction_in_any_thread():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)).double().eval()
    prepared = prepare(network, "all", None)
    direction = {name: torch.randn_like(value) for name, value in prepared.parameters.items()}
    flat = torch.cat([value.flatten() for value in direction.values()])
    expected = prepared.directional(ROWS, direction)
    torch.testing.assert_close(expected, dense_jacobian(network, ROWS) @ flat, rtol=1e-10, atol=1e-10)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: prepared.directional(ROWS, direction), range(8)))
    assert all(torch.equal(one, expected) for one in results)
