"""The posterior of all rows: its leverage against dense algebra, and on its way to every runtime."""

import math

import pytest
import torch
from draws import Draws, normal
from reference import dense_jacobian
from tiny_networks import adam
from torch import nn

import trustgp
from trustgp.experts.whole import MIN_LEVERAGE, RIDGE, ContrastPosterior, WholePosterior
from trustgp.math.cross_entropy import two_sided
from trustgp.state.latent import predict_latent
from trustgp.tangents import Sketch
from trustgp.tangents.network import prepare
from trustgp.tangents.sketch import LeadingSketchMap, OutputSketchMap


def by_hand(rows, noise, new):
    """h of new gradients [k, C, D] from those of rows [n, C, D], by one dense inverse."""
    scaled, fresh = rows / noise.sqrt()[:, None], new / noise.sqrt()[:, None]
    total = torch.einsum("ncd,nce->de", scaled, scaled)
    ridge = RIDGE * torch.linalg.eigvalsh(total)[-1]
    inverse = torch.linalg.inv(total + ridge * torch.eye(len(total), dtype=total.dtype))
    return torch.einsum("kcd,de,kce->kc", fresh, inverse, fresh)


@pytest.fixture
def gradients():
    return normal(40, 3, 6), torch.tensor([0.5, 2.0, 0.1], dtype=torch.float64)


def test_leverage_equals_a_dense_inverse_and_left_out_rows_one_without_them(gradients):
    rows, noise = gradients
    moments = torch.einsum("ncd,nce->cde", rows, rows)
    whole = WholePosterior.of(moments, noise, len(rows), torch.float64)
    expected = by_hand(rows, noise, rows)
    torch.testing.assert_close(whole.leverage(rows), expected, rtol=1e-8, atol=0.0)
    torch.testing.assert_close(whole.typical, expected.mean(), rtol=1e-8, atol=0.0)
    torch.testing.assert_close(whole(rows), (expected / expected.mean()).log(), rtol=1e-6, atol=1e-9)
    # an output left out of the sums, as if the row had that output only
    single = by_hand(rows[:, :1], noise[:1], rows[:, :1])
    alone = WholePosterior.of(moments[:1], noise[:1], len(rows), torch.float64)
    others = [torch.cat([rows[:i, :1], rows[i + 1 :, :1]]) for i in range(40)]
    without = torch.cat([by_hand(others[i], noise[:1], rows[i : i + 1, :1]) for i in range(40)])
    left_out = alone.left_out(rows[:, :1]).exp() * single.mean()
    torch.testing.assert_close(left_out, without, rtol=1e-3, atol=0.0)


def test_more_rows_give_the_posterior_of_all(gradients):
    rows, noise = gradients
    first, every = (
        WholePosterior.of(torch.einsum("ncd,nce->cde", some, some), noise, len(some), torch.float64)
        for some in (rows[:30], rows)
    )
    extended = first.extended(rows[30:])
    torch.testing.assert_close(extended.leverage(rows), every.leverage(rows), rtol=1e-8, atol=0.0)
    torch.testing.assert_close(extended.typical, every.typical, rtol=1e-8, atol=0.0)


def test_an_output_without_a_gradient_or_without_errors_has_the_least_leverage(gradients):
    rows, noise = gradients
    noise[1], rows[5, 2] = 0.0, 0.0
    whole = WholePosterior.of(torch.einsum("ncd,nce->cde", rows, rows), noise, 40, torch.float64)
    logs, least = whole(rows), math.log(MIN_LEVERAGE)
    assert logs[:, 1].tolist() == pytest.approx([least] * 40)
    assert float(logs[5, 2]) == pytest.approx(least)
    assert float(logs[:, 0].min()) > least


@pytest.mark.parametrize("kind", ["chain", "hooks"])
def test_sketches_of_each_output_are_those_of_a_map_of_that_output(kind):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)]
    network = nn.Sequential(*layers[:2], *([] if kind == "chain" else [nn.LayerNorm(40)]), *layers[2:])
    inputs, sketch = torch.randn(9, 4), Sketch(128)
    prepared = prepare(network, "all", None)
    mix = torch.tensor([[0.6, -0.8, 0.1]], dtype=torch.float64)
    plain = sketch.bind(prepared, mix, inputs, inputs)
    features = OutputSketchMap(plain)(inputs)
    torch.testing.assert_close(features.rows, plain(inputs).rows, rtol=1e-4, atol=1e-5)
    few = OutputSketchMap(plain)(inputs[:2])  # repeated for each output, unless explicit formulas serve
    torch.testing.assert_close(few.by_output, features.by_output[:2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(few.rows, features.rows[:2], rtol=1e-4, atol=1e-5)
    for c in range(3):
        one = sketch.bind(prepared, torch.eye(3).double()[c : c + 1], inputs, inputs)
        one.projections = plain.projections
        folded = one.tables.folded(features.by_output[:, c : c + 1])
        torch.testing.assert_close(folded, one(inputs).rows, rtol=1e-4, atol=1e-5)
    assert dense_jacobian(network, inputs[:1]).shape[1] == 3  # [n, C, P]
    assert (kind == "chain") == (plain.chain_features() is not None)


@pytest.fixture(scope="module")
def fitted():
    draws = Draws()
    inputs, noise = draws.normal(300, 3, dtype=torch.float32), draws.normal(300, 2, dtype=torch.float32)
    targets = torch.stack([inputs.sum(dim=1).sin(), 3.0 * inputs[:, 0] * inputs[:, 1]], dim=1) + 0.1 * noise
    rows, validation = (inputs[:200], targets[:200]), (inputs[200:250], targets[200:250])
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 2))
    adam(network, lambda net: (net(rows[0]) - rows[1]).square().mean(), 100, 1e-2)
    return trustgp.fit(network, rows, validation=validation, num_experts=2, progress=False), inputs[250:]


def test_a_saved_model_and_an_exported_graph_have_the_same_leverage(fitted, tmp_path):
    model, x = fitted
    assert model.mixtures[0].whole is not None
    assert float(model.calibrations[0].weights[1]) > 0
    prediction = model.predict(x)
    model.save(tmp_path / "m.trustgp")
    loaded = trustgp.load(tmp_path / "m.trustgp", model.network)
    assert torch.equal(loaded.predict(x).variance, prediction.variance)
    latent = predict_latent(model.state, x, prediction.mean)
    assert latent.log_leverage.shape == (50, 2)
    assert float(latent.log_leverage.std()) > 0
    graph = trustgp.export.Graph(model, x[:2])(x)
    torch.testing.assert_close(graph["variance"], prediction.variance, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("kind", ["chain", "hooks"])
def test_sketches_of_leading_differences_are_those_of_each_rows_largest_outputs(kind, outputs):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, outputs)]
    network = nn.Sequential(*layers[:2], *([] if kind == "chain" else [nn.LayerNorm(30)]), *layers[2:])
    inputs = torch.randn(9, 4)
    mix = torch.randn(1, outputs, dtype=torch.float64)
    plain = Sketch(128).bind(prepare(network, "all", None), mix, inputs, inputs)
    each, own = OutputSketchMap(plain)(inputs), LeadingSketchMap(plain, 3)
    for rows in (inputs, inputs[:1]):
        features, logits = own.with_outputs(rows)  # one row is repeated for each signal, in one pass
        torch.testing.assert_close(logits, network(rows))
        torch.testing.assert_close(features.rows, each.rows[: len(rows)], rtol=1e-4, atol=1e-5)
        mixed = torch.einsum("c,ncd->nd", mix[0].float(), each.by_output[: len(rows)])
        torch.testing.assert_close(features.by_output[:, 0], mixed, rtol=1e-4, atol=1e-5)
        if outputs <= 2:
            assert features.by_output.shape[1] == 1
            continue
        order = network(rows).argsort(dim=1, descending=True)[:, :3, None].expand(-1, -1, 128)
        ranked = each.by_output[: len(rows)].gather(1, order)
        leading = ranked[:, 1:] - ranked[:, :1]
        torch.testing.assert_close(features.by_output[:, 1:], leading, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("signals", [1, 2, 4])
def test_the_covariance_of_leading_logits_is_that_of_a_dense_inverse(signals):
    draws = Draws()
    rows, new = draws.normal(40, signals, 6), draws.normal(5, signals, 6)
    moments = torch.einsum("ncd,nce->cde", rows, rows)
    whole = ContrastPosterior.of(moments, torch.zeros(1), len(rows), torch.float64)
    psi, fresh = (values if signals == 1 else values[:, 1:] for values in (rows, new))
    total = torch.einsum("ncd,nce->de", psi, psi)
    ridge = RIDGE * torch.linalg.eigvalsh(total)[-1] * torch.eye(6)
    inverse = torch.linalg.inv(total + ridge)
    typical = torch.einsum("ncd,de,nce->nc", psi, inverse, psi).mean()
    expected = torch.einsum("ncd,de,nje->ncj", fresh, inverse, fresh) / typical
    level = torch.einsum("nd,de,ne->n", new[:, 0], inverse, new[:, 0]) / typical
    latent = whole.latent(new)
    torch.testing.assert_close(latent["covariance"], expected.flatten(1), rtol=1e-8, atol=0.0)
    torch.testing.assert_close(latent["log_leverage"][:, 0], level.log(), rtol=1e-8, atol=1e-10)
    more = whole.extended(new)
    both = torch.cat([rows, new])
    every = ContrastPosterior.of(torch.einsum("ncd,nce->cde", both, both), torch.zeros(1), 45, torch.float64)
    found, expected = (one.latent(new)["covariance"] for one in (more, every))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("outputs", [1, 5])
def test_a_classifiers_probabilities_survive_a_file_a_graph_and_an_update(outputs, tmp_path, generator):
    inputs = torch.randn(400, 4, generator=generator)
    labels = (2 * inputs[:, 0]).round().clamp(-2, 2).long() + 2 if outputs > 1 else (inputs[:, 0] > 0).long()
    train, validation, x = (inputs[:200], labels[:200]), (inputs[200:300], labels[200:300]), inputs[300:]

    def loss(net):
        z = net(train[0])
        return nn.functional.cross_entropy(z if outputs > 1 else two_sided(z), train[1])

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, outputs))
    options = {"likelihood": trustgp.Classification(top_classes=3), "num_experts": 2, "progress": False}
    model = trustgp.fit(adam(network, loss, 80, 2e-2), train, validation=validation, **options)
    p, k = model.predict(x), 2 if outputs > 1 else 1
    before = model.mixtures[0].whole.latent(model.mixtures[0].tangents(x).by_output)["covariance"]
    assert p.covariance.shape == (100, k, k)
    assert torch.equal(p.classes, (p.mean[:, 0] > 0).long() if outputs == 1 else p.mean.argmax(dim=1))
    assert torch.equal(p.reordered, p.probabilities.argmax(dim=1) != p.classes)
    model.save(tmp_path / "model.trustgp")
    loaded = trustgp.load(tmp_path / "model.trustgp", network)
    assert torch.equal(loaded.predict(x).probabilities, p.probabilities)
    graph = trustgp.export.Graph(model, x[:2])(x)["probabilities"]
    torch.testing.assert_close(graph, p.probabilities, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model.predict(x[:1]).probabilities, p.probabilities[:1], rtol=1e-4, atol=1e-6)
    for one in (model, loaded):
        one.update((x, labels[300:]), progress=False)
        covariance = one.mixtures[0].whole.latent(one.mixtures[0].tangents(x).by_output)["covariance"]
        latent = model.mixtures[0].whole.latent(model.mixtures[0].tangents(x).by_output)["covariance"]
        torch.testing.assert_close(covariance, latent, rtol=1e-3, atol=1e-6)
        assert one.predict(x).probabilities.isfinite().all()
    assert float(covariance.mean()) < float(before.mean())
