"""One Gaussian process instead of many experts: on a subset, and on landmarks."""

import pytest
import torch
from reference import (
    dense_gram,
    dense_jacobian,
    flat_parameters,
    posterior_mean,
    posterior_variance,
    relative_sizes,
)

import trustgp
from trustgp.data.rows import Rows
from trustgp.fitting.options import FitOptions
from trustgp.fitting.prepare import prepare_network
from trustgp_experiments.peers import LandmarkGP, SubsetGP
from trustgp_experiments.peers.trusted import JITTER, accumulate, choose_landmarks

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


def test_subset_gp_on_all_rows_is_trustgp_with_one_expert(case, validation, new):
    rows = case.inputs, case.targets
    found = SubsetGP.fit(case.network, rows, validation, rows=1000).predict(new)
    options = {"num_experts": 1, "validation": validation, "witness": None, "progress": False}
    expected = trustgp.fit(case.network, rows, budget="none", **options).predict(new)
    # the rows stand in another order
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(found.corrected.mean, expected.corrected.mean, rtol=1e-4, atol=1e-6)


def test_another_seed_takes_another_subset(case, validation):
    rows = case.inputs, case.targets
    one, other = (SubsetGP.fit(case.network, rows, validation, rows=30, seed=s) for s in (0, 1))
    assert not torch.equal(one.predict(case.inputs).novelty, other.predict(case.inputs).novelty)


def sparse(case, landmarks=24):
    rows = Rows(case.inputs, case.targets)
    ready = prepare_network(
        case.network,
        rows,
        FitOptions.parse(
            budget="none",
        ),
    )
    tangents = ready.maps[0][0]
    with torch.no_grad():
        chosen = choose_landmarks(tangents, rows, landmarks, 60, seed=0)
        return tangents, accumulate(tangents, chosen, rows)


def landmark_places(case, sums) -> torch.Tensor:
    """Which rows the landmarks are, by their features."""
    first = sums.features.activations[0]  # the inputs themselves, and a 1
    return torch.stack([((case.inputs - a[:-1]).abs().sum(1)).argmin() for a in first])


@pytest.mark.parametrize("tau", [1e-3, 0.1, 10.0])
def test_landmark_posterior_is_the_dense_training_conditional(case, new, tau):
    tangents, sums = sparse(case)
    places = landmark_places(case, sums)
    assert len(set(places.tolist())) == 24  # no row is a landmark twice
    every = dense_jacobian(case.network, case.inputs)
    fresh = dense_jacobian(case.network, new)
    inner = dense_gram(every[places], SHARED)
    inner = inner + JITTER * inner.diagonal().mean() * torch.eye(24).double()
    cross = dense_gram(every[places], SHARED, every)  # [m, n]
    k = dense_gram(fresh, SHARED, every[places])  # [b, m]
    prior = dense_gram(fresh, SHARED).diagonal()
    precision = torch.linalg.inv(tau * inner + cross @ cross.T)
    outside = prior - torch.einsum("bi,ij,bj->b", k, torch.linalg.inv(inner), k)
    expected = outside + tau * torch.einsum("bi,ij,bj->b", k, precision, k)
    with torch.no_grad():
        residual = case.targets - case.network(case.inputs)
        found = sums.posterior(tau)(tangents(new))
    # explicit inverses of a kernel whose condition number is 1e8
    torch.testing.assert_close(found.unit, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.residual_mean, k @ precision @ cross @ residual, rtol=1e-5, atol=1e-7)


def test_landmark_scale_is_the_evidences_best(case):
    _, sums = sparse(case)
    tau = 0.1
    every = dense_jacobian(case.network, case.inputs)
    places = landmark_places(case, sums)
    inner = dense_gram(every[places], SHARED)
    inner = inner + JITTER * inner.diagonal().mean() * torch.eye(24).double()
    cross = dense_gram(every[places], SHARED, every)
    low_rank = cross.T @ torch.linalg.solve(inner, cross)
    with torch.no_grad():
        residual = case.targets - case.network(case.inputs)
    targets = every @ flat_parameters(case.network) + residual
    covariance = low_rank + tau * torch.eye(160).double()
    expected = (targets * torch.linalg.solve(covariance, targets)).sum(dim=0) / 160
    torch.testing.assert_close(sums.scale(tau), expected, rtol=1e-8, atol=0)


def test_with_every_row_a_landmark_the_sparse_gp_is_the_exact_one(case, new):
    tangents, sums = sparse(case, landmarks=160)
    gram, cross, prior = kernels(case, case.inputs, new)
    tau = 0.1
    with torch.no_grad():
        found = sums.posterior(tau)(tangents(new))
    # the jitter of the landmarks' kernel, 1e-8 of its diagonal
    expected = posterior_variance(gram, cross, prior, tau)
    torch.testing.assert_close(found.unit, expected, rtol=1e-4, atol=1e-5)


def test_sums_over_chunks_are_the_same(case, monkeypatch):
    _, whole = sparse(case)
    monkeypatch.setattr("trustgp_experiments.peers.trusted.chunk_rows", lambda tangents: 7)
    _, pieces = sparse(case)
    torch.testing.assert_close(pieces.values, whole.values, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(pieces.scale(0.1), whole.scale(0.1), rtol=1e-10, atol=0)


def test_the_variance_of_the_sparse_gp_grows_far_away(case, validation):
    fitted = LandmarkGP.fit(case.network, (case.inputs, case.targets), validation, landmarks=30)
    near, far = fitted.predict(case.inputs), fitted.predict(20.0 * case.inputs)
    assert float(near.novelty.mean()) < 0.2
    assert float(far.epistemic.median()) > 10.0 * float(near.epistemic.median())


def test_the_sparse_gp_keeps_the_networks_output_and_offers_a_corrected_one(case, validation, new):
    found = LandmarkGP.fit(case.network, (case.inputs, case.targets), validation, landmarks=30).predict(new)
    assert torch.equal(found.mean, case.network(new))
    assert not torch.equal(found.corrected.mean, found.mean)


def test_no_landmark_is_refused(case, validation):
    with pytest.raises(ValueError, match="landmarks=0"):
        LandmarkGP.fit(case.network, (case.inputs, case.targets), validation, landmarks=0)
