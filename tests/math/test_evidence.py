"""The evidence of one expert, and one prior for several, against the dense joint likelihood."""

import math

import numpy as np
import pytest
import torch
from draws import Draws, normal
from reference import profile_likelihood, scale_from_eigenpairs
from scipy.stats import multivariate_normal

from trustgp.math import evidence
from trustgp.math.evidence import factorise, maximise_evidence, pooled_evidence, profile_losses


def kernel(rows: int, width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, their Gram matrix, and two noisy targets that lie near the features' span."""
    draws = Draws(seed)
    phi, weights, noise = draws.normal(rows, width), draws.normal(width, 2), draws.normal(rows, 2)
    return phi, phi @ phi.T, phi @ weights * torch.tensor([1.0, 3.0]) + noise


@pytest.mark.parametrize("together", [1, 2**24])
def test_losses_at_several_tau_are_those_at_each(together, monkeypatch):
    monkeypatch.setattr(evidence, "MAX_BATCH_BYTES", together)
    _, gram, targets = kernel(12, 5)
    taus = torch.tensor([1e-2, 0.3, 2.0, 50.0], dtype=torch.float64)
    found = profile_losses(gram, targets, taus.log())
    expected = taus.new_tensor([-profile_likelihood(gram, targets, float(tau)) for tau in taus])
    torch.testing.assert_close(found - found[0], expected - expected[0], rtol=1e-10, atol=1e-10)


def test_the_loss_is_infinite_where_the_kernel_cannot_be_factorised():
    gram = torch.eye(4, dtype=torch.float64)
    gram[0, 1] = gram[1, 0] = 1.5
    log_taus = torch.tensor([0.1, 0.4, 0.6], dtype=torch.float64).log()
    found = profile_losses(gram, torch.ones(4, 1, dtype=torch.float64), log_taus)
    assert torch.isinf(found).tolist() == [True, True, False]


@pytest.mark.parametrize(("rows", "width", "seed"), [(20, 5, 0), (20, 40, 1), (30, 3, 2)])
def test_found_tau_is_at_least_as_likely_as_a_fine_grid(rows, width, seed):
    _, gram, targets = kernel(rows, width, seed)
    found = maximise_evidence(gram, targets)
    level = float(gram.diagonal().mean())
    grid = level * torch.logspace(-8, 2, 101, dtype=torch.float64)
    best = max(profile_likelihood(gram, targets, float(tau)) for tau in grid)
    # Nine golden-section steps stop about 0.04 short in log tau at worst, where the likelihood is flat.
    assert profile_likelihood(gram, targets, float(found.tau)) >= best - 0.01


def test_evidence_holds_the_factor_and_scale_of_its_own_tau():
    _, gram, targets = kernel(14, 6)
    found = maximise_evidence(gram, targets)
    regular = gram + (found.tau + found.jitter) * torch.eye(14, dtype=torch.float64)
    torch.testing.assert_close(found.factor @ found.factor.T, regular, rtol=1e-10, atol=1e-10)
    expected = scale_from_eigenpairs(gram, targets, float(found.tau + found.jitter))
    torch.testing.assert_close(found.scale, expected, rtol=1e-10, atol=0)
    assert float(found.jitter) == 0.0


def test_tau_stays_within_its_limits():
    _, gram, _ = kernel(12, 30)
    level = float(gram.diagonal().mean())
    exact = gram @ torch.ones(12, 1, dtype=torch.float64)  # no noise at all
    low = float(maximise_evidence(gram, exact).tau) / level
    assert evidence.LOWEST * (1 - 1e-9) <= low <= evidence.HIGHEST


def test_an_output_without_targets_gets_a_tiny_positive_scale():
    _, gram, targets = kernel(10, 4)
    targets[:, 1] = 0.0
    found = maximise_evidence(gram, targets)
    assert 0 < float(found.scale[1]) < 1e-9 * float(found.scale[0])


def test_a_kernel_of_zeros_leaves_only_noise():
    targets = normal(9, 1)
    found = maximise_evidence(torch.zeros(9, 9, dtype=torch.float64), targets)
    noise = found.tau * found.scale
    torch.testing.assert_close(noise, targets.square().mean(dim=0), rtol=1e-10, atol=0)


def test_rounding_is_mended_by_the_smallest_jitter_that_does_and_other_kernels_are_refused():
    gram = torch.eye(4, dtype=torch.float64)
    gram[0, 1] = gram[1, 0] = 1.0 + 1e-9  # indefinite by 1e-9 of the diagonal
    factor, jitter = factorise(gram, 0.0)
    assert jitter == pytest.approx(1e-8)
    assert torch.isfinite(factor).all()
    for wrong, message in ((2.0, "not positive definite"), (torch.inf, "not finite")):
        gram[0, 0] = gram[0, 1] = gram[1, 0] = wrong
        with pytest.raises(evidence.FactorisationError, match=message):
            factorise(gram, 0.0)


@pytest.mark.parametrize("true_log_tau", [-14.0, -6.0, -1.0, 2.0])
def test_a_search_from_fewer_rows_ends_where_one_on_all_rows_does(true_log_tau, monkeypatch):
    draws = Draws()
    phi, weights, noise = draws.normal(120, 40), draws.normal(40, 2), draws.normal(120, 2)
    gram, targets = phi @ phi.T, phi @ weights + math.exp(0.5 * true_log_tau) * noise
    expected = evidence.maximise_evidence(gram, targets)
    losses = []
    counted = evidence.profile_loss

    def loss(factor, values):
        if len(values) == 120:
            losses.extend(factor)
        return counted(factor, values)

    monkeypatch.setattr(evidence, "profile_loss", loss)
    monkeypatch.setattr(evidence, "MIN_THINNED_ROWS", 100)
    found = evidence.maximise_evidence(gram, targets)
    # of 240 numbers together: a fiftieth of log tau more or less makes no difference that anyone sees
    assert counted(found.factor, targets) <= counted(expected.factor, targets) + 0.05
    assert len(losses) <= 12


@pytest.mark.parametrize("start", [-9.0, -1.0, 0.3, 4.0, 9.0])
@pytest.mark.parametrize("best", [-10.0, -3.0, 0.0, 2.7, 10.0])
def test_from_anywhere_the_lowest_place_is_found(start, best):
    places = torch.tensor([start, -8.0, 8.0], dtype=torch.float64)
    found = evidence.minimise_near(lambda x: torch.cosh(0.5 * (x - best)), *places)
    assert float(found) == pytest.approx(min(max(best, -8.0), 8.0), abs=0.1)


@pytest.mark.parametrize("place", [-30.0, -3.3, 0.0, 1.234, 6.9, 30.0])
def test_numbers_are_searched_as_tensors_are(place):
    def losses(places):
        return (places - place) ** 2

    bounds = torch.tensor([-9.0, 7.0], dtype=torch.float64)
    expected = float(evidence.minimise_on_grid(losses, *bounds))
    found = evidence.minimise_on_grid(losses, *bounds.tolist(), arrays=np)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def systems(sizes=(30, 50), outputs=2, tau=0.3, scale=2.0):
    """Kernels, and targets drawn from their GP with this noise ratio and scale."""
    draws, found = Draws(), []
    for m in sizes:
        phi = draws.normal(m, 2 * m) / math.sqrt(2 * m)
        gram = phi @ phi.T
        factor = torch.linalg.cholesky(scale * (gram + tau * torch.eye(m)))
        found.append((gram, factor @ draws.normal(m, outputs)))
    return found


def dense_loss(found, tau, scale):
    """Minus the log density of all targets, by scipy."""
    total = 0.0
    for gram, targets in found:
        covariance = scale * (gram + tau * torch.eye(len(gram))).numpy()
        total -= sum(multivariate_normal(cov=covariance).logpdf(column) for column in targets.T.numpy())
    return total


def test_no_other_prior_is_likelier():
    found = systems()
    prior = pooled_evidence(found)
    best = dense_loss(found, float(prior.tau), float(prior.scale))
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert best < dense_loss(found, float(prior.tau), factor * float(prior.scale))
    for factor in np.exp([-1.0, -0.3, 0.3, 1.0]):
        tau = factor * float(prior.tau)
        scales = float(prior.scale) * np.linspace(0.5, 2.0, 31)
        assert best < min(dense_loss(found, tau, scale) for scale in scales)


def test_tau_stays_within_its_bounds():
    found = systems()
    level = float(torch.cat([gram.diagonal() for gram, _ in found]).mean())
    for low, high in ((1e-3, 1e-2), (3.0, 30.0)):
        tau = float(pooled_evidence(found, lowest=low, highest=high).tau)
        assert low * level * 0.999 <= tau <= high * level * 1.001


def test_kernels_without_any_gradient_leave_the_noise():
    prior = pooled_evidence([(torch.zeros(5, 5).double(), torch.ones(5, 1).double())])
    assert float(prior.tau) > 0
    assert float(prior.scale) > 0


def test_what_is_not_finite_is_refused():
    with pytest.raises(evidence.FactorisationError, match="overflow"):
        pooled_evidence([(torch.eye(3).double(), torch.full((3, 1), torch.inf).double())])
