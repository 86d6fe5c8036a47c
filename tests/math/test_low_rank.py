"""Many rows in few columns, selection and components against dense float64 formulas, with plain inverses."""

import math
from itertools import combinations

import pytest
import torch
from draws import Draws, normal
from hypothesis import given
from hypothesis import strategies as st
from reference import greedy_by_refit, inverse_of, leave_out, mass_between_by_loops
from sklearn.decomposition import KernelPCA

from trustgp.math import low_rank
from trustgp.math.low_rank import (
    LowRank,
    condition,
    pivoted_cholesky_rows,
    principal_components,
    squared_masses,
)

M, R, B = 40, 12, 3


def problem(seed: int = 0) -> tuple[LowRank, torch.Tensor, torch.Tensor]:
    """A kernel in columns, and dense; and targets with noise."""
    draws = Draws(seed)
    phi = draws.normal(M, R) * torch.linspace(1.5, 0.05, R, dtype=torch.float64)
    targets = phi @ draws.normal(R, B) + draws.normal(M, B)
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
    tau, scale = low_rank.low_rank_evidence(columns, targets, level)

    def covariance(at: float) -> torch.Tensor:
        return kernel + at * torch.eye(M, dtype=torch.float64)

    def best_scale(at: float) -> torch.Tensor:
        return (targets * torch.linalg.solve(covariance(at), targets)).mean(dim=0)

    def loss(at: float) -> float:
        return float(0.5 * (M * best_scale(at).log().sum() + B * torch.logdet(covariance(at))))

    torch.testing.assert_close(scale, best_scale(float(tau)), rtol=1e-6, atol=1e-9)
    lowest = min(loss(level * math.exp(0.02 * i)) for i in range(-900, 230))
    assert loss(float(tau)) <= lowest + 1e-2


def random_gram(rows: int, width: int = 30, seed: int = 0) -> torch.Tensor:
    phi = normal(rows, width, seed=seed)
    return phi @ phi.T


NOBODY = torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize("noise", [1e-3, 1.0, 30.0])
def test_selection_equals_a_new_gp_per_point(noise):
    gram = random_gram(25)
    found = pivoted_cholesky_rows(gram, 12, noise)
    assert found.tolist() == greedy_by_refit(gram, 12, noise, torch.arange(25), NOBODY)


@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_selection_given_other_rows_equals_a_new_gp_per_point(noise):
    gram = random_gram(30)
    given_rows, candidates = torch.arange(10), torch.arange(10, 30)
    posterior = condition(gram[10:, 10:], gram[:10, 10:], gram[:10, :10], noise)
    found = candidates[pivoted_cholesky_rows(posterior, 8, noise)]
    assert found.tolist() == greedy_by_refit(gram, 8, noise, candidates, given_rows)


@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_condition_equals_the_explicit_inverse(noise):
    gram = random_gram(20)
    corner, cross, given_gram = gram[8:, 8:], gram[:8, 8:], gram[:8, :8]
    expected = corner - cross.T @ inverse_of(given_gram, noise) @ cross
    torch.testing.assert_close(condition(corner, cross, given_gram, noise), expected, rtol=1e-10, atol=1e-10)


def test_ties_go_to_the_first_row():
    assert pivoted_cholesky_rows(torch.eye(5, dtype=torch.float64), 5, 0.1).tolist() == [0, 1, 2, 3, 4]


@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(0, 16), st.integers(1, 6), st.floats(-9, 2))
def test_selection_is_the_prefix_of_a_permutation(seed, rows, count, width, power):
    gram = random_gram(rows, width, seed)
    found = pivoted_cholesky_rows(gram, count, 10.0**power).tolist()
    assert len(found) == min(count, rows)
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(rows))
    assert pivoted_cholesky_rows(gram, rows, 10.0**power).tolist()[: len(found)] == found


def features(rows: int, width: int, seed: int) -> torch.Tensor:
    return normal(rows, width, seed=seed) * torch.arange(1.0, width + 1) + 3.0  # well separated eigenvalues


def test_components_equal_sklearn_on_the_subset_and_on_new_rows():
    subset, new = features(25, 5, 0), features(9, 5, 1)
    coefficients, offset = principal_components(subset @ subset.T, 4)
    theirs = KernelPCA(4, kernel="precomputed", eigen_solver="dense")
    expected = torch.from_numpy(theirs.fit_transform((subset @ subset.T).numpy()))
    found = subset @ subset.T @ coefficients - offset
    # the sign that is arbitrary on the subset must be the same on new rows
    sign = torch.sign((found * expected).sum(dim=0))
    torch.testing.assert_close(found * sign, expected, rtol=1e-10, atol=1e-10)
    expected_new = torch.from_numpy(theirs.transform((new @ subset.T).numpy()))
    found_new = new @ subset.T @ coefficients - offset
    torch.testing.assert_close(found_new * sign, expected_new, rtol=1e-10, atol=1e-9)


def test_fewer_components_come_back_when_the_kernel_has_fewer_directions():
    subset = features(20, 3, 0)
    coefficients, offset = principal_components(subset @ subset.T, 8)
    assert coefficients.shape == (20, 3)
    assert offset.shape == (3,)
    row = torch.tensor([[0.3, 0.7, 1.9]], dtype=torch.float64).repeat(15, 1)
    assert principal_components(row @ row.T, 4)[0].shape == (15, 0)


def test_signs_are_fixed():
    subset = features(20, 4, 0)
    coefficients, _ = principal_components(subset @ subset.T, 4)
    top = coefficients.gather(0, coefficients.abs().argmax(dim=0, keepdim=True))
    assert bool((top > 0).all())


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 5))
def test_mass_between_equals_the_loops(seed, rows, experts):
    phi = features(rows, 4, seed)
    labels = torch.randint(0, experts, (rows,), generator=torch.Generator().manual_seed(seed))
    found = low_rank.mass_between(phi @ phi.T, labels, rows)
    assert float(found) == pytest.approx(mass_between_by_loops(phi @ phi.T, labels), rel=1e-10, abs=1e-14)
    assert 0.0 <= float(found) <= 1.0


def test_masses_from_some_rows_are_right_on_average():
    phi = features(8, 4, 0) + 1.0
    gram, labels = phi @ phi.T, torch.arange(8) % 3
    pairs = [(float(gram[i, j]) ** 2, bool(labels[i] != labels[j])) for i in range(8) for j in range(8)]
    exact = [sum(square for square, apart in pairs if apart), sum(square for square, _ in pairs)]
    drawn = [torch.tensor(subset) for subset in combinations(range(8), 4)]
    found = [torch.stack(squared_masses(gram[rows][:, rows], labels[rows], 8)) for rows in drawn]
    assert torch.stack(found).mean(dim=0).tolist() == pytest.approx(exact, rel=1e-10)
