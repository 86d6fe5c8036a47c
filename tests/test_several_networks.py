"""Several networks as one, and networks that state the variance of their outputs."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import trustgp
from trustgp.data.tensor_file import ArtifactError
from trustgp.export import open_compiled
from trustgp.export.onnx.export import open_onnx
from trustgp.fitting.calibrate import _left_out
from trustgp.sklearn import TrustRegressor
from trustgp.state.model_state import predict_uncalibrated

ROWS = torch.randn(180, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.stack([ROWS[:, 0].sin(), ROWS[:, 1] * ROWS[:, 2]], dim=1)
CLASSES = (TARGETS[:, 0] > 0).long()
OPTIONS = {"progress": False, "validation": (ROWS[140:], TARGETS[140:])}


def network(seed, outputs, *more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, outputs), *more).eval()


def pair(outputs):
    return outputs[:, :2], nn.functional.softplus(outputs[:, 2:])


NIGHTLY = pytest.mark.nightly
PLAIN, PAIRS = [network(seed, 2) for seed in range(3)], [network(seed, 4) for seed in range(3)]
CASES = {"several": (PLAIN, None), "pair": (PAIRS[0], pair), "several pairs": (PAIRS, pair)}


def total_variance(networks, output):
    """In float64 by the formula of a mixture: the mean of mu^2 + sigma^2, less the square of the mean."""
    double = [pickle.loads(pickle.dumps(one)).double() for one in networks]
    results = [one(ROWS.double()).detach() for one in double]
    moments = [(result, 0.0 * result) if output is None else output(result) for result in results]
    mu, variance = (torch.stack(part) for part in zip(*moments, strict=True))
    return (mu.square() + variance).mean(dim=0) - mu.mean(dim=0).square()


@pytest.fixture(params=["several", "several pairs", pytest.param("pair", marks=NIGHTLY)], scope="module")
def case(request):
    given, output = CASES[request.param]
    options = {"tangents": trustgp.Sketch(64), "num_experts": 2, "select": output, **OPTIONS}
    return trustgp.fit(given, (ROWS[:140], TARGETS[:140]), **options), given, output


def test_the_mean_is_that_of_the_networks_to_the_bit_and_their_total_variance_is_stated(case):
    model, given, output = case
    networks = given if isinstance(given, list) else [given]
    means = [one(ROWS) if output is None else output(one(ROWS))[0] for one in networks]
    assert torch.equal(model.predict(ROWS).mean, torch.stack(means).mean(dim=0))
    outputs, latent = predict_uncalibrated(model.state, ROWS)
    assert torch.equal(outputs, torch.stack(means).mean(dim=0))
    variance = total_variance(networks, output)
    torch.testing.assert_close(latent.log_stated.exp(), variance, rtol=1e-3, atol=1e-7)  # of float32
    held_out = latent.calibration_rows(TARGETS.double(), torch.arange(2), TARGETS.double())
    assert torch.equal(held_out.log_stated, latent.log_stated.flatten())
    left_out, _, indices = _left_out(model.state, model.memory)
    assert left_out is not None
    stated = left_out.log_stated.reshape(-1, 2).exp().sort(dim=0).values
    torch.testing.assert_close(stated, variance[indices].sort(dim=0).values, rtol=1e-3, atol=1e-7)
    assert bool((model.memory.far.log_stated != 0).all())


def test_only_the_first_network_is_differentiated(case):
    model, given, _ = case
    first = (given[0] if isinstance(given, list) else given).state_dict()
    assert set(model.mixtures[0].tangents.network.names) == set(first)
    assert all(torch.equal(model.mixtures[0].tangents.network.parameters[k], v) for k, v in first.items())


def test_files_exports_pickles_and_updates_predict_the_same(case, tmp_path):
    """No other test writes, exports or extends a network whose outputs and gradients need two passes."""
    model, given, output = case
    wanted = model.predict(ROWS[:7]).variance
    model.save(tmp_path / "model.trustgp")
    again = trustgp.load(tmp_path / "model.trustgp", given, select=output)
    assert torch.equal(again.predict(ROWS[:7]).variance, wanted)
    if output is None:
        assert torch.equal(pickle.loads(pickle.dumps(model)).predict(ROWS[:7]).variance, wanted)
    trustgp.export_onnx(model, tmp_path / "model.onnx", ROWS[:5])
    exported = open_onnx(tmp_path / "model.onnx")(ROWS[:7])
    torch.testing.assert_close(torch.from_numpy(exported["variance"]), wanted, rtol=1e-4, atol=0.0)
    again.update((ROWS[140:] + 1.0, TARGETS[140:]), progress=False)
    assert again.origin.rows == 180
    assert again.update((ROWS[140:] + 2.0, TARGETS[140:]), progress=False) is not None


def test_a_row_without_a_finite_output_of_each_network_is_invalid(case):
    model, *_ = case
    rows = ROWS[:3].clone()
    rows[1, 0] = torch.nan
    assert model.predict(rows).valid.tolist() == [True, False, True]
    assert torch.equal(model.predict(rows).variance[::2], model.predict(ROWS[[0, 2]]).variance)


@pytest.mark.parametrize("logits", [1, 3])
def test_of_several_classifiers_the_mean_of_the_probabilities_counts(logits):
    networks = [network(seed, logits, *([nn.Flatten(0)] if logits == 1 else [])) for seed in range(3)]
    model = trustgp.fit(networks, (ROWS, CLASSES), likelihood="classification", progress=False)
    outputs, each = model.predict(ROWS).mean, [one(ROWS).double() for one in networks]
    assert outputs.shape == each[0].shape
    probabilities = torch.sigmoid if logits == 1 else (lambda z: z.softmax(dim=1))
    mean = torch.stack([probabilities(one) for one in each]).mean(dim=0)
    torch.testing.assert_close(probabilities(outputs.double()), mean, rtol=1e-5, atol=1e-6)
    if logits == 3:  # not only up to a constant
        torch.testing.assert_close(outputs.double(), mean.log(), rtol=1e-5, atol=1e-6)


KINDS = {"regression": TARGETS, "classification": CLASSES, "multilabel": (TARGETS > 0).long()}
MODES = [("onnx", "classification"), pytest.param("onnx", "multilabel", marks=NIGHTLY)]
MODES += [pytest.param("pt2", kind, marks=NIGHTLY) for kind in ("regression", "classification")]


@pytest.mark.parametrize(("form", "kind"), MODES)
def test_files_of_several_networks_answer_as_predict_does(form, kind, tmp_path):
    """Each member is traced beside the gradients of the first: no other test exports several classifiers,
    nor compiles several networks."""
    options = {"likelihood": kind, "tangents": trustgp.Sketch(32), "num_experts": 2, "progress": False}
    train, validation = ((ROWS[part], KINDS[kind][part]) for part in (slice(140), slice(140, None)))
    model = trustgp.fit(PLAIN, train, validation=validation, witness=None, **options)
    write, read = {"onnx": (trustgp.export_onnx, open_onnx), "pt2": (trustgp.compile, open_compiled)}[form]
    path = tmp_path / f"model.{form}"
    write(model, path, ROWS[:5])
    wanted, answers = model.predict(ROWS[:7]), read(path)(ROWS[:7])
    for name in ("mean", "variance", "score") + (("probabilities",) if kind != "regression" else ()):
        given = torch.as_tensor(answers[name])
        torch.testing.assert_close(given, getattr(wanted, name).to(given), rtol=2e-4, atol=1e-6, msg=name)


def test_one_network_twice_and_a_list_of_one_are_allowed():
    given = ([PLAIN[0]], [PLAIN[0], PLAIN[0]])
    once, twice = (trustgp.fit(one, (ROWS, TARGETS), witness=None, progress=False) for one in given)
    assert torch.equal(once.predict(ROWS).mean, twice.predict(ROWS).mean)
    assert bool(torch.isfinite(twice.predict(ROWS).std).all())


def test_the_estimator_takes_several_networks_or_a_function_that_trains_them():
    X, y = ROWS.numpy(), TARGETS.numpy()
    for given in (PLAIN, lambda inputs, targets: PLAIN):
        mean = TrustRegressor(given, fit_options={"witness": None}).fit(X, y).predict(X)
        np.testing.assert_array_equal(mean, torch.stack([one(ROWS) for one in PLAIN]).mean(0).detach())


def two(outputs):
    return outputs, outputs.exp()


def late(outputs):
    """Not positive in some row, but in none of the first 64."""
    variance = torch.ones_like(outputs[:, 2:])
    limit = PAIRS[0](ROWS[:64])[:, :1].max() + 1e-4
    return outputs[:, :2], torch.where(outputs[:, :1] > limit, -variance, variance)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (PAIRS[0], {"select": late}, ValueError, "variances that are not, such as -1"),
        ([nn.GRU(3, 2).eval()] * 2, {}, ValueError, r"select=lambda o: o\[0\], or \(o\[0\], o\[1\]\)"),
        (PLAIN, {"select": two, "likelihood": "classification"}, ValueError, "logits alone"),
    ],
)
def test_what_does_not_suit_is_refused(given, options, error, message):
    targets = CLASSES if options.get("likelihood") == "classification" else TARGETS
    with pytest.raises(error, match=message):
        trustgp.fit(given, (ROWS, targets), progress=False, **options)


def test_a_file_is_refused_with_other_networks_or_without_the_variance(tmp_path):
    cases = (PLAIN, PLAIN[::-1], None, None), (PAIRS[0], PAIRS[0], pair, lambda o: o[:, :2])
    for given, other, output, another in cases:
        options = {"select": output, "witness": None, "progress": False}
        trustgp.fit(given, (ROWS, TARGETS), **options).save(tmp_path / "model")
        with pytest.raises(ArtifactError, match="was fitted to another network"):
            trustgp.load(tmp_path / "model", other, select=another)
