"""One Gaussian process instead of many experts: on a subset."""

import pytest
import torch
from reference import dense_gram, dense_jacobian, posterior_mean, posterior_variance, relative_sizes

from trustgp_experiments.peers import SubsetGP

SHARED = torch.eye(2, dtype=torch.float64) / 2**0.5


@pytest.fixture(scope="module")
def validation(toy):
    return toy(60, 5)


@pytest.fixture(scope="module")
def new(toy):
    return toy(9, 6)[0]


def kernels(case, rows, new):
    """K of the rows, k of new rows against them, and k(x, x) of the new rows, by dense Jacobians."""
    old, fresh = dense_jacobian(case.network, rows), dense_jacobian(case.network, new)
    return (
        dense_gram(old, SHARED),
        dense_gram(fresh, SHARED, old),
        dense_gram(fresh, SHARED).diagonal(),
    )


def test_subset_gp_is_the_exact_gp_on_its_rows(case, validation, new):
    fitted = SubsetGP.fit(case.network, (case.inputs, case.targets), validation, rows=50, seed=4)
    (mixture,) = fitted.model.mixtures
    (expert,) = mixture.experts
    kept = torch.randperm(160, generator=torch.Generator().manual_seed(4))[:50]
    gram, cross, prior = kernels(case, case.inputs[kept], new)
    old, fresh = (
        relative_sizes(dense_jacobian(case.network, rows))[:, 0] for rows in (case.inputs[kept], new)
    )
    tau = float(expert.noise[0] / (expert.scale[0] * old.mean()) + expert.jitter)
    raw = mixture.raw(new)
    expected = fresh * posterior_variance(gram, cross, prior, tau)
    # what is left of a difference near the rows: 1e-8 of the prior
    torch.testing.assert_close(raw.epistemic[:, 0] / expert.scale[0], expected, rtol=1e-6, atol=1e-8)
    with torch.no_grad():
        residual = case.targets[kept] - case.network(case.inputs[kept])
    torch.testing.assert_close(
        raw.residual_mean, posterior_mean(gram, cross, residual, tau), rtol=1e-6, atol=1e-8
    )
