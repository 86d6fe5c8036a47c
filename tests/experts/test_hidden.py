"""Hidden vectors of training rows: what is kept, the distance, and which layer they are of."""

import copy
import math

import pytest
import torch
from blobs import blobs, fit
from torch import nn
from zoo import Net

import trustgp
from trustgp.experts.hidden import MAX_BYTES, HiddenRows, rows_per_class, unit_vectors
from trustgp.export.onnx.export import open_onnx
from trustgp.state.model_file import model_tensors, model_text, read_model
from trustgp.tangents.jacobian.layer_io import find_head, hidden_rows
from trustgp.tangents.network import prepare

GENERATOR = torch.Generator().manual_seed(0)


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.mark.parametrize(("rows", "k"), [(30, 1), (250, 2)])
def test_the_distance_is_that_to_the_kth_nearest_row_by_cosine(rows, k):
    hidden, new = (torch.randn(n, 5, generator=GENERATOR).double() for n in (rows, 12))
    kept = HiddenRows.of(hidden, torch.zeros(rows, dtype=torch.int64))
    assert kept.neighbours == k
    each = ([1 - cosine(row, other) for other in hidden.tolist()] for row in new.tolist())
    expected = [math.log(sorted(one)[k - 1]) for one in each]
    assert kept(new).flatten().tolist() == pytest.approx(expected, abs=1e-4)
    assert torch.equal(kept(100 * new), kept(new))


def test_as_many_rows_of_each_class_are_kept_also_with_more_rows():
    labels = torch.tensor([0] * 5000 + [3] * 7 + [9] * 600)
    hidden = torch.randn(len(labels), 8, generator=GENERATOR)
    kept = HiddenRows.of(hidden, labels)
    assert torch.bincount(kept.labels).tolist() == [1000, 0, 0, 7, 0, 0, 0, 0, 0, 600]
    more = kept.extended(hidden[:900], torch.full((900,), 3))
    assert torch.bincount(more.labels)[3] == 907
    assert bool((more.points == unit_vectors(hidden[850:851]).float()).all(dim=1).any())
    infinite = HiddenRows.of(torch.tensor([[1.0, torch.inf], [0.0, 1.0]]), labels[:2])
    assert torch.isfinite(infinite.points).all()
    for classes, width in ((10, 128), (1000, 64), (1, 16), (1000, 4096)):
        few = rows_per_class(classes, width)
        assert few == 4 or few * classes * width * 4 <= MAX_BYTES
    assert rows_per_class(10, 128) == 300


def test_vectors_of_zeros_and_of_infinities_are_far():
    kept = HiddenRows.of(torch.eye(3), torch.zeros(3, dtype=torch.int64))
    rows = torch.tensor([[0.0, 0.0, 0.0], [torch.inf, 1.0, 0.0], [-1.0, -1.0, -1.0]])
    expected = [math.log(distance) for distance in (1.0, 2.0, 1 + 1 / math.sqrt(3))]
    assert kept(rows).flatten().tolist() == pytest.approx(expected)


def positions(net, x):
    """A head at every position, whose logits are averaged."""
    return net.head(net.body(x).tanh()).mean(dim=1) * net.scale


PARTS = {"body": nn.Linear(4, 6), "head": nn.Linear(6, 3), "scale": nn.Parameter(torch.ones(3))}
HEADS = {
    "chain": (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (4,), "2.weight"),
    "positions": (Net(positions, **PARTS), (5, 4), "head.weight"),
    "maps": (nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 1), nn.AdaptiveAvgPool2d(1),
                           nn.Flatten()), (1, 6, 6), "2.weight"),
    "normalised": (nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3), nn.LayerNorm(3)), (4,), "1.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_the_head_is_the_last_weight_matrix_and_its_inputs_come_with_the_features(name):
    module, shape, head = HEADS[name]
    network = prepare(module.eval(), "all", None)
    x = torch.randn(7, *shape, generator=GENERATOR)
    network.head = find_head(network, x)
    assert network.head == head
    seen = []
    layer = network.module.get_submodule(head.removesuffix(".weight"))
    with layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])):
        network.module(x)
    axes = {2: (), 3: (1,), 4: (2, 3)}[seen[0].ndim]
    expected = seen[0].detach().mean(dim=axes) if axes else seen[0].detach()
    torch.testing.assert_close(hidden_rows(network, x), expected)
    mix = torch.tensor([[1.0, -1.0, 0.5]], dtype=torch.float64)
    for tangents in (trustgp.Sketch(64), trustgp.JacobianRows()):
        features, outputs = tangents.bind(network, mix, x, x).with_outputs(x)
        torch.testing.assert_close(features.hidden, expected)
        torch.testing.assert_close(outputs, module(x).detach())
    if name == "chain":
        torch.testing.assert_close(trustgp.LayerFactors().bind(network, mix, x, x)(x).hidden, expected)


def test_a_network_whose_last_layer_mixes_the_rows_up_has_no_head():
    # [n, t, 4], the positions first in the layer
    turned = Net(lambda net, x: net.layer(x.transpose(0, 1)).mean(dim=0), layer=nn.Linear(4, 3)).eval()
    assert find_head(prepare(turned, "all", None), torch.randn(6, 5, 4)) == ""


def test_models_keep_save_extend_and_export_hidden_rows(tmp_path):
    case = blobs()
    model = fit(case)
    kept = model.mixtures[0].hidden
    assert (model.origin.head, kept.points.shape) == ("2.weight", (300, 24))
    model.save(tmp_path / "m")
    again = trustgp.load(tmp_path / "m", case.network)
    assert torch.equal(again.mixtures[0].hidden.points, kept.points)
    x = torch.cat([case.test[0], 20 * case.test[0]])
    p = model.predict(x)
    assert torch.equal(again.predict(x).score, p.score)
    alone = torch.cat([model.predict(x[i : i + 1]).score for i in (0, 500)])
    torch.testing.assert_close(alone, p.score[[0, 500]], rtol=1e-4, atol=1e-5)
    trustgp.export_onnx(model, tmp_path / "m.onnx", x[:2])
    score = torch.from_numpy(open_onnx(tmp_path / "m.onnx")(x)["score"])
    torch.testing.assert_close(score.double(), p.score, rtol=1e-3, atol=1e-3)
    model.update((case.test[0][:100], case.test[1][:100]), progress=False)
    assert len(model.mixtures[0].hidden.points) == 400


def test_several_networks_have_the_hidden_rows_of_the_first_and_half_precision_those_of_float32():
    case, other = blobs(), copy.deepcopy(blobs().network)
    with torch.no_grad():
        other[0].weight.mul_(1.1)
    expected = unit_vectors(case.network[:-1](case.train[0]).detach()).float()
    first = fit(case, network=[case.network, other]).mixtures[0].hidden.points
    torch.testing.assert_close(first.sort(dim=0).values, expected.sort(dim=0).values)
    half = copy.deepcopy(case.network).bfloat16()
    rows = [(x.bfloat16(), y) for x, y in (case.train, case.validation)]
    short = fit(case, network=half, train=rows[0], validation=rows[1])
    assert short.mixtures[0].hidden.points.dtype == torch.float32
    assert bool(short.predict(case.test[0].bfloat16()).score.isfinite().all())


def test_small_budgets_and_the_papers_form_have_none_and_old_files_must_be_fitted_again(tmp_path):
    case = blobs()
    assert fit(case, budget="120 KiB").mixtures[0].hidden is None
    paper = trustgp.paper(case.network, case.train, likelihood=trustgp.Classification(), progress=False)
    assert paper.origin.head == ""
    model = fit(case)
    tensors = model_tensors(model.state)
    del tensors["calibration.1.tails"]
    with pytest.raises(trustgp.ArtifactError, match="fit the model again"):
        read_model(model_text(model.state), tensors, case.network, where="f")
    for name, value in (("points", torch.ones(300, 7)), ("labels", torch.full((300,), -1))):
        forged = model_tensors(model.state) | {f"mixture.0.hidden.{name}": value}
        with pytest.raises(trustgp.ArtifactError, match=rf"hidden\.{name}"):
            read_model(model_text(model.state), forged, case.network, where="f")
