"""Promise 17: an exported graph is never confident about what it cannot know."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exported import CONVS, assert_equal, model_of, rows_of

import trustgp
from trustgp.export import open_onnx, traced

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


def test_a_thousand_odd_rows_are_answered_as_by_predict_or_not_at_all(case):
    name, model, runner, graph = case
    rows = generated(name, 1000)
    expected, found = model.predict(rows), runner(rows)
    finite = torch.isfinite(rows).flatten(1).all(dim=1).numpy()
    assert not found["valid"][~finite].any()
    # at the end of float32 the graph, which does in it what predict does in float64, may not answer
    edge = (rows.abs() > 1e37).flatten(1).any(dim=1).numpy()
    both = found["valid"] & expected.valid.numpy()
    np.testing.assert_array_equal(found["valid"][~edge], expected.valid.numpy()[~edge])
    assert not (found["valid"] & ~expected.valid.numpy()).any()
    assert both.sum() > 500
    assert_equal(model.predict(rows[both]), {k: v[both] for k, v in found.items()})
    told = graph(rows)
    assert not (told["valid"] & ~expected.valid).any()


def test_what_is_not_valid_has_no_finite_variance_and_no_expert(case):
    name, _, runner, _ = case
    found = runner(generated(name, 1000))
    lost = ~found["valid"]
    assert lost.sum() > 50
    assert np.isinf(found["variance"][lost]).all()
    assert np.isinf(found["corrected_variance"][lost]).all()
    assert (found["novelty"][lost] == 1).all()
    assert (found["expert"][lost] == -1).all()
    assert (found["variance"][found["valid"]] > 0).all()  # a number, or infinite where float32 ends


def test_a_bad_row_changes_nothing_for_the_others(case):
    name, _, runner, _ = case
    rows = rows_of(name, 9, seed=6)[0]
    spoilt = rows.clone()
    spoilt[4] = torch.nan
    others = [i for i in range(9) if i != 4]
    one, other = runner(rows), runner(spoilt)
    for key in ("variance", "corrected", "novelty", "expert"):
        np.testing.assert_array_equal(one[key][others], other[key][others])


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
