"""Laplace by laplace-torch: what we ask of it, and what we add to it."""

import sys
from importlib.util import find_spec

import pytest
import torch
from draws import normal
from reference import dense_jacobian
from torch import nn
from zoo import Net

from trustgp_experiments.peers import KronPosterior, LaplaceGLM, LaplaceSampled, mlp
from trustgp_experiments.peers.tuning import held_out_nll

if find_spec("laplace") is None:
    pytest.skip("laplace-torch is not installed", allow_module_level=True)


def backwards() -> nn.Module:
    """Lists its layers in another order than it calls them in."""
    return Net(lambda net, x: net.last(torch.tanh(net.first(x))), last=nn.Linear(5, 2), first=nn.Linear(4, 5))


def problem(network: nn.Module | None = None) -> tuple[nn.Module, tuple, tuple]:
    """A small network with biases, and rows it fits with noise."""
    network = mlp([4, 6, 5, 2], activation=nn.Tanh) if network is None else network
    network = network.double().eval()
    inputs = normal(120, 4)
    with torch.no_grad():
        targets = network(inputs) + 0.2 * normal(120, 2, seed=2)
    return network, (inputs[:80], targets[:80]), (inputs[80:], targets[80:])


@pytest.mark.parametrize("last_layer", [False, True])
@pytest.mark.parametrize("network", [None, backwards()], ids=["in order", "backwards"])
def test_glm_variance_is_that_of_dense_jacobians(network, last_layer):
    network, train, validation = problem(network)
    posterior = KronPosterior.fit(network, train, validation, last_layer=last_layer)
    precision = posterior.precision(0.7, 0.3)
    new = normal(5, 4, seed=3)
    jacobian = dense_jacobian(network, new, list(posterior.names))
    expected = torch.einsum("ncp,pq,ncq->nc", jacobian, torch.linalg.inv(precision.to_matrix()), jacobian)
    variance = posterior.variances(new, precision)[..., 0]
    torch.testing.assert_close(variance, expected, rtol=1e-10, atol=0)
    _, covariance = posterior.laplace(new)  # laplace-torch's public call, at the same prior and noise
    torch.testing.assert_close(variance, covariance.diagonal(dim1=1, dim2=2), rtol=1e-10, atol=0)


def test_draws_spread_as_the_posterior_says():
    # linear, without bias; laplace-torch looks for a last layer among at least two
    network, train, validation = problem(nn.Sequential(nn.Identity(), nn.Linear(4, 2, bias=False)))
    posterior = KronPosterior.fit(network, train, validation)
    new = normal(5, 4, seed=3)
    expected = posterior.variances(new, posterior.precision(0.7, 0.3))[..., 0]
    weights = posterior.laplace.mean + posterior.deviations(0.7, 0.3, 20_000, seed=1)
    drawn = LaplaceSampled(posterior.network, posterior.names, weights, noise=torch.zeros(2).double())
    found = drawn.predict(new)
    torch.testing.assert_close(found.epistemic, expected, rtol=0.05, atol=0)  # five standard errors
    error = (found.mean - network(new).detach()).abs() / (expected / 20_000).sqrt()
    assert float(error.max()) < 4.0  # in standard errors


def test_tuning_raises_the_likelihood_and_predictors_of_one_posterior_do_not_disturb_each_other():
    network, train, validation = problem()
    posterior = KronPosterior.fit(network, train, validation)
    error = validation[1] - network(validation[0]).detach()
    plain, linearised = (LaplaceGLM.fit(posterior, validation, tune=tune) for tune in (False, True))
    before = linearised.predict(validation[0]).variance
    assert held_out_nll(error, before) <= held_out_nll(error, plain.predict(validation[0]).variance)
    sampled = LaplaceSampled.fit(posterior, validation, samples=4)
    assert torch.equal(linearised.predict(validation[0]).variance, before)
    again = LaplaceSampled.fit(posterior, validation, samples=4)
    assert torch.equal(sampled.predict(validation[0]).mean, again.predict(validation[0]).mean)


def test_inputs_in_a_tuple_a_single_sample_and_a_missing_library_are_refused(monkeypatch):
    network, train, validation = problem()
    with pytest.raises(ValueError, match="one tensor"):
        KronPosterior.fit(network, ((train[0],), train[1]), validation)
    with pytest.raises(ValueError, match="samples=1"):
        LaplaceSampled.fit(KronPosterior.fit(network, train, validation), validation, samples=1)
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(ImportError, match=r"experiments\[peers\].*--no-deps laplace-torch"):
        KronPosterior.fit(network, train, validation)
