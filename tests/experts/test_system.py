"""The equations of one expert: in the columns of explicit features as by the dense kernel."""

import pytest
import torch
from draws import Draws, normal
from reference import leave_out, posterior_mean, posterior_variance, profile_likelihood, scale_from_eigenpairs

from trustgp.data import chunking
from trustgp.experts.features import NO_COLUMNS
from trustgp.experts.system import DualSystem, PrimalSystem, select_rows
from trustgp.math.evidence import Prior
from trustgp.math.low_rank import ONE_STEP_BYTES
from trustgp.tangents.rows import RowFeatures

N, D, B = 60, 20, 2
CPU = torch.device("cpu")
PRIOR = Prior(tau=torch.tensor(0.3, dtype=torch.float64), scale=torch.tensor(1.7, dtype=torch.float64))


def rows_of(n: int = N, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (normal(n, D, seed=seed) * torch.linspace(1.5, 0.1, D, dtype=torch.float64)).to(dtype)


def values_of(phi: torch.Tensor, seed: int = 1) -> torch.Tensor:
    draws = Draws(seed)
    return phi.double() @ draws.normal(D, B) + 0.7 * draws.normal(len(phi), B)


def both(phi: torch.Tensor) -> tuple[PrimalSystem, DualSystem]:
    """The two ways of one lot of rows."""
    features, every = RowFeatures(phi), torch.arange(len(phi))
    found = select_rows(every, features, CPU)
    assert isinstance(found, PrimalSystem)
    return found, DualSystem(every, features, features.gram(features))


@pytest.fixture(params=["one block", "many blocks", "as on a GPU"])
def few_at_a_time(request, monkeypatch):
    if request.param == "as on a GPU":
        monkeypatch.setitem(ONE_STEP_BYTES, "cpu", 2**28)
    if request.param != "one block":
        monkeypatch.setattr(chunking, "CHUNK_BYTES", 8 * D * 7)
        monkeypatch.setattr(chunking.chunks, "__defaults__", (7,))


@pytest.mark.parametrize("prior", [None, PRIOR], ids=["own prior", "shared prior"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_sums_over_the_rows_give_what_the_kernel_gives(few_at_a_time, prior, dtype):
    phi, new = rows_of(dtype=dtype), RowFeatures(rows_of(9, seed=5, dtype=dtype))
    targets, residual, groups = values_of(phi), values_of(phi, seed=2), torch.arange(N) // 7
    groups[30:] = 9  # one group has more rows than there are columns
    found, expected = (way.solve(NO_COLUMNS, targets, residual, prior) for way in both(phi))
    close = {"rtol": 1e-8, "atol": 1e-9}
    for name in ("tau", "scale", "jitter", "prior"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **close)
    for labels in (None, groups):
        left, exact = (way.leave_out(residual, labels) for way in (found, expected))
        torch.testing.assert_close(left, exact, **close)
    answer, exact = found.posterior(new), expected.posterior(new)
    torch.testing.assert_close(answer.residual_mean, exact.residual_mean, **close)
    # an expert keeps its basis in the network's precision
    loose = close if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(answer.unit, exact.unit, **loose)
    assert found.posterior.directions == expected.posterior.directions == D


def test_sums_over_the_rows_give_what_the_textbook_says():
    phi, new = rows_of(), rows_of(9, seed=5)
    targets, residual, groups = values_of(phi), values_of(phi, seed=2), torch.arange(N) // 7
    found = both(phi)[0].solve(NO_COLUMNS, targets, residual, None)
    gram, cross, tau = phi @ phi.T, new @ phi.T, float(found.tau)
    close = {"rtol": 1e-8, "atol": 1e-9}
    torch.testing.assert_close(found.scale, scale_from_eigenpairs(gram, targets, tau), **close)
    level = float(gram.diagonal().mean())
    best = max(profile_likelihood(gram, targets, level * 10.0 ** (power / 4)) for power in range(-32, 9))
    assert profile_likelihood(gram, targets, tau) >= best - 0.01
    answer, prior = found.posterior(RowFeatures(new)), new.square().sum(dim=1)
    torch.testing.assert_close(answer.unit, posterior_variance(gram, cross, prior, tau), **close)
    torch.testing.assert_close(answer.residual_mean, posterior_mean(gram, cross, residual, tau), **close)
    for labels in (None, groups):
        exact = leave_out(gram, residual, torch.arange(N) if labels is None else labels, tau)
        torch.testing.assert_close(found.leave_out(residual, labels), exact, **close)


def test_columns_that_say_the_same_count_once():
    phi = rows_of()
    phi[:, D // 2 :] = phi[:, : D // 2]
    targets, new = values_of(phi), RowFeatures(rows_of(9, seed=5))
    found, expected = (way.solve(NO_COLUMNS, targets, targets, None) for way in both(phi))
    assert found.posterior.directions == expected.posterior.directions == D // 2
    torch.testing.assert_close(found.tau, expected.tau, rtol=1e-8, atol=0)
    torch.testing.assert_close(found.posterior(new).unit, expected.posterior(new).unit, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("most", [9, 100])
def test_borrowed_rows_are_evenly_spread_and_added_to_the_sums(most):
    phi = rows_of(N + 35)
    own, candidates = torch.arange(N), torch.arange(N, N + 35)
    expected = [N, N + 4, N + 8, N + 13, N + 17, N + 21, N + 26, N + 30, N + 34] if most == 9 else candidates
    selection = select_rows(own, RowFeatures(phi[own]), CPU)
    found = selection.borrow(candidates, RowFeatures(phi[candidates]), most)
    assert isinstance(found, PrimalSystem)
    assert found.seen[N:].tolist() == list(expected)
    torch.testing.assert_close(found.gram, phi[found.seen].T @ phi[found.seen], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.features.rows, phi[found.seen], rtol=0, atol=0)


WAYS = {5: DualSystem, D: DualSystem, D + 1: PrimalSystem, N: PrimalSystem}


@pytest.mark.parametrize(("n", "way"), WAYS.items())
def test_columns_are_taken_where_they_are_fewer_than_rows(n, way):
    rows = torch.arange(100, 100 + n)
    found = select_rows(rows, RowFeatures(rows_of(n)), CPU)
    assert type(found) is way
    assert torch.equal(found.seen, rows)
