"""Landmarks against dense float64 formulas, with plain inverses."""

import math

import pytest
import torch

from trustgp.math.calibration import leave_one_out
from trustgp.math.low_rank import LowRank, low_rank, low_rank_evidence
from trustgp.math.posterior import gram_variance, noisy_span, span_variance

M, R, B = 40, 12, 3


def problem(seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    phi = (
        torch.randn(M, 30, generator=generator, dtype=torch.float64) * torch.linspace(1.5, 0.05, 30).double()
    )
    kernel = phi @ phi.T
    chosen = torch.randperm(M, generator=generator)[:R]
    targets = torch.randn(M, B, generator=generator, dtype=torch.float64)
    new = torch.randn(7, 30, generator=generator, dtype=torch.float64)
    return phi, kernel, chosen, targets, new


def nystrom(kernel: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    cross = kernel[chosen]
    return cross.T @ torch.linalg.inv(kernel[chosen][:, chosen]) @ cross


def reduced(kernel: torch.Tensor, chosen: torch.Tensor) -> LowRank:
    return low_rank(kernel[chosen][:, chosen], kernel[chosen])


def test_the_kernel_is_the_one_through_the_landmarks():
    _, kernel, chosen, _, _ = problem()
    found = reduced(kernel, chosen)
    torch.testing.assert_close(found.phi @ found.phi.T, nystrom(kernel, chosen), rtol=1e-8, atol=1e-8)


def test_the_inverse_is_a_plain_inverse():
    _, kernel, chosen, _, _ = problem()
    tau = torch.tensor(0.3, dtype=torch.float64)
    expected = torch.linalg.inv(nystrom(kernel, chosen) + tau * torch.eye(M, dtype=torch.float64))
    found = reduced(kernel, chosen).solve(tau, torch.eye(M, dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


def test_left_out_rows_are_those_of_the_dense_inverse():
    _, kernel, chosen, targets, _ = problem()
    tau = torch.tensor(0.3, dtype=torch.float64)
    inverse = torch.linalg.inv(nystrom(kernel, chosen) + tau * torch.eye(M, dtype=torch.float64))
    for found, expected in zip(
        reduced(kernel, chosen).leave_one_out(tau, targets), leave_one_out(inverse, targets), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


def test_variance_and_mean_are_those_of_the_textbook():
    phi, kernel, chosen, targets, new = problem()
    tau = torch.tensor(0.3, dtype=torch.float64)
    factor, weights = reduced(kernel, chosen).posterior(tau, targets)
    cross, inner, many = new @ phi[chosen].T, kernel[chosen][:, chosen], kernel[chosen]
    total = torch.linalg.inv(tau * inner + many @ many.T)
    middle = torch.linalg.inv(inner) - tau * total
    prior = new.square().sum(dim=1)
    expected = prior - (cross @ middle * cross).sum(dim=1)
    torch.testing.assert_close(gram_variance(prior, cross, factor), expected, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(cross @ weights, cross @ total @ many @ targets, rtol=1e-7, atol=1e-8)


def test_explicit_features_answer_the_same():
    phi, kernel, chosen, targets, new = problem()
    factor, _ = reduced(kernel, chosen).posterior(torch.tensor(0.3, dtype=torch.float64), targets)
    basis, shrink = noisy_span(phi[chosen], factor)
    expected = gram_variance(new.square().sum(dim=1), new @ phi[chosen].T, factor)
    torch.testing.assert_close(span_variance(new, basis, shrink), expected, rtol=1e-9, atol=1e-9)


def test_when_every_row_is_a_landmark_nothing_is_lost():
    _, kernel, _, targets, _ = problem()
    kernel = kernel + 0.1 * torch.eye(M, dtype=torch.float64)  # of full rank
    tau = torch.tensor(0.3, dtype=torch.float64)
    factor, weights = low_rank(kernel, kernel).posterior(tau, targets)
    exact = kernel + tau * torch.eye(M, dtype=torch.float64)
    torch.testing.assert_close(factor @ factor.T, exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(weights, torch.linalg.solve(exact, targets), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_tau_and_scale_are_of_the_largest_marginal_likelihood(seed):
    phi, kernel, chosen, _, _ = problem(seed)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(30, B, generator=generator, dtype=torch.float64)
    targets = phi @ weights + torch.randn(M, B, generator=generator, dtype=torch.float64)
    level = kernel.diagonal().mean()
    tau, scale = low_rank_evidence(reduced(kernel, chosen), targets, level)

    def loss(candidate: float) -> float:
        covariance = nystrom(kernel, chosen) + candidate * torch.eye(M, dtype=torch.float64)
        best = (targets * torch.linalg.solve(covariance, targets)).mean(dim=0)
        return float(0.5 * (M * best.log().sum() + B * torch.logdet(covariance)))

    covariance = nystrom(kernel, chosen) + tau * torch.eye(M, dtype=torch.float64)
    torch.testing.assert_close(
        scale, (targets * torch.linalg.solve(covariance, targets)).mean(dim=0), rtol=1e-6, atol=1e-9
    )
    lowest = min(loss(level * math.exp(0.02 * i)) for i in range(-900, 230))
    assert loss(float(tau)) <= lowest + 1e-2


def test_landmarks_that_repeat_each_other_do_no_harm():
    phi, kernel, chosen, targets, new = problem()
    twice = torch.cat([chosen, chosen])
    tau = torch.tensor(0.3, dtype=torch.float64)
    prior = new.square().sum(dim=1)
    found, expected = (
        gram_variance(prior, new @ phi[some].T, reduced(kernel, some).posterior(tau, targets)[0])
        for some in (twice, chosen)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
