"""Temperatures: the formula, and the fit against scipy on the same objective."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from draws import Draws, normal
from reference import tail_exponent
from scipy.special import log_softmax, logsumexp

from trustgp.math import cross_entropy as module
from trustgp.math.cross_entropy import (
    ClassCalibrationRows,
    Temperature,
    UsualNovelty,
    class_nll,
    fit_temperature,
)
from trustgp.math.logit_noise import NUM_DRAWS, log_probabilities, normal_draws, square_root


def rows_of(
    n: int, *, base: float, slope: float, expert: float = 0.2, classes: int = 4, top: int = 1, seed: int = 0
) -> ClassCalibrationRows:
    """Labels drawn from the model with the given T_0^2 and lambda; noise of so many leading classes."""
    draws, blank = Draws(seed), torch.zeros(n, dtype=torch.int64)
    logits, variance = 4 * draws.normal(n, classes), draws.uniform(n) * 10
    factor = draws.normal(n, top - 1, 3)
    covariance = (variance[:, None, None] * factor @ factor.mT).flatten(1)
    latent = torch.stack([variance, draws.uniform(n) * 10], dim=1)
    rows = ClassCalibrationRows(logits, blank, torch.zeros(n, 4), latent, covariance)
    true = Temperature(*(torch.tensor(value, dtype=torch.float64) for value in (base, slope, expert)))
    each = [class_nll(replace(rows, labels=blank + c), true).neg().exp() for c in range(max(2, classes))]
    labels = torch.multinomial(torch.stack(each, dim=1), 1, generator=draws.generator)
    return replace(rows, labels=labels.flatten())


def log_softmax_by_hand(rows: ClassCalibrationRows, base: float, slope: float, expert: float) -> np.ndarray:
    """log p in NumPy, by the covariance of all classes' noise, row by row."""
    every = []
    for z, v, flat in zip(rows.logits.numpy(), rows.latent.numpy(), rows.covariance.numpy(), strict=True):
        spread, k = math.sqrt(base + slope * v[0] + expert * v[1]), math.isqrt(len(flat)) + 1
        order, draws = np.argsort(-z), np.zeros((NUM_DRAWS, len(z)))
        if k > 1:
            differences = slope * flat.reshape(k - 1, k - 1)
            padded = np.pad(differences, ((1, 0), (1, 0)))
            centre = np.eye(k) - 1 / k
            inner = centre @ padded @ centre  # of the leading classes about their mean
            level = np.trace(inner) / (k - 1)
            whole = np.zeros((k + 1, k + 1))
            whole[:k, :k], whole[k, k] = inner + level / k, level
            contrast = np.hstack([-np.ones((k, 1)), np.eye(k)])[: k if len(z) > k else k - 1]
            joint = contrast @ whole @ contrast.T
            factor = np.linalg.cholesky(joint + 1e-13 * np.trace(joint) * np.eye(len(joint)))
            noise = normal_draws(len(joint)).numpy() @ factor.T
            draws[:, order[1:k]] = noise[:, : k - 1]
            if len(z) > k:
                draws[:, order[k:]] = noise[:, k - 1 :]
        every.append(logsumexp(log_softmax((z + draws) / spread, axis=1), axis=0) - math.log(NUM_DRAWS))
    return np.stack(every)


def objective(rows: ClassCalibrationRows, logs: np.ndarray) -> float:
    """Sum of the losses and of the pulls, in NumPy."""
    logp = log_softmax_by_hand(rows, np.exp(logs[0]), *(np.pi / 8 * np.exp(logs[1:])))
    fit = -logp[np.arange(len(logp)), rows.labels.numpy()].sum()
    return fit + 0.5 * (logs[0] / module.BASE_STD) ** 2 + 0.5 * ((logs[1:] / module.SLOPE_STD) ** 2).sum()


def test_the_default_is_mackays_approximation():
    variances = torch.tensor([[0.0, 0.0], [0.0, 2.0], [1.0, torch.inf]]).double()
    actual = Temperature.default()(variances)
    assert actual.tolist() == pytest.approx([1.0, math.sqrt(1 + math.pi / 4), math.inf])


@pytest.mark.parametrize(("classes", "top"), [(4, 1), (2, 2), (5, 2), (5, 5), (6, 3), (4, 9)])
def test_the_likelihood_is_that_of_all_classes_with_their_joint_noise(classes, top):
    rows = rows_of(40, base=1.5, slope=0.3, classes=classes, top=min(top, classes))
    expected = log_softmax_by_hand(rows, 1.5, 0.3, 0.7)
    true = Temperature(*torch.tensor([1.5, 0.3, 0.7], dtype=torch.float64))
    for c in range(classes):
        loss = class_nll(replace(rows, labels=torch.full((40,), c)), true)
        np.testing.assert_allclose(loss, -expected[:, c], rtol=1e-6, atol=1e-6)  # a root of 1e-13


def test_the_mean_over_the_draws_is_that_of_many_random_ones():
    logits = torch.tensor([[2.0, 1.0, 0.5, -1.0]], dtype=torch.float64)
    covariance = torch.tensor([[[3.0, 1.0], [1.0, 2.0]]], dtype=torch.float64)
    noise = torch.zeros(400_000, 4, dtype=torch.float64)
    level = (5.0 - 7.0 / 3.0) / 2.0  # of the last class, and of the leading ones together over 3
    joint = [[3.0, 1.0, 4 / 3], [1.0, 2.0, 1.0], [4 / 3, 1.0, level * 4 / 3 + 7 / 9]]
    factor = torch.linalg.cholesky(torch.tensor(joint, dtype=torch.float64))
    noise[:, 1:] = normal(len(noise), 3) @ factor.T
    expected = (logits + noise).softmax(dim=1).mean(dim=0)
    torch.testing.assert_close(log_probabilities(logits, covariance)[0].exp(), expected, rtol=0, atol=5e-3)


def test_draws_have_no_mean_and_a_unit_covariance():
    for dim in (1, 2, 9, 16):
        draws = normal_draws(dim)
        torch.testing.assert_close(draws.T @ draws / len(draws), torch.eye(dim).double(), rtol=0, atol=1e-12)
        torch.testing.assert_close(draws.sum(dim=0), torch.zeros(dim).double(), rtol=0, atol=1e-12)


def test_a_singular_matrix_has_a_root():
    vectors = normal(7, 4, 2)
    singular = torch.cat([vectors @ vectors.mT, torch.zeros(1, 4, 4).double()])
    root = square_root(singular)
    torch.testing.assert_close(root @ root.mT, singular, rtol=0, atol=1e-6)
    assert bool((root.triu(1) == 0).all())


@pytest.mark.parametrize(("base", "slope", "top"), [(1.0, 0.4, 1), (2.5, 0.1, 1), (0.5, 1.0, 2)])
def test_base_and_slopes_are_the_likeliest(base, slope, top):
    rows = rows_of(300, base=base, slope=slope, top=top)
    fitted = fit_temperature(rows, seen=False)
    slopes = [math.log(float(each) / (math.pi / 8)) for each in (fitted.slope, fitted.expert)]
    ours = np.array([float(fitted.base.log()), *slopes])
    least = objective(rows, ours)
    for step in 1e-3 * np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, -1, 0], [1, 0, -1]]):
        around = objective(rows, ours + step), objective(rows, ours - step)
        assert min(around) > least
        assert abs(around[0] - around[1]) < 0.2 * (sum(around) - 2 * least)  # the centre of a parabola


def test_on_rows_that_the_network_was_trained_on_the_base_follows_from_their_loss_alone():
    rows = rows_of(800, base=4.0, slope=0.5)
    assert float(fit_temperature(rows, seen=True).base) == 1.0  # it has not fitted them
    right = torch.arange(rows.logits.shape[1])[None] == rows.labels[:, None]
    logits = torch.where(right, 3.0, -3.0).double()
    fitted = fit_temperature(replace(rows, logits=logits), seen=True)
    loss = math.log1p((logits.shape[1] - 1) * math.exp(-6.0))
    assert float(fitted.base) == pytest.approx((0.15 / loss) ** (2 / 8), rel=1e-12)
    certain = fit_temperature(replace(rows, logits=100 * logits), seen=True)
    assert float(certain.base) == pytest.approx((0.15 / 1e-4) ** (2 / 8), rel=1e-12)  # no more than that


@pytest.mark.parametrize("top", [1, 2])
def test_one_temperature_is_never_likelier(top):
    """Also where the variance misleads: here it is large where the network is right."""
    for seed in range(5):
        rows = rows_of(60, base=3.0, slope=1e-6, expert=1e-6, top=top, seed=seed)
        sure = class_nll(rows, Temperature.default()) < 0.3
        rows = replace(rows, latent=torch.where(sure, 50.0, 0.1).double()[:, None].expand(-1, 2))
        loss = float(class_nll(rows, fit_temperature(rows, seen=False)).mean())
        logits = rows.logits[:, None] / torch.linspace(-1, 2, 301).exp()[:, None].double()
        likely = logits.log_softmax(dim=2).gather(2, rows.labels[:, None, None].expand(-1, 301, 1))
        assert loss < float((-likely.mean(dim=0)).min()) + 0.02  # the prior of T_0


def test_of_very_many_rows_evenly_spread_ones_are_used(monkeypatch):
    monkeypatch.setattr(module, "MAX_LOGITS", 400)
    monkeypatch.setattr(module, "MIN_FIT_ROWS", 50)
    rows = rows_of(1000, base=1.0, slope=1.0)
    assert len(rows.thinned()) == 100
    assert torch.equal(rows.thinned().latent[[0, -1]], rows.latent[[0, -1]])


def test_the_likelihood_of_one_logit_is_that_of_a_pair():
    rows = rows_of(50, base=1.0, slope=1.0, classes=2)
    single = replace(rows, logits=rows.logits[:, 1:] - rows.logits[:, :1])
    rule = Temperature.default()
    torch.testing.assert_close(class_nll(single, rule), class_nll(rows, rule))


def test_the_score_is_the_mean_exponent_of_three_measures(generator):
    held_out, new = (torch.rand(n, 4, generator=generator).double() + 0.1 for n in (101, 50))
    held_out[:, 2:], new[:, 2:] = held_out[:, 2:].log(), 2.0 * new[:, 2:].log()
    usual = UsualNovelty.fit(held_out)
    medians = [float(np.median(held_out[:, k].numpy())) for k in (0, 1)]
    by = [[math.log(max(row[0] / medians[0], row[1] / medians[1])), *row[2:]] for row in held_out.tolist()]
    columns = [list(column) for column in zip(*by, strict=True)]
    expected = []
    for v, share, *others in new.tolist():
        row = [math.log(max(v / medians[0], share / medians[1])), *others]
        expected.append(sum(map(tail_exponent, columns, row)) / 3)
    assert usual(new).tolist() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_without_held_out_rows_the_score_grows_with_the_share_of_the_prior_and_zeros_are_not_divided_by():
    variance, share = torch.tensor([1e9, 0.0, torch.inf]).double(), torch.tensor([0.2, 0.7, 1.0]).double()
    blank = torch.zeros(3).double()
    scores = UsualNovelty.default()(torch.stack([variance, share, blank, blank], dim=1)).tolist()
    assert 0 < scores[0] < scores[1] < scores[2] == torch.inf
    zeros = torch.zeros(5, 4).double()
    assert UsualNovelty.fit(zeros)(zeros).tolist() == [0.0] * 5


def test_the_entropy_is_that_of_the_softened_classes():
    logits = 20.0 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0)).double()
    p = [[math.exp(z / module.SOFTNESS) for z in row] for row in logits.tolist()]
    p = [[each / sum(row) for each in row] for row in p]
    expected = [math.log(max(module.MIN_MEASURE, -sum(x * math.log(x) for x in row))) for row in p]
    assert module.log_entropy(logits).tolist() == pytest.approx(expected, rel=1e-9)
    pair = torch.cat([torch.zeros(40, 1), logits[:, :1]], dim=1)
    torch.testing.assert_close(module.log_entropy(logits[:, :1]), module.log_entropy(pair))
    assert float(module.log_entropy(torch.tensor([[1e5, 0.0]]))) == math.log(module.MIN_MEASURE)
