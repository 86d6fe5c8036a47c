import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import greedy_by_refit, inverse_of

from trustgp.data.chunking import evenly
from trustgp.math import low_rank as selection
from trustgp.math.low_rank import condition, pivoted_cholesky_rows, pivoted_root_rows


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


def test_the_most_uncertain_row_comes_first():
    gram = kernel(15)
    assert int(pivoted_cholesky_rows(gram, 1, 0.1)[0]) == int(gram.diagonal().argmax())


def test_the_second_row_is_the_most_uncertain_given_the_first():
    gram = torch.tensor([[4.0, 3.9, 0.0], [3.9, 3.95, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert pivoted_cholesky_rows(gram, 3, 0.01).tolist() == [0, 2, 1]


def test_ties_go_to_the_first_row():
    assert pivoted_cholesky_rows(torch.eye(5, dtype=torch.float64), 5, 0.1).tolist() == [0, 1, 2, 3, 4]


def test_no_row_is_selected_twice_even_when_rows_repeat():
    gram = kernel(6, width=3)
    twice = torch.cat([gram, gram], dim=1)
    found = pivoted_cholesky_rows(torch.cat([twice, twice]), 12, 1e-9)
    assert sorted(found.tolist()) == list(range(12))


def test_no_more_rows_come_back_than_there_are():
    assert sorted(pivoted_cholesky_rows(kernel(5), 99, 0.1).tolist()) == [0, 1, 2, 3, 4]


@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(0, 16), st.integers(1, 6), st.floats(-9, 2))
def test_selection_is_the_prefix_of_a_permutation(seed, rows, count, width, power):
    gram = kernel(rows, width, seed)
    found = pivoted_cholesky_rows(gram, count, 10.0**power).tolist()
    assert len(found) == min(count, rows)
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(rows))
    assert pivoted_cholesky_rows(gram, rows, 10.0**power).tolist()[: len(found)] == found


@pytest.mark.parametrize("contenders", [1, 3, 10, 1000])
def test_rows_chosen_together_are_those_chosen_one_by_one(contenders, monkeypatch):
    gram, noise = kernel(60), 0.05
    monkeypatch.setattr(selection, "CONTENDERS", contenders)
    left, expected = gram.clone(), []
    for _ in range(25):  # the covariance itself is conditioned on each choice
        variance = left.diagonal().clone()
        variance[expected] = -torch.inf
        pivot = int(variance.argmax())
        expected.append(pivot)
        left = left - torch.outer(left[:, pivot], left[pivot]) / (left[pivot, pivot] + noise)
    assert pivoted_cholesky_rows(gram, 25, noise).tolist() == expected


def test_of_many_rows_the_first_come_from_those_evenly_spread(monkeypatch):
    gram, noise, spread, count = kernel(90), 0.05, evenly(90, 24), 16
    for name, value in (("MANY", 10), ("SPREAD", 24), ("CONTENDERS", 5)):
        monkeypatch.setattr(selection, name, value)
    first = greedy_by_refit(gram, 8, noise, spread, NOBODY)
    rest = torch.tensor([row for row in range(90) if row not in first])
    expected = first + greedy_by_refit(gram, 8, noise, rest, torch.tensor(first))
    assert pivoted_cholesky_rows(gram, count, noise).tolist() == expected
    values, vectors = torch.linalg.eigh(gram)
    root = (vectors * values.clamp_min(0.0).sqrt()).T
    assert pivoted_root_rows(root, count, noise).tolist() == expected


@pytest.mark.parametrize(("count", "rows"), [(10, 90), (16, 48)])
def test_few_rows_or_rows_of_few_are_chosen_from_all(count, rows, monkeypatch):
    monkeypatch.setattr(selection, "MANY", 10)
    monkeypatch.setattr(selection, "SPREAD", 24)
    gram = kernel(rows)
    found = pivoted_cholesky_rows(gram, count, 0.05).tolist()
    assert found == greedy_by_refit(gram, count, 0.05, torch.arange(rows), NOBODY)
