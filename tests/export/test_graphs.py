"""Graphs on their way to a file: passes change no number, and onnxruntime computes what torch does."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from many import each
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import trustgp
from trustgp.export.onnx.translate import to_onnx
from trustgp.export.trace.decompositions import table
from trustgp.export.trace.trace import _any_batch, simplify

ROWS = 1009  # a prime that stands for the number of rows


def graph_of(function: Callable, *inputs: Tensor):
    """The function as a graph of aten operations, traced on inputs of as many rows."""
    return make_fx(function, table(), tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def calls(graph) -> int:
    return sum(node.op == "call_function" for node in graph.graph.nodes)


def rows(n: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WEIGHT = rows(3, 3, seed=1)


def idle(x: Tensor) -> Tensor:
    probe = torch.zeros((), dtype=x.dtype).expand_as(x)
    return (x.clone() + probe)[:].reshape(x.shape).detach() * 2.0


SIMPLIFIED: list[tuple[Callable[[Tensor], Tensor], int | None]] = [  # and the operations that are left
    (lambda x: (x @ WEIGHT).tanh() + (x @ WEIGHT).tanh(), 3),  # product, tanh, sum
    (lambda x: torch.stack([x.sum(0), x.sum(1), (x > 1).double().sum(0)]), None),  # they only look alike
    (idle, 1),  # copies, zeros and whole slices go
    (lambda x: x[:, :1] + torch.zeros(3, 3, dtype=x.dtype), None),  # a sum with zeros that widens stays
    (lambda x: x @ (WEIGHT @ WEIGHT + 1.0), 1),  # constants are folded
]


def test_what_is_repeated_constant_or_idle_goes():
    for function, left in SIMPLIFIED:
        graph = simplify(graph_of(function, rows(3, 3)))
        torch.testing.assert_close(graph(rows(3, 3, seed=4)), function(rows(3, 3, seed=4)))
        assert left in (None, calls(graph))
    assert len([*graph.buffers()]) == 1  # what the constant was made of is dropped


def test_constants_that_would_grow_are_not_folded():
    graph = simplify(graph_of(lambda x: x + torch.ones(1, dtype=x.dtype).expand(300, 300).sum(), rows(2, 2)))
    assert all(value.nbytes <= 2**16 for value in graph.buffers())
    torch.testing.assert_close(graph(rows(2, 2)), rows(2, 2) + 90000)


def test_what_was_made_from_the_number_of_rows_follows_any_number():
    def function(x: Tensor) -> Tensor:
        twice = x.reshape(2 * x.shape[0], -1).flip(1).reshape(x.shape)
        return torch.cat([twice, torch.ones(x.shape[0], 1, dtype=x.dtype)], dim=1)

    graph = graph_of(function, rows(ROWS, 4))
    _any_batch(graph, ROWS)
    simplify(graph)
    for n in (1, 2, 17):
        torch.testing.assert_close(graph(rows(n, 4)), function(rows(n, 4)))


KERNEL = rows(4, 3, 3, seed=2).float()
PLACES, SHIFT = torch.tensor([2, 1, 0]), torch.tensor([1, 2, 0])
OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "add with a factor": (lambda x: torch.add(x, x.abs(), alpha=-0.5), (3,)),
    "subtract from a number": (lambda x: torch.rsub(x, 2.0), (3,)),
    "power of a number": (lambda x: torch.pow(2.0, x), (3,)),
    "whole powers": (lambda x: x.pow(3) + x.square(), (3,)),
    "clamp on one side": (lambda x: x.clamp(min=-0.3) - x.clamp(max=0.4), (3,)),
    "comparisons": (lambda x: ((x > 0.1) & (x <= 1.0) | (x == 0)).float(), (3,)),
    "where, NaN and infinity": (lambda x: torch.where(torch.isfinite(1 / x.relu()), x, 0.5), (3,)),
    "distances, and fmin beside NaN": (
        lambda x: torch.cdist(x, x.flip(1)).fmin(torch.where(x > 0, x, torch.nan)),
        (3, 3),
    ),
    "infinities": (lambda x: torch.isinf(1 / x.relu()).float(), (3,)),
    "smooth activations": (lambda x: F.elu(x) + F.gelu(x) + F.silu(x) + torch.erf(x), (3,)),
    "softmax and its logarithm": (lambda x: F.softmax(x, 1) + F.log_softmax(x, 1), (5,)),
    "sums, means and extremes": (lambda x: x.sum(1) + x.mean(1) + x.amax(1) + x.amin(1), (4,)),
    "sums along a short first dimension": (lambda x: torch.stack([x, x.abs(), x * x]).sum(0), (4,)),
    "cumulative sums": (lambda x: x.cumsum(1), (4,)),
    "accurate near zero": (lambda x: (1e-6 * x.abs()).log1p() * 1e6 + (1e-6 * x).expm1() * 1e6, (4,)),
    "places of extremes": (lambda x: (x.argmax(1) + x.argmin(1)).float(), (4,)),
    "gather along a dimension": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), (5,)),
    "slices with steps": (lambda x: x[:, 1::2] + x[:, :-1:2], (6,)),
    "flip, roll and repeat": (lambda x: x.flip(1).repeat(1, 2), (3,)),
    "parts and stacks": (lambda x: torch.stack(x.split(2, dim=1), 1).flatten(1), (6,)),
    "pads": (lambda x: F.pad(x, (1, 2), value=0.5), (3,)),
    "products with a vector": (lambda x: x @ KERNEL[0, 0], (3,)),
    "products of transposed matrices": (lambda x: (x.double().mT @ x.mT.double().mT).float(), (3, 4)),
    "convolution with stride and dilation": (
        lambda x: F.conv1d(x, KERNEL, stride=2, padding=2, dilation=2),
        (3, 9),
    ),
    "largest, and its place": (lambda x: x.max(1).values + x.max(1).indices, (5,)),
    "several indices": (
        lambda x: x[:, PLACES[:, None], PLACES - 2] + x[:, PLACES, PLACES][:, :, None],
        (4, 3),
    ),
    "cyclic shifts": (lambda x: x.index_select(1, SHIFT) + x.index_select(1, PLACES), (3,)),
    "an index for each row": (lambda x: x[torch.arange(len(x))[:, None], PLACES[None]], (4,)),
    "a slice put in": (lambda x: torch.slice_scatter(x, 2.0 * x[:, 1:3], 1, 1, 3), (4,)),
    "samples of a grid": (
        lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1), padding_mode="border", align_corners=False),
        (2, 5, 4),
    ),
    "the nearest places": (lambda x: F.interpolate(x, size=(3, 7)), (2, 5, 4)),
    "pools": (lambda x: F.max_pool1d(x, 3, 2, 1)[..., :4] + F.avg_pool1d(x, 2)[..., :4], (2, 8)),
}


def written(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]):
    """The function as an ONNX model of any number of rows."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    traced = graph_of(lambda x: {"found": function(x)}, rows(ROWS, *shape).float())
    _any_batch(traced, ROWS)
    traced.meta["rows"] = ROWS
    return to_onnx(simplify(traced), ["x"])


@each("name", OPERATIONS)
def test_onnxruntime_computes_an_operation_as_torch_does(name):
    runtime = pytest.importorskip("onnxruntime")
    function, shape = OPERATIONS[name]
    file = written(function, shape)
    session = runtime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    for n in (1, 3):
        x = rows(n, *shape, seed=n).float()
        (found,) = session.run(None, {"x": x.numpy()})
        # float32, and other approximations of erf and exp
        np.testing.assert_allclose(found, function(x).numpy(), rtol=1e-4, atol=1e-5)


def test_an_operation_without_a_translation_is_refused_by_name():
    with pytest.raises(trustgp.ExportError, match=r"aten\.sort\.default"):
        written(lambda x: x.sort(1).values, (4,))
