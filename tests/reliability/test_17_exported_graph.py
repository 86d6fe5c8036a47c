"""Promise 17: an exported graph never returns a finite, confident variance for broken or far inputs."""

import numpy as np
import pytest
import torch
from exported import assert_equal, model_of, rows_of
from many import each
from torch.nn import functional as F

import trustgp
from trustgp.export import open_onnx, traced
from trustgp.export.trace.decompositions import group_norm, layer_norm

pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install "trustgp[export]"')
NAMES = ("relu", "layer norm", "max pool")
SPECIAL = (torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 3e38)


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory):
    """Name, model, its graph in onnxruntime and in torch, and 500 generated rows with their predictions."""
    witness = trustgp.Witness(rows=20, neighbours=1) if request.param == "relu" else None
    model = model_of(request.param, witness=witness, validation=rows_of(request.param, 30, seed=2))
    example = rows_of(request.param, 3)[0]
    path = trustgp.export_onnx(model, tmp_path_factory.mktemp("graph") / "model.onnx", example)
    rows, runner = generated(request.param, 500), open_onnx(path)
    return request.param, model, runner, traced(model, example), rows, runner(rows)


def generated(name: str, n: int) -> torch.Tensor:
    """Familiar rows, rows farther and farther out, and rows with special numbers, in random order."""
    generator = torch.Generator().manual_seed(7)
    rows = rows_of(name, n, seed=6)[0]
    flat = rows.flatten(1)
    scale = 10.0 ** (torch.rand(n, 1, generator=generator) * 12)
    kind = torch.randint(0, 3, (n, 1), generator=generator)
    flat = torch.where(kind == 1, flat * scale, flat)
    value = torch.tensor(SPECIAL)[torch.randint(0, len(SPECIAL), (n, 1), generator=generator)]
    special = torch.rand(flat.shape, generator=generator) < 0.4
    special[:, 0] |= ~special.any(dim=1)
    flat = torch.where((kind == 2) & special, value, flat)
    return flat.reshape(rows.shape)


def at_the_edge(name, model, rows) -> np.ndarray:
    """Rows that may be invalid in the graph and valid in `predict`.

    Near the maximum of float32 the graph computes in it what predict computes in float64. In a layer norm
    four times the sum of squares must be finite, which is more than any kernel's order of summation needs.
    """
    edge = (rows.abs() > 1e37).flatten(1).any(dim=1)
    if name == "layer norm":
        first = model.network[0]
        hidden = F.linear(rows.double(), first.weight.double(), first.bias.double())
        edge |= 4 * hidden.square().sum(dim=1) > 0.999 * torch.finfo(torch.float32).max
    return edge.numpy()


def test_generated_rows_equal_predict_or_are_invalid(case):
    name, model, _, graph, rows, outputs = case
    finite, edge = torch.isfinite(rows).flatten(1).all(dim=1).numpy(), at_the_edge(name, model, rows)
    expected = model.predict(rows)
    valid = expected.valid.numpy()
    both = outputs["valid"] & valid
    assert not outputs["valid"][~finite].any()
    np.testing.assert_array_equal(outputs["valid"][~edge], valid[~edge])
    assert not (outputs["valid"] & ~valid).any()
    assert both.sum() > 250
    assert_equal(model.predict(rows[both]), {k: v[both] for k, v in outputs.items()})
    assert not (graph(rows)["valid"] & ~expected.valid).any()


@each("size", [1e-3, 1.0, 1e15, 3e19, 1e30])
def test_a_normalisation_equals_that_of_torch_or_is_nan(size):
    rows = size * torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(9))
    weight, bias = torch.rand(6) + 1, torch.rand(6)
    gain, offset = torch.rand(4) + 1, torch.rand(4)
    pairs = [
        (layer_norm(rows, (6,), weight, bias, 1e-5)[0], F.layer_norm(rows, (6,), weight, bias)),
        (layer_norm(rows, (4, 6), None, None, 1e-5)[0], F.layer_norm(rows, (4, 6))),
        (group_norm(rows, gain, offset, 5, 4, 6, 2, 1e-5)[0], F.group_norm(rows, 2, gain, offset)),
    ]
    for values, expected in pairs:
        if size < 1e18:
            torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-5)
        else:
            assert bool(values.isnan().all())


def test_an_invalid_row_has_no_finite_variance_and_no_expert_and_leaves_the_others_unchanged(case):
    name, _, runner, _, _, outputs = case
    invalid = ~outputs["valid"]
    assert invalid.sum() > 50
    assert np.isinf(outputs["variance"][invalid]).all()
    assert np.isinf(outputs["corrected_variance"][invalid]).all()
    assert (outputs["novelty"][invalid] == 1).all()
    assert (outputs["expert"][invalid] == -1).all()
    variance = outputs["variance"][~invalid]
    assert ((variance > 0) & np.isfinite(variance)).all()
    rows = rows_of(name, 9, seed=6)[0]
    broken, others = rows.clone(), [0, 1, 2, 3, 5, 6, 7, 8]
    broken[4] = torch.nan
    first, second = runner(rows), runner(broken)
    np.testing.assert_array_equal(first["expert"][others], second["expert"][others])
    for key in (
        "variance",
        "corrected",
        "novelty",
    ):  # an expert's product of fewer rows may be rounded otherwise
        np.testing.assert_allclose(first[key][others], second[key][others], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["relu"], indirect=True)
def test_far_away_the_variance_tends_to_that_of_the_prior(case):
    name, model, runner, *_ = case
    rows = rows_of(name, 40, seed=6)[0]
    novelty = [runner(scale * rows)["novelty"].mean() for scale in (1.0, 10.0, 1e3, 1e6)]
    assert novelty[0] < novelty[1] < novelty[2]
    assert novelty[3] > 0.1
    outputs, expected = runner(1e6 * rows), model.predict(1e6 * rows)
    np.testing.assert_allclose(outputs["variance"], expected.variance.numpy(), rtol=1e-4)
    prior = expected.plain.epistemic / expected.novelty[:, None]
    # the scale of familiar rows does not apply here: the variance is the evidence's own share of the prior
    share = torch.from_numpy(outputs["variance"]) / prior
    assert bool((share > 0.5 * expected.novelty[:, None]).all())
