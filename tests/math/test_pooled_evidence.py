"""One prior for several experts, against the dense joint likelihood."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from trustgp.math.evidence import FactorisationError, pooled_evidence


def systems(sizes=(30, 50), outputs=2, tau=0.3, scale=2.0):
    """Kernels, and targets drawn from their GP with this noise ratio and scale."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for m in sizes:
        phi = torch.randn(m, 2 * m, generator=generator, dtype=torch.float64) / math.sqrt(2 * m)
        gram = phi @ phi.T
        factor = torch.linalg.cholesky(scale * (gram + tau * torch.eye(m)))
        found.append((gram, factor @ torch.randn(m, outputs, generator=generator, dtype=torch.float64)))
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
    with pytest.raises(FactorisationError, match="overflow"):
        pooled_evidence([(torch.eye(3).double(), torch.full((3, 1), torch.inf).double())])
