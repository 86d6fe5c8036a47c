import copy

import pytest
import torch
import torch.nn.functional as F
from many import Many
from reference import dense_gram, dense_jacobian, dense_rows, flat_parameters
from torch import nn

from trustgp.tangents import JacobianRows, LayerFactors, output_mixes
from trustgp.tangents.factors import FactorFeatures
from trustgp.tangents.network import prepare

ALTERNATIVE = "JacobianRows"


class Residual(nn.Module):
    """Skip connections, in and after a block."""

    def __init__(self, bias=True):
        super().__init__()
        self.first = nn.Linear(3, 5, bias=bias)
        self.block = nn.Linear(5, 5, bias=bias)
        self.last = nn.Linear(5, 2, bias=bias)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(h + F.gelu(self.block(h))) + x[:, :2]


class Branches(nn.Module):
    """Two heads on one trunk, one of them unused by the first output."""

    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(3, 6), nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x):
        h = F.silu(self.trunk(x))
        return torch.cat([self.left(h), self.right(h) * x[:, :1]], dim=1)


class OneNumber(nn.Module):
    """Output of shape [n]."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def mlp(activation, bias=True):
    return nn.Sequential(
        nn.Linear(3, 6, bias=bias),
        activation(),
        nn.Linear(6, 5, bias=bias),
        activation(),
        nn.Linear(5, 2, bias=bias),
    )


def batch_norm():
    network = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    network[1].running_mean.uniform_(-1, 1)
    network[1].running_var.uniform_(0.5, 2)
    nn.init.uniform_(network[1].weight, 0.5, 2)
    nn.init.uniform_(network[1].bias, -1, 1)
    return network


def layer_norm():
    network = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2), nn.LayerNorm(2))
    nn.init.uniform_(network[1].weight, 0.5, 2)
    nn.init.uniform_(network[1].bias, -1, 1)
    return network


def in_place():
    return nn.Sequential(
        nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 5), nn.SiLU(inplace=True), nn.Linear(5, 2)
    )


NETWORKS = {
    "in place at the end": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2), nn.LeakyReLU(0.3, inplace=True)
    ),
    "relu": lambda: mlp(nn.ReLU),
    "tanh": lambda: mlp(nn.Tanh),
    "silu": lambda: mlp(nn.SiLU),
    "gelu": lambda: mlp(nn.GELU),
    "relu without bias": lambda: mlp(nn.ReLU, bias=False),
    "tanh without bias": lambda: mlp(nn.Tanh, bias=False),
    "residual": Residual,
    "residual without bias": lambda: Residual(bias=False),
    "branches": Branches,
    "batch norm": batch_norm,
    "batch norm without affine": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2)
    ),
    "layer norm": layer_norm,
    "layer norm without bias": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.LayerNorm(6, bias=False), nn.Linear(6, 2)
    ),
    "in place": in_place,
    "one number": OneNumber,
    "linear only": lambda: nn.Linear(3, 2),
}


def make(name, dtype=torch.float64):
    torch.manual_seed(0)
    network = NETWORKS[name]().to(dtype).eval()
    inputs = torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return network, inputs.to(dtype)


def bound_map(network, inputs, *, parameters="all", outputs="shared"):
    """The first kernel's map, its mix and the chosen names."""
    tangents = LayerFactors(parameters)
    names = tangents.choose(network)
    prepared = prepare(network, names, None)
    num_outputs = prepared.matrix(inputs).shape[1]
    mix, _ = output_mixes(outputs, num_outputs, torch.Generator().manual_seed(3))[-1]
    return tangents.bind(prepared, mix, inputs, torch.zeros(len(inputs), num_outputs)), mix, names


def assert_kernel_is_dense(network, inputs, **options):
    tangents, mix, names = bound_map(network, inputs, **options)
    jacobian = dense_jacobian(network, inputs, names)
    expected = dense_gram(jacobian, mix)
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
    network = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, count)).double().eval()
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ((mix, _),) = output_mixes("pseudo", count, torch.Generator().manual_seed(0))
    features = LayerFactors().bind(prepare(network, "all", None), mix, inputs, inputs)(inputs)
    assert [signal.shape[1] for signal in features.signals] == [6, 1]


def test_kernel_of_the_last_layer_equals_the_dense_one():
    with Many() as check:
        for name in ("tanh", "residual", "batch norm", "layer norm", "in place"):
            with check(name):
                assert_kernel_is_dense(*make(name), parameters="last")


def test_kernel_of_named_parameters_equals_the_dense_one():
    cases = [
        ("tanh", ["0.weight"]),
        ("tanh", ["2.bias"]),
        ("tanh", ["4.bias", "0.bias"]),
        ("tanh", ["2.weight", "0.bias"]),
        ("residual", ["block.weight", "block.bias"]),
        ("batch norm", ["1.weight"]),
        ("batch norm", ["1.bias", "0.weight"]),
        ("layer norm", ["1.bias"]),
        ("layer norm", ["1.weight", "3.weight"]),
        ("in place", ["2.weight"]),
    ]
    with Many() as check:
        for name, chosen in cases:
            with check(name, chosen):
                assert_kernel_is_dense(*make(name), parameters=chosen)


@pytest.mark.parametrize("frozen", [["0.weight", "0.bias"], ["2.weight"], ["2.bias", "4.bias"]])
def test_frozen_parameters_are_not_in_the_kernel(frozen):
    network, inputs = make("tanh")
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in frozen)
    tangents, _, names = bound_map(network, inputs)
    assert not set(names) & set(frozen)
    assert set(tangents.network.names) == set(names)
    assert_kernel_is_dense(network, inputs)


def test_cross_kernel_between_two_lots_of_rows_equals_the_dense_one():
    network, inputs = make("residual")
    tangents, mix, names = bound_map(network, inputs)
    jacobian = dense_jacobian(network, inputs, names)
    found = tangents(inputs[:4]).gram(tangents(inputs[4:]))
    expected = dense_gram(jacobian[:4], mix, jacobian[4:])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_float32_kernel_is_the_dense_one_to_float32():
    network, inputs = make("tanh", torch.float32)
    tangents, mix, names = bound_map(network, inputs)
    expected = dense_gram(dense_jacobian(network, inputs, names), mix)
    found = tangents(inputs)
    # Activations and signals carry the rounding of the network's own float32.
    torch.testing.assert_close(found.gram(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["tanh", "layer norm"])
def test_take_cat_and_tensors_keep_the_kernel(name):
    network, inputs = make(name)
    tangents, _, _ = bound_map(network, inputs)
    features = tangents(inputs)
    gram = features.gram(features)
    index = torch.tensor([5, 0, 0, 8])
    assert torch.equal(features.take(index).diag(), features.diag()[index])
    torch.testing.assert_close(
        features.take(index).gram(features), gram[index], rtol=1e-10, atol=1e-10
    )  # BLAS may add in another order for another shape
    joined = FactorFeatures.cat([features.take(torch.arange(3)), features.take(torch.arange(3, 9))])
    again = FactorFeatures.from_tensors(features.tensors())
    for other in (joined, again):
        assert len(other) == 9
        assert torch.equal(other.gram(other), gram)


def test_more_than_ten_layers_survive_the_round_trip():
    torch.manual_seed(0)
    network = nn.Sequential(*[nn.Linear(3, 3) for _ in range(12)]).double().eval()
    inputs = torch.randn(4, 3).double()
    features = bound_map(network, inputs)[0](inputs)
    again = FactorFeatures.from_tensors(dict(sorted(features.tensors().items())))
    assert torch.equal(again.gram(again), features.gram(features))


def test_layer_factors_have_no_columns():
    network, inputs = make("tanh")
    tangents, _, _ = bound_map(network, inputs)
    features = tangents(inputs)
    assert features.explicit() is None
    assert tangents.columns(inputs).numel() == 0
    assert features.select(tangents.columns(inputs)) is features
    with pytest.raises(ValueError, match="no columns"):
        features.select(torch.tensor([0]))


def test_row_bytes_are_what_a_row_takes():
    network, inputs = make("layer norm")
    tangents, _, _ = bound_map(network, inputs)
    taken = sum(value.numel() * value.element_size() for value in tangents(inputs).tensors().values())
    assert tangents.row_bytes() * len(inputs) == taken


def test_a_restored_map_gives_the_same_features():
    network, inputs = make("tanh")
    tangents, _, _ = bound_map(network, inputs)
    again = LayerFactors().restore(tangents.network, tangents.state())
    for name, value in tangents(inputs).tensors().items():
        assert torch.equal(again(inputs).tensors()[name], value)
    assert again.row_bytes() == tangents.row_bytes()


@pytest.mark.parametrize("parameters", ["all", "last", ["2.weight"]])
def test_direction_and_directional_give_j_theta(parameters):
    network, inputs = make("tanh")
    tangents, _, names = bound_map(network, inputs, parameters=parameters)
    found = tangents.network.directional(inputs, tangents.direction(torch.empty(0, dtype=torch.int64)))
    expected = dense_jacobian(network, inputs, names) @ flat_parameters(network, names)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_factors_leave_no_trace_on_the_network():
    network, inputs = make("in place")
    before = copy.deepcopy(network.state_dict())
    tangents, _, _ = bound_map(network, inputs)
    tangents(inputs)
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    for module in [*network.modules(), *tangents.network.module.modules()]:
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
    assert all(p.grad is None for p in network.parameters())


# What layer factors cannot do, they refuse.


class Tokens(nn.Module):
    """A Linear layer on [n, t, d]."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(x)).sum(dim=1))


class FlatTokens(Tokens):
    """The same, the tokens written as further rows."""

    def forward(self, x):
        hidden = torch.tanh(self.layer(x.reshape(-1, 3)))
        return self.last(hidden.reshape(len(x), -1, 4).sum(dim=1))


class Twice(nn.Module):
    """One layer applied twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class SameTensor(nn.Module):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.last(torch.tanh(self.two(torch.tanh(self.one(x)))))


class Transposed(nn.Module):
    """An autoencoder with tied weights: the decoder uses the encoder's weight transposed."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 5)

    def forward(self, x):
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T)


class WeightInTheLoss(nn.Module):
    """A weight that also acts outside its layer, without F.linear."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) * self.layer.weight.square().sum()


class LatentPrediction(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.gain = nn.Linear(3, 2), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layer(x) * self.gain


class Gated(nn.Module):
    """A weight that acts outside its layer for some rows only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) + F.relu(x[:, :1]) * (x @ self.layer.weight.T)


def normed():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 2))


def conv():
    return nn.Sequential(nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(12, 2))


SEED = torch.Generator().manual_seed(2)
vectors, tokens, images = (torch.randn(shape, generator=SEED) for shape in ((6, 3), (6, 4, 3), (6, 12)))

REFUSED = {
    "conv": (conv, images),
    "tokens": (Tokens, tokens),
    "flattened tokens": (FlatTokens, tokens),
    "twice": (Twice, vectors),
    "shared weight": (SameTensor, vectors),
    "transposed weight": (Transposed, vectors),
    "weight elsewhere": (WeightInTheLoss, vectors),
    "weight norm": (normed, vectors),
    "raw parameter": (LatentPrediction, vectors),
    "group norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4)), vectors),
    "embedding": (lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten()), torch.zeros(6, 1).long()),
    "layer norm on tokens": (lambda: nn.Sequential(nn.LayerNorm(3), nn.Flatten()), tokens),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_factorise_is_refused_and_jacobian_rows_can_do_it(name):
    build, inputs = REFUSED[name]
    torch.manual_seed(0)
    network = build().double().eval()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    with pytest.raises(ValueError, match=ALTERNATIVE):
        bound_map(network, inputs)
    prepared = prepare(network, "all", None)
    mix = torch.eye(prepared.matrix(inputs).shape[1], dtype=torch.float64)
    features = JacobianRows().bind(prepared, mix, inputs, torch.zeros(6, 1))(inputs)
    expected = dense_rows(dense_jacobian(network, inputs), mix)
    torch.testing.assert_close(features.rows, expected, rtol=1e-10, atol=1e-10)


def test_a_tie_that_is_silent_on_the_probed_rows_is_refused():
    torch.manual_seed(0)
    network = Gated().double().eval()
    inputs = torch.randn(8, 3).double()
    inputs[0, 0] = inputs[-1, 0] = -1.0
    with pytest.raises(ValueError, match=ALTERNATIVE):
        bound_map(network, inputs)


def test_a_single_sample_row_is_enough_to_find_a_tie():
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=ALTERNATIVE):
        bound_map(Transposed().double().eval(), torch.randn(1, 3).double())
