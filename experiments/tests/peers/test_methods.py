"""The methods of the studies, by name."""

from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch
from torch import nn

from trustgp_experiments.peers import (
    INTERVAL_METHODS,
    METHODS,
    Bundle,
    KronPosterior,
    fit_methods,
    input_gps,
    mlp,
)
from trustgp_experiments.peers import bundle as peer_bundle

OTHER_MEANS = (
    *("Laplace sampled", "Laplace sampled, untuned", "trustgp corrected"),
    *("know-nothing", "gated know-nothing", "RIO"),
)
laplace = pytest.mark.skipif(find_spec("laplace") is None, reason="laplace-torch is not installed")


@pytest.fixture
def bundle() -> Bundle:
    inputs = torch.randn(150, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.stack([inputs.sum(1).sin(), inputs[:, 0] * inputs[:, 1]], dim=1)
    networks = [mlp([3, 12, 2], activation=nn.Tanh, seed=seed).eval() for seed in range(5)]
    dropping = mlp([3, 12, 2], activation=nn.Tanh, dropout=0.1).eval()
    train, validation = (inputs[:100], targets[:100]), (inputs[100:], targets[100:])
    how = {"epochs": 2, "batch_size": 64, "learning_rate": 1e-3, "together": True}
    return Bundle(networks[0], networks[1:], dropping, train, validation, training=how)


@laplace
def test_every_method_answers_and_the_training_free_ones_keep_the_networks_output(bundle, monkeypatch):
    monkeypatch.setattr(input_gps, "EXACT_STEPS", 3)
    new = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    found = {fitted.name: fitted for fitted in fit_methods(bundle)}
    assert list(found) == [method.name for method in METHODS]
    for name, fitted in found.items():
        prediction = fitted.predict(new)
        assert prediction.mean.shape == (8, 2)
        assert (prediction.std > 0).all()
        assert fitted.seconds > 0
        if fitted.training_free and name not in OTHER_MEANS:
            assert torch.equal(prediction.mean, bundle.network(new)), name


def test_intervals_have_no_likelihood_and_are_fitted_where_they_are_named(bundle):
    names = [method.name for method in INTERVAL_METHODS]
    assert names == ["conformal, split", "conformal, CQR"]
    for fitted in fit_methods(bundle, names):
        said = fitted.predict(bundle.validation[0])
        assert torch.equal(said.mean, bundle.network(bundle.validation[0]))
        assert (said.std > 0).all()
        assert said.log_prob is None


@laplace
def test_shared_work_is_done_once(bundle):
    with patch.object(KronPosterior, "fit", wraps=KronPosterior.fit) as fit:
        list(fit_methods(bundle, ["Laplace sampled", "Laplace GLM"]))
    fit.assert_called_once()


def test_seconds_of_training_are_kept_apart_also_of_shared_work(bundle, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(peer_bundle, "now", lambda device: clock[0])

    def pass_by(seconds: float) -> float:
        clock[0] += seconds
        return seconds

    def work() -> float:
        return bundle.trains(lambda: pass_by(7.0)) + pass_by(2.0)

    def outer() -> float:
        return bundle.once("inner", work) + pass_by(1.0)

    assert bundle.timed(lambda: bundle.once("inner", work)) == (9.0, 2.0, 7.0)
    assert bundle.timed(lambda: bundle.once("outer", outer)) == (10.0, 3.0, 7.0)
    assert bundle.timed(lambda: bundle.once("outer", outer)) == (10.0, 3.0, 7.0)
