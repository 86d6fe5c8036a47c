import threading

import pytest
import torch
from reference import dense_jacobian
from torch import nn

from trustgp.tangents.network import as_matrix, call, check_network, choose_parameters, prepare

ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class OfTheBatch(nn.Module):
    """A network whose rows look at each other, in one way or another."""

    def __init__(self, mixing):
        super().__init__()
        self.layer, self.mixing = nn.Linear(3, 2), mixing

    def forward(self, x):
        return self.layer(self.mixing(x))


@pytest.mark.parametrize(
    "mixing",
    [
        pytest.param(lambda x: x - x.mean(dim=0), id="mean of the batch"),
        pytest.param(lambda x: x / x.abs().max(), id="largest of the batch"),
        pytest.param(lambda x: x.flip(0), id="other row"),
        pytest.param(lambda x: x.cumsum(0), id="sum of earlier rows"),
        pytest.param(lambda x: x.flip(0).cumsum(0).flip(0), id="sum of later rows"),
    ],
)
def test_a_network_whose_rows_depend_on_each_other_is_refused(mixing):
    with pytest.raises(ValueError, match="depends on the other rows"):
        check_network(OfTheBatch(mixing).double().eval(), ROWS)


def test_a_network_that_samples_is_refused():
    network = OfTheBatch(lambda x: x + torch.randn_like(x)).double().eval()
    with pytest.raises(ValueError, match="deterministic"):
        check_network(network, ROWS)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(4)])
def test_training_mode_is_refused_and_told_what_to_do(layer):
    network = nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 1)).double().train()
    with pytest.raises(ValueError, match=r"layer '1' .*call network.eval\(\)"):
        check_network(network, ROWS)


def test_training_mode_without_such_layers_is_allowed():
    check_network(nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double().train(), ROWS)


def test_inputs_the_network_cannot_take_are_described():
    with pytest.raises(ValueError, match=r"\(6, 3\) torch.float64"):
        check_network(nn.Linear(3, 1), ROWS)


@pytest.mark.parametrize("head", [nn.Unflatten(1, (2, 1, 1)), nn.Flatten(0)], ids=["[n, 2, 1, 1]", "[2n]"])
def test_outputs_of_another_shape_are_refused(head):
    network = nn.Sequential(nn.Linear(3, 2), head).double().eval()
    with pytest.raises(ValueError, match=r"\[n, C\] is needed|one a row is needed"):
        check_network(network, ROWS)


def test_something_else_than_a_module_is_refused():
    with pytest.raises(TypeError, match="Module"):
        check_network(lambda x: x, ROWS)


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
def test_unknown_choices_are_refused(choice, message):
    with pytest.raises(ValueError, match=message):
        choose_parameters(nn.Sequential(nn.Linear(3, 4)), choice)


def test_a_network_without_trainable_parameters_is_told_what_to_do():
    with pytest.raises(ValueError, match=r"requires_grad_\(True\)"):
        choose_parameters(nn.Linear(3, 2).requires_grad_(False), "all")


def test_the_prepared_network_shares_nothing_with_the_users():
    network = nn.Linear(3, 2).double()
    prepared = prepare(network, "all", None)
    with torch.no_grad():
        network.weight.zero_()
    assert bool((prepared.parameters["weight"] != 0).any())
    assert all(p.requires_grad for p in network.parameters())
    assert not any(p.requires_grad for p in prepared.module.parameters())


def test_a_clone_is_another_tree_around_the_same_tensors():
    prepared = prepare(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "all", None)
    clone = prepared.clone()
    assert clone is not prepared.module
    assert clone[0] is not prepared.module[0]
    assert clone[0].weight is prepared.module[0].weight
    assert clone[1].running_mean is prepared.module[1].running_mean


def test_a_cloned_recurrent_layer_leaves_its_weights_where_they_lie(monkeypatch):
    """On a GPU it would ask for their addresses, which tensors inside torch.func do not have."""
    asked = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda layer: asked.append(layer))
    prepared = prepare(nn.GRU(3, 2), "all", None)
    clone = prepared.clone()
    asked.clear()
    clone.flatten_parameters()
    assert asked == []
    prepared.module.flatten_parameters()
    assert asked == [prepared.module]


def test_directional_derivative_is_the_dense_jacobian_times_the_direction():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)).double().eval()
    prepared = prepare(network, "all", None)
    direction = {name: torch.randn_like(value) for name, value in prepared.parameters.items()}
    flat = torch.cat([value.flatten() for value in direction.values()])
    found = prepared.directional(ROWS, direction)
    torch.testing.assert_close(found, dense_jacobian(network, ROWS) @ flat, rtol=1e-10, atol=1e-10)


def test_directional_derivatives_may_run_side_by_side():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval()
    prepared = prepare(network, "all", None)
    expected = prepared.directional(ROWS, prepared.parameters)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(prepared.directional(ROWS, prepared.parameters)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(one, expected) for one in found)


def test_tuples_and_dicts_become_arguments():
    class Sum(nn.Module):
        def forward(self, a, b):
            return a - b

    a, b = torch.ones(2, 1), torch.zeros(2, 1)
    assert torch.equal(call(Sum(), (a, b)), a)
    assert torch.equal(call(Sum(), {"b": a, "a": b}), -a)


def test_vectors_of_outputs_become_a_column():
    assert as_matrix(torch.zeros(4)).shape == (4, 1)
    assert as_matrix(torch.zeros(4, 2)).shape == (4, 2)
    with pytest.raises(ValueError, match="tuple"):
        as_matrix((torch.zeros(4),))
