"""Many rows in few columns against dense float64 formulas, with plain inverses."""

import math

import pytest
import torch
from reference import leave_out

from trustgp.math.low_rank import LowRank, low_rank_evidence, squared_masses

M, R, B = 40, 12, 3


def problem(seed: int = 0) -> tuple[LowRank, torch.Tensor, torch.Tensor]:
    """A kernel in columns, and dense; and targets with noise."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.linspace(1.5, 0.05, R, dtype=torch.float64)
    phi = torch.randn(M, R, generator=generator, dtype=torch.float64) * wide
    weights = torch.randn(R, B, generator=generator, dtype=torch.float64)
    targets = phi @ weights + torch.randn(M, B, generator=generator, dtype=torch.float64)
    return LowRank.of(phi, phi.T @ phi), phi @ phi.T, targets


def test_the_inverse_is_a_plain_inverse():
    columns, kernel, _ = problem()
    tau = torch.tensor(0.3, dtype=torch.float64)
    expected = torch.linalg.inv(kernel + tau * torch.eye(M, dtype=torch.float64))
    found = columns.solve(tau, torch.eye(M, dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("size", [None, 1, 5, R, R + 1, 20])  # rows of a group: fewer than columns, and more
def test_rows_and_groups_left_out_are_really_left_out(size):
    columns, kernel, targets = problem()
    tau, groups = torch.tensor(0.3, dtype=torch.float64), torch.arange(M) // (size or 1)
    expected = leave_out(kernel, targets, groups, 0.3)
    left_out = columns.leave_out(tau, targets, groups if size else None)
    for found, wanted in zip(left_out, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-8)


def test_of_one_row_there_is_no_pair():
    between, total = squared_masses(torch.tensor([[3.0]]), torch.zeros(1), 10)
    assert (float(between), float(total)) == (0.0, 90.0)


@pytest.mark.parametrize("seed", range(3))
def test_tau_and_scale_are_of_the_largest_marginal_likelihood(seed):
    columns, kernel, targets = problem(seed)
    level = kernel.diagonal().mean()
    tau, scale = low_rank_evidence(columns, targets, level)

    def loss(candidate: float) -> float:
        covariance = kernel + candidate * torch.eye(M, dtype=torch.float64)
        best = (targets * torch.linalg.solve(covariance, targets)).mean(dim=0)
        return float(0.5 * (M * best.log().sum() + B * torch.logdet(covariance)))

    covariance = kernel + tau * torch.eye(M, dtype=torch.float64)
    torch.testing.assert_close(
        scale, (targets * torch.linalg.solve(covariance, targets)).mean(dim=0), rtol=1e-6, atol=1e-9
    )
    lowest = min(loss(level * math.exp(0.02 * i)) for i in range(-900, 230))
    assert loss(float(tau)) <= lowest + 1e-2
