"""The peers behind `predict`."""

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from trustgp.baselines import ConstantNoise, Ensemble, mlp
from trustgp.baselines.ensemble import likeliest_noise


class OneColumn(nn.Module):
    """Outputs [n] instead of [n, C]."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = mlp([3, 8, 1], seed=seed)

    def forward(self, x):
        return self.inner(x).squeeze(1)


def rows(outputs: int = 2, n: int = 64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=generator), torch.randn(n, outputs, generator=generator)


def made(kind: type, validation, outputs: int):
    networks = [mlp([3, 8, outputs], seed=seed).eval() for seed in range(3)]
    if kind is Ensemble:
        return Ensemble.fit(networks, validation)
    return ConstantNoise.fit(networks[0], validation)


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
    found = Ensemble.fit(networks, (inputs, targets)).predict(inputs)
    with torch.no_grad():
        outputs = torch.stack([network(inputs) for network in networks])
    torch.testing.assert_close(found.mean, outputs.mean(0))
    torch.testing.assert_close(found.epistemic, outputs.var(0, unbiased=False))


def test_likeliest_noise_is_where_scipy_finds_it():
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(400, 3, generator=generator, dtype=torch.float64)
    true = torch.tensor([0.01, 0.3, 5.0], dtype=torch.float64)
    error = torch.randn(400, 3, generator=generator, dtype=torch.float64) * (spread + true).sqrt()
    found = likeliest_noise(error, spread)
    for c in range(3):

        def loss(log_noise: float, c: int = c) -> float:
            total = spread[:, c] + torch.tensor(log_noise, dtype=torch.float64).exp()
            return float((total.log() + error[:, c].square() / total).mean())

        best = minimize_scalar(loss, bounds=(-15, 5), method="bounded", options={"xatol": 1e-8})
        # both know the flat minimum to about the root of the rounding error
        assert loss(float(found[c].log())) <= best.fun + 1e-9


def test_an_ensemble_that_spreads_too_far_gets_next_to_no_noise():
    error, spread = torch.full((50, 1), 0.1).double(), torch.full((50, 1), 10.0).double()
    assert float(likeliest_noise(error, spread)) < 1e-6


@pytest.mark.parametrize("kind", [ConstantNoise, Ensemble])
def test_every_field_has_the_shape_of_the_contract(kind):
    inputs, targets = rows(outputs=2)
    found = made(kind, (inputs, targets), 2).predict(inputs[:5])
    for name in ("mean", "epistemic", "aleatoric", "excess", "variance", "std"):
        assert getattr(found, name).shape == (5, 2)
        assert getattr(found, name).dtype == torch.float32
    assert found.novelty.shape == found.expert.shape == found.valid.shape == (5,)
    assert found.expert.dtype == torch.int64
    assert found.valid.all()
    assert torch.equal(found.corrected.mean, found.mean)


@pytest.mark.parametrize("kind", [ConstantNoise, Ensemble])
def test_networks_with_one_dimensional_outputs_keep_their_shape(kind):
    inputs, targets = rows(outputs=1)
    networks = [OneColumn(seed).eval() for seed in range(2)]
    validation = inputs, targets[:, 0]
    fitted = (
        ConstantNoise.fit(networks[0], validation)
        if kind is ConstantNoise
        else kind.fit(networks, validation)
    )
    found = fitted.predict(inputs)
    assert found.mean.shape == found.variance.shape == (64,)


@pytest.mark.parametrize("kind", [ConstantNoise, Ensemble])
def test_a_row_that_is_not_finite_is_marked_and_the_others_stay_as_they_are(kind):
    inputs, targets = rows()
    fitted = made(kind, (inputs, targets), 2)
    broken = inputs.clone()
    broken[3, 0] = torch.nan
    found, whole = fitted.predict(broken), fitted.predict(inputs)
    others = torch.arange(64) != 3
    assert found.valid.tolist() == others.tolist()
    assert torch.isinf(found.variance[3]).all()
    assert torch.equal(found.variance[others], whole.variance[others])


@pytest.mark.parametrize("kind", [ConstantNoise, Ensemble])
def test_targets_that_do_not_fit_the_outputs_are_refused(kind):
    inputs, targets = rows(outputs=3)
    with pytest.raises(ValueError, match="must agree"):
        made(kind, (inputs, targets), 2)


def test_an_ensemble_of_one_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        Ensemble.fit([mlp([3, 8, 2])], rows())


def test_an_error_of_zero_is_refused():
    network, (inputs, _) = mlp([3, 8, 2]).eval(), rows()
    with torch.no_grad():
        targets = network(inputs)
    with pytest.raises(ValueError, match="no error"):
        ConstantNoise.fit(network, (inputs, targets))
