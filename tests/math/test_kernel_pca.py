from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import mass_between_by_loops
from sklearn.decomposition import KernelPCA

from trustgp.math.low_rank import mass_between, principal_components, squared_masses


def features(rows: int, width: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.arange(1, width + 1, dtype=torch.float64)  # well separated eigenvalues
    return torch.randn(rows, width, generator=generator, dtype=torch.float64) * scales + 3.0


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
    found = mass_between(phi @ phi.T, labels, rows)
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
