"""Fewer rows and directions: against explicit inverses, and never a smaller variance."""

import pytest
import torch
from reference import posterior_variance

from trustgp.math import posterior as compression
from trustgp.math.posterior import (
    low_rank_root,
    narrowed,
    projected,
    root_variance,
    variance_reduction_rows,
)

GENERATOR = torch.Generator().manual_seed(0)
PHI, NEW = (torch.randn(n, 40, generator=GENERATOR, dtype=torch.float64) for n in (24, 50))
SPREAD = torch.randn(24, 24, generator=GENERATOR, dtype=torch.float64)
NOISES = {"alike": 0.3 * torch.eye(24).double(), "correlated": 0.01 * SPREAD @ SPREAD.T + 0.1 * torch.eye(24)}
KEPT = torch.tensor([1, 2, 5, 9, 17, 23])


def full_variance(noise):
    gram = PHI @ PHI.T
    return posterior_variance(gram + noise, NEW @ PHI.T, NEW.square().sum(1), 0.0)


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_the_rows_alone_are_the_most_that_a_form_in_them_may_take_from_the_prior(noise):
    whole = PHI.T @ torch.linalg.inv(PHI @ PHI.T + noise) @ PHI  # taken by all rows, [d, d]
    rows = PHI[KEPT]
    alone = rows.T @ torch.linalg.inv(rows @ rows.T + noise[KEPT][:, KEPT]) @ rows
    span = torch.linalg.qr(rows.T)[0]
    shorted = span @ torch.linalg.inv(span.T @ torch.linalg.pinv(whole) @ span) @ span.T
    torch.testing.assert_close(alone, shorted, rtol=1e-8, atol=1e-8)
    assert float(torch.linalg.eigvalsh(whole - alone).min()) > -1e-10


@pytest.mark.parametrize("rank", [1, 4, 7, 23])
@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_a_root_takes_part_of_what_the_factor_takes_and_no_variance_falls(noise, rank):
    gram = PHI @ PHI.T
    root = low_rank_root(torch.linalg.cholesky(gram + noise), gram, rank)
    assert root.shape == (24, rank)
    torch.testing.assert_close(root.T @ (gram + noise) @ root, torch.eye(rank).double(), rtol=0, atol=1e-10)
    found = root_variance(NEW.square().sum(1), NEW @ PHI.T, root)
    assert bool((found >= full_variance(noise) - 1e-10).all())


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_all_directions_are_the_factor_itself(noise):
    gram = PHI @ PHI.T
    root = low_rank_root(torch.linalg.cholesky(gram + noise), gram, 99)
    found = root_variance(NEW.square().sum(1), NEW @ PHI.T, root)
    torch.testing.assert_close(found, full_variance(noise), rtol=1e-10, atol=1e-10)


def test_with_equal_noise_the_directions_are_the_leading_eigenvectors_of_the_kernel():
    gram, tau = PHI @ PHI.T, 0.3
    root = low_rank_root(torch.linalg.cholesky(gram + tau * torch.eye(24)), gram, 9)
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values[-9:], vectors[:, -9:]
    torch.testing.assert_close(root @ root.T, (vectors / (values + tau)) @ vectors.T, rtol=1e-10, atol=1e-10)


def test_few_directions_of_many_are_found_by_iteration_nearly_as_well():
    decaying = PHI.repeat(4, 1) * 0.8 ** torch.arange(40)
    gram = decaying @ decaying.T
    factor = torch.linalg.cholesky(gram + 1e-3 * torch.eye(96))
    assert compression.SPARE * 6 < 96
    white = torch.linalg.solve_triangular(factor, gram, upper=False)
    best = torch.linalg.svdvals(white)[:6].square().sum()
    taken = (gram @ low_rank_root(factor, gram, 6)).square().sum()
    assert float(taken / best) == pytest.approx(1.0, abs=1e-6)


def test_weights_solve_the_normal_equations():
    gram, values = PHI @ PHI.T, torch.sin(PHI[:, :2])
    cross, kept = gram[:, KEPT], gram[KEPT][:, KEPT]
    ridge = compression.RIDGE * float(kept.diagonal().mean())
    expected = torch.linalg.solve(ridge * 24 * kept + cross.T @ cross, cross.T @ values)
    torch.testing.assert_close(projected(cross, kept, values), expected, rtol=1e-6, atol=1e-8)


def test_what_the_kept_rows_can_say_is_projected_on_itself():
    gram, weights = PHI @ PHI.T, torch.zeros(24, 1, dtype=torch.float64)
    weights[KEPT, 0] = torch.arange(1.0, 7.0).double()
    found = projected(gram[:, KEPT], gram[KEPT][:, KEPT], gram @ weights)
    torch.testing.assert_close(found[:, 0], weights[KEPT, 0], rtol=1e-6, atol=1e-6)


def test_float32_lets_no_rows_variance_fall_and_raises_it_little():
    gram = PHI @ PHI.T
    root = low_rank_root(torch.linalg.cholesky(gram + 1e-3 * torch.eye(24)), gram, 24)
    small = narrowed(root, gram)
    assert small is not None
    assert small.dtype == torch.float32
    prior = gram.diagonal()
    before, after = (root_variance(prior, gram, one) for one in (root, small))
    assert bool((after >= before - 1e-12 * prior).all())
    assert bool((after <= before + 1e-5 * prior).all())


def test_a_root_that_float32_would_spoil_stays_in_float64(monkeypatch):
    twins = torch.cat([PHI, PHI + 1e-9])
    gram = twins @ twins.T
    noisy = gram + 1e-12 * float(gram.diagonal().mean()) * torch.eye(48)
    root = low_rank_root(torch.linalg.cholesky(noisy), gram, 48)
    lost = (gram @ root).square().sum(1) - (gram @ root.float().double()).square().sum(1)
    worst = float(lost.abs().max() / gram.diagonal().mean())
    assert worst > 1e-6  # far more than numbers of one size lose
    monkeypatch.setattr(compression, "SAFE", worst / 2)
    assert narrowed(root, gram) is None


def test_each_row_is_the_one_by_which_the_variances_of_all_fall_most():
    gram, tau = PHI @ PHI.T, 0.3
    chosen: list[int] = []

    def left(rows):
        noisy = gram[rows][:, rows] + tau * torch.eye(len(rows))
        return float((gram - gram[:, rows] @ torch.linalg.inv(noisy) @ gram[rows]).trace())

    for _ in range(8):
        rest = [row for row in range(24) if row not in chosen]
        chosen.append(min(rest, key=lambda row: left([*chosen, row])))
    assert variance_reduction_rows(gram, 8, tau).tolist() == chosen


def test_no_row_is_chosen_twice_and_all_of_them_where_there_are_too_few():
    twins = torch.cat([PHI[:5], PHI[:5]])
    assert sorted(variance_reduction_rows(twins @ twins.T, 99, 1e-6).tolist()) == list(range(10))


def test_rows_are_judged_on_some_where_there_are_many(monkeypatch):
    monkeypatch.setattr(compression, "JUDGED", 6)
    gram = PHI @ PHI.T
    judged = torch.linspace(0, 23, 6).long()
    gain = gram[judged].square().sum(0) / (gram.diagonal() + 0.3)
    assert int(variance_reduction_rows(gram, 1, 0.3)) == int(gain.argmax())


def test_the_difference_is_taken_in_float64_only():
    with pytest.raises(TypeError, match="float64"):
        root_variance(torch.ones(1), torch.ones(1, 2), torch.ones(2, 1))
