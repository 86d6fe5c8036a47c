"""Classification from fit to file: one small case, end to end."""

import copy
import warnings

import pytest
import torch
from blobs import blobs, draw, fit
from reference import dense_jacobian, tail_exponent
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp import metrics


def test_the_logits_are_the_networks_and_experts_share_one_prior_without_a_witness(blob, blob_model):
    p = blob_model.predict(blob.test[0])
    assert torch.equal(p.mean, blob.network(blob.test[0]))
    assert torch.equal(p.classes, blob.network(blob.test[0]).argmax(1))
    assert isinstance(p, trustgp.ClassPrediction)
    assert p.probabilities.shape == p.variance.shape == (400, 3)
    assert p.corrected is p
    assert (blob_model.origin.outputs, blob_model.witness) == ("pseudo", None)
    experts = blob_model.mixtures[0].experts
    assert len({float(e.scale) for e in experts}) == len({float(e.noise) for e in experts}) == 1
    assert all(e.scale.shape == (1,) for e in experts)


def test_the_latent_variance_is_that_of_a_dense_gp(blob):
    network = copy.deepcopy(blob.network).double()
    inputs, labels = blob.train[0][:60].double(), blob.train[1][:60]
    held = (blob.validation[0].double(), blob.validation[1])
    model = fit(blob, network=network, train=(inputs, labels), validation=held, num_experts=1)
    mix = model.mixtures[0].tangents.mix[0]  # u, one combination of the logits
    tested = blob.test[0][:20].double()
    rows, new = (torch.einsum("c,ncp->np", mix, dense_jacobian(network, x)) for x in (inputs, tested))
    expert = model.mixtures[0].experts[0]
    scale, noise = float(expert.scale), float(expert.noise)
    gram = scale * rows @ rows.T + noise * torch.eye(60)
    cross = scale * new @ rows.T
    variance = scale * new.square().sum(1) - (cross @ torch.linalg.inv(gram) * cross).sum(1)
    found = model.predict(tested)
    torch.testing.assert_close(found.variance[:, 0], variance, rtol=1e-6, atol=1e-8)
    share = variance / (scale * new.square().sum(1))
    held_out = model.predict(held[0])
    medians = [float(values.median()) for values in (held_out.variance[:, 0], held_out.novelty)]
    pairs = (held_out.variance[:, 0], held_out.novelty), (variance, share)
    own = [torch.maximum(v / medians[0], s / medians[1]).log() for v, s in pairs]
    others = (others_of(network, inputs, x) for x in (held[0], tested))
    columns, values = (torch.stack([a, *b]).tolist() for a, b in zip(own, others, strict=True))
    each = [[tail_exponent(rows, value) for value in row] for rows, row in zip(columns, values, strict=True)]
    means = [sum(three) / 3 for three in zip(*each, strict=True)]
    assert found.score.tolist() == pytest.approx(means, rel=1e-5)


def others_of(network, train, inputs):
    """Log distance to the nearest training row in the hidden layer, and log entropy, in float64."""
    hidden = [nn.functional.normalize(network[:-1](x).detach(), dim=1) for x in (train, inputs)]
    distance = 1.0 - (hidden[1] @ hidden[0].T).amax(dim=1)
    log_p = (network(inputs).detach() / 3.0).log_softmax(dim=1)
    return distance.clamp_min(1e-5).log(), (-(log_p.exp() * log_p).sum(dim=1)).log()


def test_probabilities_are_better_than_the_networks_own_and_flat_far_away(blob, blob_model):
    p, labels = blob_model.predict(blob.test[0]), blob.test[1]
    own = metrics.class_nll(p.mean.softmax(1), labels).mean()
    assert metrics.class_nll(p.probabilities, labels).mean() <= own
    away = blob_model.predict(30 * blob.test[0])
    assert away.mean.softmax(1).amax(1).mean() > 0.95  # the network is confident everywhere
    assert away.probabilities.amax(1).mean() < away.mean.softmax(1).amax(1).mean() - 0.1
    assert float(metrics.auroc(p.score, away.score)) > 0.99


WAYS = [
    {"outputs": "shared"},
    {"outputs": "separate"},
    {"tangents": trustgp.Sketch(64)},
    {"tangents": trustgp.JacobianRows(keep=60, rank="taylor"), "budget": "120 KiB"},
]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_kernels_of_outputs_and_kinds_of_tangents_work_and_are_saved(blob, options, tmp_path):
    model = fit(blob, **options)
    assert "budget" not in options or model.nbytes <= 120 * 2**10
    p = model.predict(blob.test[0])
    assert bool(torch.isfinite(p.variance).all() & torch.isfinite(p.score).all())
    assert float((p.probabilities.argmax(dim=1) == blob.test[1]).double().mean()) > 0.8
    model.save(tmp_path / "m.trustgp")
    again = trustgp.load(tmp_path / "m.trustgp", blob.network).predict(blob.test[0])
    assert torch.equal(p.score, again.score)


@pytest.mark.parametrize(("flat", "shape"), [(False, (400, 1)), (True, (400,))])
def test_one_logit_for_two_classes(flat, shape):
    case = blobs(2, logits=1, flat=flat)
    p = fit(case).predict(case.test[0])
    assert p.mean.shape == p.variance.shape == shape
    assert p.probabilities.shape == (400, 2)
    assert torch.equal(p.classes, (p.mean.flatten() > 0).long())
    assert float((p.probabilities.argmax(dim=1) == case.test[1]).double().mean()) > 0.9


def test_bad_rows_are_flagged_and_a_loader_gives_the_same(blob, blob_model):
    whole = blob_model.predict(blob.test[0])
    inputs, others = blob.test[0][:50].clone(), torch.arange(50) != 7
    inputs[7] = torch.nan
    p = blob_model.predict(inputs)
    assert p.valid.tolist() == others.tolist()
    expected = blob_model.predict(blob.test[0][:50]).probabilities
    assert torch.equal(p.probabilities[others], expected[others])
    assert p.probabilities[7].tolist() == pytest.approx([1 / 3] * 3)
    assert float(p.score[7]) == torch.inf
    assert bool(torch.isfinite(p.probabilities).all())
    p = blob_model.predict(torch.full((3, 2), torch.nan))
    assert not bool(p.valid.any())
    assert p.probabilities.tolist() == [pytest.approx([1 / 3] * 3)] * 3
    batches = blob_model.predict(DataLoader(TensorDataset(*blob.test), batch_size=97))
    assert torch.equal(whole.classes, batches.classes)
    torch.testing.assert_close(whole.probabilities, batches.probabilities)


def test_without_validation_a_tenth_or_whole_groups_are_held_out(blob):
    with pytest.warns(UserWarning, match="30 of the 300 training rows"):
        model = fit(blob, validation=None)
    assert sum(int(expert.own) for expert in model.mixtures[0].experts) == 270
    assert model.origin.split == (300, 30)
    assert len(model.held_scores) == 30
    assert float(model.calibrations[0].base) == 1.0  # the network was trained on these rows
    with pytest.warns(UserWarning, match="50 of the 300 training rows"):
        model = fit(blob, validation=None, groups=torch.arange(300) // 50)
    assert len(model.held_scores) == 50
    few = tuple(part[:40] for part in blob.train)
    with pytest.warns(UserWarning, match="rule of thumb|default temperature"):
        model = fit(blob, validation=None, train=few)
    assert float(model.calibrations[0].slope) == pytest.approx(torch.pi / 8)


def test_an_update_adds_rows_and_keeps_the_prior(blob):
    model = fit(blob)
    before = model.mixtures[0].experts[0].scale.clone()
    threshold = model.threshold(false_alarm=0.05)
    new = draw(60, 3, seed=9)
    assert model.update(new, progress=False)
    assert model.origin.rows == 360
    torch.testing.assert_close(model.mixtures[0].experts[0].scale, before)
    assert float(model.novelty_threshold.threshold) != threshold  # fitted again to the scores as they are now
    assert float(model.predict(new[0]).score.mean()) < float(fit(blob).predict(new[0]).score.mean())


def test_a_loaded_model_is_updated_with_all_rows_that_were_given(blob, tmp_path):
    with pytest.warns(UserWarning, match="of the 300 training rows"):
        model = fit(blob, validation=None)
    model.save(tmp_path / "m.trustgp")
    again = trustgp.load(tmp_path / "m.trustgp", blob.network)
    new = draw(40, 3, seed=9)
    again.update(new, train=blob.train, progress=False)
    model.update(new, progress=False)
    torch.testing.assert_close(again.predict(new[0]).variance, model.predict(new[0]).variance)
    again.save(tmp_path / "n.trustgp")
    third = trustgp.load(tmp_path / "n.trustgp", blob.network)
    joined = tuple(torch.cat(pair) for pair in zip(blob.train, new, strict=True))
    assert third.update(draw(5, 3, seed=10), train=joined, progress=False)


@pytest.mark.parametrize("likelihood", ["classification", "multilabel"])
def test_a_model_of_a_thousand_classes_is_hardly_larger_than_one_of_ten(likelihood):
    sizes = {}
    for classes in (10, 1000):
        network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, classes)).eval()
        inputs, labels = draw(300, 3, 0)
        if likelihood == "multilabel":
            labels = torch.arange(classes) % 3 == labels[:, None]
        rows = [(inputs[part], labels[part]) for part in (slice(200), slice(200, 300))]
        options = {"likelihood": likelihood, "tangents": trustgp.Sketch(64), "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes without a row
            model = trustgp.fit(network, rows[0], validation=rows[1], num_experts=2, **options)
        assert model.predict(inputs[:3]).probabilities.shape == (3, classes)
        sizes[classes] = model.nbytes
    assert sizes[1000] - sizes[10] < 40 * 4 * 990  # a projection to 32 numbers, no matrix of classes
