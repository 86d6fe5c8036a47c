"""Layer factors against dense gradients in float64, and the networks that they refuse."""

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from many import Many
from reference import dense_gram, dense_jacobian, dense_rows
from tangents.binding import bound
from torch import nn
from zoo import Net, seeded

from trustgp.tangents import JacobianRows, LayerFactors, output_mixes
from trustgp.tangents.factors import FactorFeatures
from trustgp.tangents.network import prepare

L, ALTERNATIVE = nn.Linear, "JacobianRows"


def residual(net, x):
    """Skip connections, in and after a block."""
    h = torch.tanh(net.first(x))
    return net.last(h + F.gelu(net.block(h))) + x[:, :2]


def branches(net, x):
    """Two heads on one trunk; one is unused by the first output."""
    h = F.silu(net.trunk(x))
    return torch.cat([net.left(h), net.right(h) * x[:, :1]], dim=1)


def normed(norm, *more):
    """A normalisation layer with statistics and gains unlike those of a fresh one."""
    for value in (*norm.parameters(), *norm.buffers()):
        value.data = value.data if value.dtype == torch.int64 else torch.rand(6) + 0.5
    return nn.Sequential(L(3, 6), norm, nn.GELU(), L(6, 2), *more)


NETWORKS = {
    "in place": lambda: nn.Sequential(
        L(3, 6), nn.ReLU(True), L(6, 5), nn.SiLU(True), L(5, 2), nn.ELU(0.3, True)
    ),
    "tanh": lambda: nn.Sequential(L(3, 6), nn.Tanh(), L(6, 5), nn.Tanh(), L(5, 2)),
    "residual": lambda: Net(residual, first=L(3, 5), block=L(5, 5), last=L(5, 2)),
    "without bias": lambda: Net(residual, first=L(3, 5, False), block=L(5, 5, False), last=L(5, 2, False)),
    "branches": lambda: Net(branches, trunk=L(3, 6), left=L(6, 1), right=L(6, 1)),
    "batch norm": lambda: normed(nn.BatchNorm1d(6)),
    "batch norm without affine": lambda: normed(nn.BatchNorm1d(6, affine=False)),
    "layer norm": lambda: normed(nn.LayerNorm(6), nn.LayerNorm(2)),
    "layer norm without bias": lambda: normed(nn.LayerNorm(6, bias=False)),
    "one number": lambda: nn.Sequential(L(3, 6), nn.Tanh(), L(6, 1), nn.Flatten(0)),
    "one layer": lambda: L(3, 2),
}


def make(name, dtype=torch.float64):
    torch.manual_seed(0)
    network = NETWORKS[name]().to(dtype).eval()
    return network, normal(9, 3, seed=1).to(dtype)


def bound_map(network, inputs, *, parameters="all", outputs="shared"):
    """The last kernel's map, its mix and the chosen names."""
    tangents = LayerFactors(parameters)
    return *bound(network, inputs, tangents, outputs), tangents.choose(network)


def assert_kernel_is_dense(network, inputs, **options):
    tangents, mix, names = bound_map(network, inputs, **options)
    expected = dense_gram(dense_jacobian(network, inputs, names), mix)
    features = tangents(inputs)
    size = float(expected.abs().max())
    torch.testing.assert_close(features.gram(features), expected, rtol=1e-10, atol=1e-10 * size)
    torch.testing.assert_close(features.diag(), expected.diagonal(), rtol=1e-10, atol=1e-10 * size)


@pytest.mark.parametrize("outputs", ["shared", "separate", "pseudo"])
def test_factored_kernel_equals_the_dense_one(outputs):
    with Many() as check:
        for name in NETWORKS:
            with check(name):
                assert_kernel_is_dense(*make(name), outputs=outputs)


@pytest.mark.parametrize("count", [2, 7])
def test_one_mixed_output_keeps_one_number_of_the_last_layers_signal(count):
    network, inputs = nn.Sequential(L(3, 6), nn.Tanh(), L(6, count)).double().eval(), seeded(5, 3)
    ((mix, _),) = output_mixes("pseudo", count, torch.Generator().manual_seed(0))
    features = LayerFactors().bind(prepare(network, "all", None), mix, inputs, inputs)(inputs)
    assert [signal.shape[1] for signal in features.signals] == [6, 1]


CHOSEN = [
    *((name, "last") for name in ("tanh", "residual", "batch norm", "layer norm", "in place")),
    *(("tanh", names) for names in (["0.weight"], ["2.bias"], ["4.bias", "0.bias"], ["2.weight", "0.bias"])),
    ("residual", ["block.weight", "block.bias"]),
    *(("batch norm", names) for names in (["1.weight"], ["1.bias", "0.weight"])),
    *(("layer norm", names) for names in (["1.bias"], ["1.weight", "3.weight"])),
]


def test_the_kernel_of_chosen_or_trainable_parameters_equals_the_dense_one():
    with Many() as check:
        for name, chosen in CHOSEN:
            with check(name, chosen):
                assert_kernel_is_dense(*make(name), parameters=chosen)
        for frozen in (["0.weight", "0.bias"], ["2.weight"], ["2.bias", "4.bias"]):
            with check("frozen", frozen):
                network, inputs = make("tanh")
                for name, parameter in network.named_parameters():
                    parameter.requires_grad_(name not in frozen)
                tangents, _, names = bound_map(network, inputs)
                wanted = {*dict(network.named_parameters())} - {*frozen}
                assert set(tangents.network.names) == set(names) == wanted
                assert_kernel_is_dense(network, inputs)


@pytest.mark.parametrize("name", ["tanh", "layer norm"])
def test_take_cat_and_tensors_keep_the_kernel(name):
    network, inputs = make(name)
    tangents, _, _ = bound_map(network, inputs)
    features = tangents(inputs)
    gram = features.gram(features)
    index = torch.tensor([5, 0, 0, 8])
    assert torch.equal(features.take(index).diag(), features.diag()[index])
    taken = features.take(index).gram(features)  # BLAS may add in another order for another shape
    torch.testing.assert_close(taken, gram[index], rtol=1e-10, atol=1e-10)
    joined = FactorFeatures.cat([features.take(torch.arange(3)), features.take(torch.arange(3, 9))])
    again = FactorFeatures.from_tensors(features.tensors())
    for other in (joined, again):
        assert len(other) == 9
        assert torch.equal(other.gram(other), gram)


def test_more_than_ten_layers_survive_the_round_trip():
    network, inputs = nn.Sequential(*[L(3, 3) for _ in range(12)]).double().eval(), seeded(4, 3)
    features = bound_map(network, inputs)[0](inputs)
    again = FactorFeatures.from_tensors(dict(sorted(features.tensors().items())))
    assert torch.equal(again.gram(again), features.gram(features))


def test_a_map_has_no_columns_counts_its_bytes_and_is_restored():
    network, inputs = make("layer norm")
    tangents, _, _ = bound_map(network, inputs)
    features = tangents(inputs)
    assert features.explicit() is None
    assert tangents.columns(inputs).numel() == 0
    assert features.select(tangents.columns(inputs)) is features
    with pytest.raises(ValueError, match="no columns"):
        features.select(torch.tensor([0]))
    size = sum(value.numel() * value.element_size() for value in features.tensors().values())
    assert tangents.row_bytes() * len(inputs) == size
    again = LayerFactors().restore(tangents.network, tangents.state())
    for name, value in features.tensors().items():
        assert torch.equal(again(inputs).tensors()[name], value)
    assert again.row_bytes() == tangents.row_bytes()
    for module in [*network.modules(), *tangents.network.module.modules()]:
        assert not any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks))


def shared_weight():
    net = nn.Sequential(L(3, 3), nn.Tanh(), L(3, 3), nn.Tanh(), L(3, 2))
    net[2].weight = net[0].weight
    return net


def same_layer():
    layer = L(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, L(3, 2))


def on_tokens(net, x):
    return net.last(torch.tanh(net.layer(x)).sum(dim=1))


def on_flat_tokens(net, x):
    """The tokens as further rows."""
    return net.last(torch.tanh(net.layer(x.reshape(-1, 3))).reshape(len(x), -1, 4).sum(dim=1))


def transposed(net, x):
    """The decoder uses the encoder's weight transposed."""
    return F.linear(torch.tanh(net.encoder(x)), net.encoder.weight.T)


vectors, tokens = seeded(6, 3), seeded(6, 4, 3)
weight_norm = nn.utils.parametrizations.weight_norm
REFUSED = {
    "conv": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Flatten(), L(4, 2)),
        vectors,
    ),
    "tokens": (lambda: Net(on_tokens, layer=L(3, 4), last=L(4, 2)), tokens),
    "flattened tokens": (lambda: Net(on_flat_tokens, layer=L(3, 4), last=L(4, 2)), tokens),
    "twice": (same_layer, vectors),
    "shared weight": (shared_weight, vectors),
    "transposed weight": (lambda: Net(transposed, encoder=L(3, 5)), vectors),
    "weight elsewhere": (
        lambda: Net(lambda net, x: net.layer(x) * net.layer.weight.square().sum(), layer=L(3, 2)),
        vectors,
    ),
    "weight norm": (lambda: nn.Sequential(weight_norm(L(3, 4)), nn.Tanh(), L(4, 2)), vectors),
    "raw parameter": (
        lambda: Net(lambda net, x: net.layer(x) * net.gain, layer=L(3, 2), gain=nn.Parameter(torch.ones(2))),
        vectors,
    ),
    "group norm": (lambda: nn.Sequential(L(3, 4), nn.GroupNorm(2, 4)), vectors),
    "embedding": (lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten()), torch.zeros(6, 1).long()),
    "layer norm on tokens": (lambda: nn.Sequential(nn.LayerNorm(3), nn.Flatten()), tokens),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_do_not_factorise_are_refused_and_jacobian_rows_are_exact(name):
    build, inputs = REFUSED[name]
    torch.manual_seed(0)
    network = build().double().eval()
    with pytest.raises(ValueError, match=ALTERNATIVE):
        bound_map(network, inputs)
    prepared = prepare(network, "all", None)
    mix = torch.eye(prepared.matrix(inputs).shape[1], dtype=torch.float64)
    features = JacobianRows().bind(prepared, mix, inputs, torch.zeros(6, 1))(inputs)
    expected = dense_rows(dense_jacobian(network, inputs), mix)
    torch.testing.assert_close(features.rows, expected, rtol=1e-10, atol=1e-10)


def test_ties_that_the_probed_rows_do_not_show_are_refused_and_one_row_is_enough():
    def gated(net, x):  # a weight that acts outside its layer for some rows only
        return net.layer(x) + F.relu(x[:, :1]) * (x @ net.layer.weight.T)

    inputs = seeded(8, 3)
    inputs[0, 0] = inputs[-1, 0] = -1.0
    with pytest.raises(ValueError, match=ALTERNATIVE):
        bound_map(Net(gated, layer=L(3, 3)).double().eval(), inputs)
    with pytest.raises(ValueError, match=ALTERNATIVE):
        bound_map(Net(transposed, encoder=L(3, 5)).double().eval(), seeded(1, 3))
