"""Ways through a convolution that are faster than torch's own, against that."""

import pytest
import torch
import torch.nn.functional as F
from draws import Draws
from many import each

from trustgp.tangents.jacobian.layer_gradients import depthwise
from trustgp.tangents.jacobian.strategies import FlippedConvBackward, Gelu, TransposedLinearBackward, can_flip

CALLS = [
    (F.conv1d, (4, 3, 5), {}),
    (F.conv1d, (4, 3, 4), {"padding": "same"}),
    (F.conv1d, (4, 3, 2), {"padding": 3, "dilation": 2}),
    (F.conv2d, (4, 3, 3, 2), {"padding": (1, 0)}),
    (F.conv2d, (6, 2, 3, 3), {"groups": 3, "padding": 1}),
    (F.conv2d, (3, 1, 3, 3), {"groups": 3, "padding": "same", "dilation": (1, 2)}),
    (F.conv2d, (4, 3, 1, 1), {"padding": "valid", "stride": 1}),
    (F.conv3d, (4, 3, 2, 1, 3), {"padding": 1, "stride": (1, 1, 1)}),
]


@each(("operation", "shape", "options"), CALLS)
def test_the_signal_comes_back_as_torch_brings_it(operation, shape, options):
    draws = Draws()
    given = {"weight": draws.normal(shape), "bias": draws.normal(shape[:1]), **options}
    channels = shape[1] * options.get("groups", 1)
    inputs = draws.normal(2, channels, *[7] * (len(shape) - 2)).requires_grad_(True)
    assert can_flip(operation, {**given, "input": inputs})
    plain, other = operation(inputs, **given), FlippedConvBackward.apply(inputs, operation, given)
    assert torch.equal(plain, other)
    signal = draws.normal(plain.shape)
    (expected,), (found,) = (torch.autograd.grad(y, inputs, signal) for y in (plain, other))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("operation", "stride"), [(F.conv1d, 2), (F.conv2d, (1, 3)), (F.linear, 1)])
def test_other_calls_are_left_to_torch(operation, stride):
    assert not can_flip(operation, {"input": torch.zeros(1, 1, 4), "stride": stride})


def test_linear_layers_and_gelu_give_and_bring_back_what_torchs_own_do():
    draws = Draws()
    x, signal = draws.normal(2, 5, 4).requires_grad_(True), draws.normal(2, 5, 3)
    given = {"weight": draws.normal(3, 4), "bias": draws.normal(3)}
    pairs = [
        (F.linear(x, **given), TransposedLinearBackward.apply(x, given), signal),
        (F.gelu(x), Gelu.apply(x), x.detach()),
    ]
    for plain, other, back in pairs:
        assert torch.equal(plain, other)
        (expected,), (found,) = (torch.autograd.grad(y, x, back) for y in (plain, other))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


DEPTHWISE = [
    (F.conv1d, (4,), {"padding": "same"}),
    (F.conv2d, (3, 2), {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}),
    (F.conv2d, (2, 2), {"stride": 2}),
    (F.conv3d, (2, 1, 3), {"stride": (1, 2, 1), "padding": (0, 1, 1)}),
]


@each(("operation", "kernel", "options"), DEPTHWISE)
def test_the_gradient_of_a_depthwise_convolution_is_torchs_own_row_by_row(operation, kernel, options):
    draws = Draws()
    weight, inputs = draws.normal(3, 1, *kernel).requires_grad_(True), draws.normal(2, 3, *[7] * len(kernel))
    outputs = operation(inputs, weight, groups=3, **options)
    signal = draws.normal(outputs.shape)
    rows = [torch.autograd.grad(outputs[i], weight, signal[i], retain_graph=True)[0] for i in (0, 1)]
    found = depthwise(inputs, signal, kernel, options, 2)[:, 0]
    torch.testing.assert_close(found, torch.stack(rows), rtol=1e-12, atol=1e-12)
