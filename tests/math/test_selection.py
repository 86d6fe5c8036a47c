import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import greedy_by_refit, inverse_of

from trustgp.math.low_rank import condition, pivoted_cholesky_rows


def kernel(rows: int, width: int = 30, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return phi @ phi.T


NOBODY = torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize("noise", [1e-3, 1.0, 30.0])
def test_selection_equals_a_new_gp_per_point(noise):
    gram = kernel(25)
    found = pivoted_cholesky_rows(gram, 12, noise)
    assert found.tolist() == greedy_by_refit(gram, 12, noise, torch.arange(25), NOBODY)


@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_selection_given_other_rows_equals_a_new_gp_per_point(noise):
    gram = kernel(30)
    given_rows, candidates = torch.arange(10), torch.arange(10, 30)
    posterior = condition(
        gram[candidates][:, candidates], gram[given_rows][:, candidates], gram[:10, :10], noise
    )
    found = candidates[pivoted_cholesky_rows(posterior, 8, noise)]
    assert found.tolist() == greedy_by_refit(gram, 8, noise, candidates, given_rows)


@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_condition_equals_the_explicit_inverse(noise):
    gram = kernel(20)
    corner, cross, given_gram = gram[8:, 8:], gram[:8, 8:], gram[:8, :8]
    expected = corner - cross.T @ inverse_of(given_gram, noise) @ cross
    torch.testing.assert_close(condition(corner, cross, given_gram, noise), expected, rtol=1e-10, atol=1e-10)


def test_ties_go_to_the_first_row():
    assert pivoted_cholesky_rows(torch.eye(5, dtype=torch.float64), 5, 0.1).tolist() == [0, 1, 2, 3, 4]


@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(0, 16), st.integers(1, 6), st.floats(-9, 2))
def test_selection_is_the_prefix_of_a_permutation(seed, rows, count, width, power):
    gram = kernel(rows, width, seed)
    found = pivoted_cholesky_rows(gram, count, 10.0**power).tolist()
    assert len(found) == min(count, rows)
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(rows))
    assert pivoted_cholesky_rows(gram, rows, 10.0**power).tolist()[: len(found)] == found
