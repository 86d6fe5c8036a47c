"""Constant noise, and the ensemble."""

import torch

from trustgp_experiments.peers import ConstantNoise, Ensemble, mlp


def rows(outputs: int = 2, n: int = 64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=generator), torch.randn(n, outputs, generator=generator)


def test_constant_noise_is_the_mean_squared_residual_of_each_output():
    inputs, targets = rows()
    network = mlp([3, 8, 2]).eval()
    fitted = ConstantNoise.fit(network, (inputs, targets))
    with torch.no_grad():
        expected = (targets - network(inputs)).double().square().mean(dim=0)
    torch.testing.assert_close(fitted.noise, expected)
    found = fitted.predict(inputs)
    assert torch.equal(found.mean, network(inputs))
    torch.testing.assert_close(found.variance, expected.float().expand(64, 2))
    assert not found.epistemic.any()
    assert not found.novelty.any()


def test_ensemble_mean_and_population_variance_are_those_of_the_members():
    inputs, targets = rows()
    networks = [mlp([3, 8, 2], seed=seed).eval() for seed in range(4)]
    found = Ensemble.fit(networks, (inputs, targets), tune=False).predict(inputs)
    with torch.no_grad():
        outputs = torch.stack([network(inputs) for network in networks])
    torch.testing.assert_close(found.mean, outputs.mean(0))
    torch.testing.assert_close(found.epistemic, outputs.var(0, unbiased=False))
