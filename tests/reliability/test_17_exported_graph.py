"""Promise 17: an exported graph is never confident about what it cannot know."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from exported import CONVS, assert_equal, model_of, rows_of
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import trustgp
from trustgp.export import open_onnx, traced
from trustgp.export.trace.decompositions import group_norm, layer_norm

pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install "trustgp[export]"')
NAMES = ("relu", "layer norm", "max pool")
SPECIAL = (torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 3e38)


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory):
    """Name, model, and the graph in onnxruntime and in torch."""
    witness = None if request.param in CONVS else trustgp.Witness(rows=20)
    model = model_of(request.param, witness=witness, validation=rows_of(request.param, 30, seed=2))
    example = rows_of(request.param, 3)[0]
    path = trustgp.export_onnx(model, tmp_path_factory.mktemp("graph") / "model.onnx", example)
    return request.param, model, open_onnx(path), traced(model, example)


def generated(name: str, n: int) -> torch.Tensor:
    """Familiar rows, rows ever farther out, and rows with a few special numbers, in random order."""
    generator = torch.Generator().manual_seed(7)
    rows = rows_of(name, n, seed=6)[0]
    flat = rows.flatten(1)
    scale = 10.0 ** (torch.rand(n, 1, generator=generator) * 12)
    kind = torch.randint(0, 3, (n, 1), generator=generator)
    flat = torch.where(kind == 1, flat * scale, flat)
    value = torch.tensor(SPECIAL)[torch.randint(0, len(SPECIAL), (n, 1), generator=generator)]
    struck = torch.rand(flat.shape, generator=generator) < 0.4
    struck[:, 0] |= ~struck.any(dim=1)
    flat = torch.where((kind == 2) & struck, value, flat)
    return flat.reshape(rows.shape)


class Kernel(TorchDispatchMode):
    """Layer norm as torch's kernels of other processors compute it; they differ where squares overflow.

    The variance is summed over vectors of the processor's width and over what is left of a row; then the
    parts are put together by the square of the difference of their means times their sizes. A row that is
    shorter than a vector has an empty part: an infinite square times 0, which is no number. Else the variance
    is infinite, one over it 0, and all of the row a harmless 0.

    Args:
        short: Whether the rows are shorter than a vector.
    """

    def __init__(self, *, short: bool) -> None:
        super().__init__()
        self.short = short

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten.native_layer_norm.default:
            return func(*args, **(kwargs or {}))
        x, _, weight, bias, epsilon = args
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        if self.short:
            variance = variance + mean.square() * 0.0
        inverse = (variance + epsilon).rsqrt()
        found = (x - mean) * inverse * (1.0 if weight is None else weight)
        return found + (0.0 if bias is None else bias), mean, inverse


KERNELS = {"here": nullcontext(), "wide": Kernel(short=True), "narrow": Kernel(short=False)}


def at_the_edge(name, model, rows) -> np.ndarray:
    """Rows on which the graph may be silent though `predict` answers.

    At the end of float32 the graph does in it what predict does in float64. In a layer norm four times the
    sum of squares must be a number, which is more than any kernel's order of summation needs.
    """
    edge = (rows.abs() > 1e37).flatten(1).any(dim=1)
    if name == "layer norm":
        first = model.network[0]
        hidden = F.linear(rows.double(), first.weight.double(), first.bias.double())
        edge |= 4 * hidden.square().sum(dim=1) > 0.999 * torch.finfo(torch.float32).max
    return edge.numpy()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_thousand_odd_rows_are_answered_as_by_predict_or_not_at_all(case, kernel):
    name, model, runner, graph = case
    if kernel != "here" and name != "layer norm":
        pytest.skip("no layer norm in it")
    rows = generated(name, 1000)
    with KERNELS[kernel]:
        expected = model.predict(rows)
    found, told = runner(rows), graph(rows)
    finite = torch.isfinite(rows).flatten(1).all(dim=1).numpy()
    assert not found["valid"][~finite].any()
    edge = at_the_edge(name, model, rows)
    both = found["valid"] & expected.valid.numpy()
    np.testing.assert_array_equal(found["valid"][~edge], expected.valid.numpy()[~edge])
    assert not (found["valid"] & ~expected.valid.numpy()).any()
    assert both.sum() > 500
    with KERNELS[kernel]:
        assert_equal(model.predict(rows[both]), {k: v[both] for k, v in found.items()})
    assert not (told["valid"] & ~expected.valid).any()


@pytest.mark.parametrize("case", ["layer norm"], indirect=True)
def test_where_squares_overflow_kernels_differ_and_the_graph_does_not_answer(case):
    name, model, runner, graph = case
    draw = torch.rand(400, 1, generator=torch.Generator().manual_seed(8))
    rows = rows_of(name, 400, seed=6)[0] * 10.0 ** (17 + 8 * draw)  # on both sides of where that begins
    found, edge = runner(rows), at_the_edge(name, model, rows)
    told = {}
    for kernel, patch in KERNELS.items():
        with patch:
            told[kernel] = model.predict(rows)
        assert not (found["valid"] & ~told[kernel].valid.numpy()).any(), kernel
        assert not (graph(rows)["valid"] & ~told[kernel].valid).any(), kernel
        with patch:
            assert_equal(model.predict(rows[~edge]), {k: v[~edge] for k, v in found.items()})
    assert told["narrow"].valid.all()
    assert not told["wide"].valid.all()
    assert 50 < edge.sum() < 390
    surely = (rows.abs().amax(dim=1) > 1e21).numpy()
    assert not found["valid"][surely].any()
    assert np.isinf(found["variance"][~found["valid"]]).all()


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e15, 3e19, 1e30])
def test_a_normalisation_equals_that_of_torch_or_is_no_number(size):
    rows = size * torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(9))
    weight, bias = torch.rand(6) + 1, torch.rand(6)
    gain, offset = torch.rand(4) + 1, torch.rand(4)
    pairs = [
        (layer_norm(rows, (6,), weight, bias, 1e-5)[0], F.layer_norm(rows, (6,), weight, bias)),
        (layer_norm(rows, (4, 6), None, None, 1e-5)[0], F.layer_norm(rows, (4, 6))),
        (group_norm(rows, gain, offset, 5, 4, 6, 2, 1e-5)[0], F.group_norm(rows, 2, gain, offset)),
    ]
    for found, expected in pairs:
        if size < 1e18:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        else:
            assert bool(found.isnan().all())


def test_what_is_not_valid_has_no_finite_variance_and_no_expert(case):
    name, _, runner, _ = case
    found = runner(generated(name, 1000))
    lost = ~found["valid"]
    assert lost.sum() > 50
    assert np.isinf(found["variance"][lost]).all()
    assert np.isinf(found["corrected_variance"][lost]).all()
    assert (found["novelty"][lost] == 1).all()
    assert (found["expert"][lost] == -1).all()
    sure = found["variance"][found["valid"]]
    assert ((sure > 0) & np.isfinite(sure)).all()


@pytest.mark.parametrize("case", ["relu"], indirect=True)
def test_far_away_the_variance_tends_to_that_of_the_prior(case):
    name, model, runner, _ = case
    rows = rows_of(name, 40, seed=6)[0]
    novelty = [runner(scale * rows)["novelty"].mean() for scale in (1.0, 10.0, 1e3, 1e6)]
    assert novelty[0] < novelty[1] < novelty[2]
    assert novelty[3] > 0.1
    found, expected = runner(1e6 * rows), model.predict(1e6 * rows)
    np.testing.assert_allclose(found["variance"], expected.variance.numpy(), rtol=1e-4)
    prior = expected.plain.epistemic / expected.novelty[:, None]
    # no scale that was found near the data is left: what is reported is the evidence's own share of the prior
    share = torch.from_numpy(found["variance"]) / prior
    assert bool((share > 0.5 * expected.novelty[:, None]).all())
