"""Several labels a row: from fit to file, against formulas in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from draws import Draws
from tiny_networks import train
from torch import nn

import trustgp
from trustgp import metrics
from trustgp.data.tensor_file import ArtifactError
from trustgp.experts.hidden import unit_vectors
from trustgp.export import open_compiled
from trustgp.export.onnx.export import open_onnx
from trustgp.likelihoods.multilabel import LABEL_STD, LabelRows, LabelTemperature


def draw(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    z = torch.stack([2 * x[:, 0].sin() + x[:, 1], x[:, 1] * x[:, 2] - 1.0], dim=1)
    return x, (torch.rand(n, 2, generator=generator) < z.sigmoid()).long()


def network_of(*more, outputs=2):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, outputs), *more)


ROWS, HELD_OUT, TEST = draw(300, 0), draw(200, 1), draw(400, 2)
NETWORK = train(network_of(), lambda net: nn.BCEWithLogitsLoss()(net(ROWS[0]), ROWS[1].float()))
OPTIONS = {"likelihood": "multilabel", "validation": HELD_OUT, "num_experts": 2, "progress": False}


@pytest.fixture(scope="module")
def model():
    return trustgp.fit(NETWORK, ROWS, **OPTIONS)


def test_logits_and_labels_are_the_networks_and_probabilities_are_tempered_sigmoids(model):
    p, logits = model.predict(TEST[0]), NETWORK(TEST[0]).detach()
    assert isinstance(p, trustgp.LabelPrediction)
    assert torch.equal(p.mean, logits)
    assert torch.equal(p.labels, logits > 0)
    temperature, novelty = model.calibrations
    variance = p.variance[:, :1].double()
    expected = torch.sigmoid(logits.double() / (temperature.base + temperature.slope * variance).sqrt())
    torch.testing.assert_close(p.probabilities.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(p.probabilities > 0.5, p.labels)
    p_soft = torch.sigmoid(logits.double() / 3.0)
    entropy = -(p_soft * p_soft.log() + (1 - p_soft) * (1 - p_soft).log()).sum(dim=1)
    hidden = unit_vectors(NETWORK[:-1](TEST[0]).detach())
    nearest = 1.0 - (hidden @ model.mixtures[0].hidden.points.double().T).sort(dim=1).values[:, -3]
    measures = [variance[:, 0], p.novelty.double(), nearest.clamp_min(1e-5).log(), entropy.log()]
    torch.testing.assert_close(p.score, novelty(torch.stack(measures, dim=1)), rtol=1e-4, atol=1e-4)
    log_p = torch.where(TEST[1] > 0, expected, 1 - expected).log()
    torch.testing.assert_close(p.log_prob(TEST[1]), log_p, rtol=1e-4, atol=1e-6)
    entropy = -(expected * expected.log() + (1 - expected) * (1 - expected).log()).sum(dim=1)
    torch.testing.assert_close(p.entropy, entropy, rtol=1e-5, atol=1e-6)
    assert p.sample(4000, torch.Generator().manual_seed(0)).double().mean(0).sub(expected).abs().max() < 0.06


def test_experts_learn_the_newton_step_of_each_logit():
    z, y = torch.tensor([[0.5, -2.0], [3.0, 0.0]]).double(), torch.tensor([[1, 0], [0, 1]])
    p = 1.0 / (1.0 + torch.exp(-z))
    step = trustgp.MultiLabel().residual(z, y)
    torch.testing.assert_close(step, (y - p) / (p * (1 - p) + 0.01), rtol=1e-12, atol=0)
    gradient = z - trustgp.MultiLabel().pruning_targets(lambda: z, y)
    torch.testing.assert_close(gradient, p - y, rtol=1e-12, atol=1e-15)


def posterior_loss(rows, steps):
    """Of log lambda, log of all b, and of each over that, in plain Python."""
    total, spreads = 0.0, [3.0, 0.5, *[LABEL_STD] * (len(steps) - 2)]
    for i in range(len(rows)):
        for c in range(len(steps) - 2):
            own, variance = math.exp(steps[1] + steps[2 + c]), float(rows.variances[i, 0])
            z = float(rows.logits[i, c]) / math.sqrt(own + math.pi / 8 * math.exp(steps[0]) * variance)
            total += math.log1p(math.exp(-z if rows.targets[i, c] > 0 else z))
    return total + 0.5 * sum((step / s) ** 2 for step, s in zip(steps, spreads, strict=True))


def held_out_rows(n=40, overconfident=(1.0, 4.0)):
    draws = Draws()
    z, shares, variance = 2 * draws.normal(n, 2), draws.uniform(n, 2), draws.uniform(n)
    targets = (shares < z.sigmoid()).double()
    return LabelRows(z * torch.tensor(overconfident), targets, variance[:, None], torch.zeros(n, 4))


def test_temperatures_are_those_of_the_largest_posterior():
    rows = held_out_rows()
    fitted = LabelTemperature.fit(rows, seen=False)
    common = float(fitted.base.log().sum()) / (2 + LABEL_STD**2 / 0.5**2)  # where both priors balance
    steps = [math.log(float(fitted.slope) * 8 / math.pi), common, *(fitted.base.log() - common).tolist()]
    best = posterior_loss(rows, steps)
    for place in range(len(steps)):
        for change in (-0.02, 0.02):
            assert posterior_loss(rows, [s + change * (k == place) for k, s in enumerate(steps)]) > best
    assert float(fitted.base[1]) > 1.5 * float(fitted.base[0])  # the second label is overconfident


def test_few_rows_pull_labels_together_and_of_training_rows_the_loss_alone_counts():
    few, many = (LabelTemperature.fit(held_out_rows(n), seen=False).base for n in (10, 1000))
    assert 1.0 < float(few[1] / few[0]) < float(many[1] / many[0])
    rows = held_out_rows()
    assert LabelTemperature.fit(rows, seen=True).base.tolist() == [1.0, 1.0]
    fitted = replace(rows, logits=5.0 * (2.0 * rows.targets - 1.0))
    expected = (0.15 / math.log1p(math.exp(-5.0))) ** (2 / 8)
    assert LabelTemperature.fit(fitted, seen=True).base.tolist() == pytest.approx([expected, expected])


def assert_same(values, wanted):
    probabilities = torch.as_tensor(values["probabilities"])
    torch.testing.assert_close(probabilities, wanted.probabilities, rtol=1e-4, atol=1e-5)
    assert np.array_equal(np.asarray(values["labels"]).astype(bool), wanted.labels.numpy())


@pytest.mark.nightly
def test_a_compiled_package_predicts_the_same(model, tmp_path):
    """A minute of compiling: the one package with an output of booleans for each label."""
    trustgp.compile(model, tmp_path / "model.pt2", TEST[0][:5])
    assert_same(open_compiled(tmp_path / "model.pt2")(TEST[0][:7]), model.predict(TEST[0][:7]))


def test_files_and_exports_predict_the_same(model, tmp_path):
    wanted = model.predict(TEST[0][:7])
    model.save(tmp_path / "model.trustgp")
    again = trustgp.load(tmp_path / "model.trustgp", NETWORK).predict(TEST[0][:7])
    assert torch.equal(again.probabilities, wanted.probabilities)
    assert torch.equal(again.score, wanted.score)
    trustgp.export_onnx(model, tmp_path / "model.onnx", TEST[0][:5])
    assert_same(open_onnx(tmp_path / "model.onnx")(TEST[0][:7]), wanted)
    monitor = trustgp.Monitor(open_onnx(tmp_path / "model.onnx"), threshold=1e9, confidence=0.9)
    sure = torch.maximum(wanted.probabilities, 1 - wanted.probabilities).amin(dim=1)
    verdicts = [(float(s) < 0.9, monitor(x).status) for s, x in zip(sure, TEST[0], strict=False)]
    assert dict(verdicts)[True] == "uncertain"


def test_a_damaged_file_is_refused(model, tmp_path):
    model.state.calibrations[0].base.neg_()
    try:
        model.save(tmp_path / "model.trustgp")
    finally:
        model.state.calibrations[0].base.neg_()
    with pytest.raises(ArtifactError, match="base"):
        trustgp.load(tmp_path / "model.trustgp", NETWORK)


def test_updates_monitors_prints_and_bad_rows(model):
    other = trustgp.fit(NETWORK, ROWS, **OPTIONS)
    before = other.predict(5 * TEST[0]).novelty.mean()
    other.update((5 * TEST[0], TEST[1].bool()), progress=False)
    assert other.predict(5 * TEST[0]).novelty.mean() < before
    rows = TEST[0][:3].clone()
    rows[1, 0] = torch.nan
    p = model.predict(rows)
    assert p.valid.tolist() == [True, False, True]
    assert p.probabilities[1].tolist() == [0.5, 0.5]
    monitor = trustgp.Monitor(model)
    assert {monitor(20 * row).status for row in TEST[0][:20]} == {"novel"}
    assert "MultiLabel()" in repr(model)
    assert "2 labels" in repr(p)
    assert len(p[:2].numpy()["labels"]) == 2


def test_every_kernel_of_outputs_and_one_label_work():
    for outputs in ("shared", "separate"):
        p = trustgp.fit(NETWORK, ROWS, outputs=outputs, **OPTIONS).predict(TEST[0])
        assert p.temperature.shape == (400, 2)
        assert bool(torch.isfinite(p.log_prob(TEST[1])).all())
    one = (HELD_OUT[0], HELD_OUT[1][:, 0])
    flat = network_of(nn.Flatten(0), outputs=1).eval()
    p = trustgp.fit(flat, (ROWS[0], ROWS[1][:, 0]), **OPTIONS | {"validation": one}).predict(TEST[0])
    assert (p.mean.shape, p.probabilities.shape) == ((400,), (400, 1))


def test_of_several_networks_the_mean_of_the_probabilities_counts():
    networks = [NETWORK, network_of().eval()]
    p = trustgp.fit(networks, ROWS, **OPTIONS).predict(TEST[0])
    mean = torch.stack([one(TEST[0]).double().sigmoid() for one in networks]).mean(dim=0)
    torch.testing.assert_close(p.mean.double().sigmoid(), mean, rtol=1e-5, atol=1e-6)


def test_scores_are_those_of_numpy(model):
    p, y = model.predict(TEST[0]), TEST[1].numpy()
    report = trustgp.evaluate(model, (TEST[0], TEST[1].bool()), ood=5 * TEST[0], progress=False)
    q = p.probabilities.double().numpy()
    likelihood = np.where(y == 1, q, 1 - q)
    assert report.nll == pytest.approx(-np.log(likelihood).mean())
    assert report.brier == pytest.approx(((q - y) ** 2).mean())
    assert report.accuracy == pytest.approx(((q > 0.5) == y).mean())
    assert report.exact == pytest.approx(((q > 0.5) == y).all(axis=1).mean())
    error, values, there = 0.0, q.ravel(), y.ravel()
    for low in np.arange(15) / 15:
        inside = (values > low) & (values <= low + 1 / 15 + 1e-12)
        if inside.any():
            error += abs(values[inside].mean() - there[inside].mean()) * inside.mean()
    assert report.ece == pytest.approx(error)
    own = 1 / (1 + np.exp(-p.mean.double().numpy()))
    assert report.network_nll == pytest.approx(-np.log(np.where(y == 1, own, 1 - own)).mean(), rel=1e-5)
    names = list(report.outputs)
    assert report.outputs[names[1]].nll == pytest.approx(-np.log(likelihood[:, 1]).mean())
    foreign = model.predict(5 * TEST[0]).score
    assert report.auroc_score == pytest.approx(float(metrics.auroc(p.score, foreign)))
    assert trustgp.evaluate(p, TEST[1]).nll == report.nll
    assert "2 labels" in str(report)


SOFT, SHORT = TEST[1].double() * 0.9, (ROWS[0], ROWS[1][:, 0])
REFUSED = [
    ((TEST[0], SOFT), {}, "neither 0 nor 1 in .* first 0.9 in row"),
    ((TEST[0], TEST[1] * 2), {}, "neither 0 nor 1"),
    (SHORT, {}, r"shape \[300, 1\], and the network has 2 logits.*Classification\(\)"),
    (ROWS, {"validation": (HELD_OUT[0], -HELD_OUT[1])}, "validation targets are neither 0 nor 1"),
    ((ROWS[0], torch.cat([ROWS[1], ROWS[1]], 1)), {}, r"\[300, 4\]"),
]


@pytest.mark.parametrize(("rows", "options", "message"), REFUSED)
def test_targets_that_are_not_0_or_1_for_each_label_are_refused_before_the_fit(rows, options, message):
    with pytest.raises(ValueError, match=message):
        trustgp.fit(NETWORK, rows, **OPTIONS | options)


def test_what_labels_do_not_have_is_refused_in_a_sentence(model):
    p = model.predict(TEST[0][:2])
    for call in (p.interval, lambda: p.quantile(0.5), lambda: p.crps(TEST[1][:2])):
        with pytest.raises(TypeError, match="a label has no interval"):
            call()
    with pytest.raises(AttributeError, match="several labels"):
        _ = p.classes
    with pytest.raises(TypeError, match="no conformal sets"):
        model.conformal(HELD_OUT)
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        trustgp.evaluate(model, (TEST[0], SOFT))
    with pytest.raises(ValueError, match="MultiLabel"):
        trustgp.fit(NETWORK, ROWS, likelihood="classification")


def test_labels_that_never_change_and_probabilities_as_outputs_are_named():
    with pytest.warns(UserWarning, match=r"1 of 2 labels are the same in all training rows \(1\)"):
        trustgp.fit(NETWORK, (ROWS[0], ROWS[1] * torch.tensor([1, 0])), **OPTIONS)
    with pytest.warns(UserWarning, match="look like probabilities"):
        trustgp.fit(nn.Sequential(NETWORK, nn.Sigmoid()).eval(), ROWS, **OPTIONS)
