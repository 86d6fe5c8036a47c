"""Temperatures: the formula, and the fit against scipy on the same objective."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import tail_exponent
from scipy.optimize import minimize
from scipy.special import log_softmax

from trustgp.math import cross_entropy as module
from trustgp.math.cross_entropy import (
    MIN_MEASURE,
    SOFTNESS,
    ClassCalibrationRows,
    Temperature,
    UsualNovelty,
    fit_temperature,
    log_entropy,
    tempered_nll,
)


def rows_of(n: int, *, base: float, slope: float, classes: int = 4, seed: int = 0) -> ClassCalibrationRows:
    """Labels drawn from softmax(z / T) with the given T_0^2 and lambda."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    variance = torch.rand(n, generator=generator, dtype=torch.float64) * 10
    p = (logits / (base + slope * variance).sqrt()[:, None]).softmax(1)
    labels = torch.multinomial(p, 1, generator=generator).flatten()
    return ClassCalibrationRows(logits, labels, variance, torch.arange(n) % 3, torch.zeros(n, 4))


def objective(rows: ClassCalibrationRows, logs: np.ndarray) -> float:
    """Sum of the losses and of the pulls, in NumPy."""
    z, y, v = rows.logits.numpy(), rows.labels.numpy(), rows.variance.numpy()
    spread = np.sqrt(np.exp(logs[0]) + np.pi / 8 * np.exp(logs[1]) * v)
    fit = -log_softmax(z / spread[:, None], axis=1)[np.arange(len(y)), y].sum()
    return fit + 0.5 * (logs[0] / module.BASE_STD) ** 2 + 0.5 * (logs[1] / module.SLOPE_STD) ** 2


def test_the_default_is_mackays_approximation():
    found = Temperature.default(2)(torch.tensor([0.0, 2.0]).double(), torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx([1.0, math.sqrt(1 + math.pi / 4)])


def test_each_row_takes_its_experts_slope_and_rows_without_one_that_of_all():
    one = torch.ones((), dtype=torch.float64)
    rule = Temperature(one, 3 * one, torch.tensor([8.0, 15.0]).double())
    found = rule(torch.tensor([1.0, 1.0, 1.0, math.inf]).double(), torch.tensor([0, 1, -1, -1]))
    assert found.tolist() == [3.0, 4.0, 2.0, math.inf]


@pytest.mark.parametrize(("base", "slope"), [(1.0, 0.4), (2.5, 0.1), (0.5, 2.0)])
def test_base_and_slope_are_those_that_scipy_finds(base, slope):
    rows = rows_of(800, base=base, slope=slope)
    found = fit_temperature(rows, 3, seen=False, local=False)
    options = {"xatol": 1e-8, "fatol": 1e-11}
    best = minimize(lambda x: objective(rows, x), [0.0, 0.0], method="Nelder-Mead", options=options)
    ours = np.array([float(found.base.log()), math.log(float(found.slope) / (math.pi / 8))])
    np.testing.assert_allclose(ours, best.x, atol=1e-5)


def test_on_rows_that_the_network_was_trained_on_the_base_follows_from_their_loss_alone():
    rows = rows_of(800, base=4.0, slope=0.5)
    assert float(fit_temperature(rows, 3, seen=True, local=True).base) == 1.0  # it has not fitted them
    right = torch.arange(rows.logits.shape[1])[None] == rows.labels[:, None]
    logits = torch.where(right, 3.0, -3.0).double()
    fitted = fit_temperature(replace(rows, logits=logits), 3, seen=True, local=True)
    loss = math.log1p((logits.shape[1] - 1) * math.exp(-6.0))
    assert float(fitted.base) == pytest.approx((0.15 / loss) ** (2 / 8), rel=1e-12)
    certain = fit_temperature(replace(rows, logits=100 * logits), 3, seen=True, local=True)
    assert float(certain.base) == pytest.approx((0.15 / 1e-4) ** (2 / 8), rel=1e-12)  # no more than that


def test_an_expert_with_enough_rows_has_its_own_slope_pulled_towards_that_of_all():
    easy, hard = (rows_of(600, base=1.0, slope=slope, seed=seed) for slope, seed in ((0.05, 1), (4.0, 2)))
    places = (torch.zeros(600).long(), torch.ones(600).long())
    parts = [replace(r, expert=e) for r, e in zip((easy, hard), places, strict=True)]
    few = ClassCalibrationRows(*(values[:20] for values in vars(hard).values()))
    few = replace(few, expert=places[0][:20] + 2)
    found = fit_temperature(ClassCalibrationRows.cat([*parts, few]), 3, seen=False, local=True)
    assert found.slopes[0] < found.slope < found.slopes[1]
    assert float(found.slopes[2]) == float(found.slope)

    def pulled(delta: float) -> float:
        own = found.base + found.slope * math.exp(delta) * parts[1].variance
        return float(tempered_nll(parts[1], own.sqrt()).sum()) + 0.5 * (delta / module.EXPERT_STD) ** 2

    grid = np.linspace(-1, 3, 4001)
    best = grid[np.argmin([pulled(d) for d in grid])]
    assert math.log(float(found.slopes[1] / found.slope)) == pytest.approx(best, abs=2e-3)


def test_of_very_many_rows_evenly_spread_ones_are_used(monkeypatch):
    monkeypatch.setattr(module, "MAX_LOGITS", 400)
    monkeypatch.setattr(module, "MIN_FIT_ROWS", 50)
    thinned = rows_of(1000, base=1.0, slope=1.0).thinned()
    assert len(thinned) == 100
    assert torch.equal(thinned.expert[[0, -1]], torch.tensor([0, 999 % 3]))


def test_the_likelihood_of_one_logit_is_that_of_a_pair():
    rows = rows_of(50, base=1.0, slope=1.0, classes=2)
    single = replace(rows, logits=rows.logits[:, 1:] - rows.logits[:, :1])
    spread = torch.full((50,), 1.7).double()
    torch.testing.assert_close(tempered_nll(single, spread), tempered_nll(rows, spread))


def test_the_score_is_the_mean_exponent_of_three_measures():
    generator = torch.Generator().manual_seed(0)
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
    p = [[math.exp(z / SOFTNESS) for z in row] for row in logits.tolist()]
    p = [[each / sum(row) for each in row] for row in p]
    expected = [math.log(max(MIN_MEASURE, -sum(x * math.log(x) for x in row))) for row in p]
    assert log_entropy(logits).tolist() == pytest.approx(expected, rel=1e-9)
    pair = torch.cat([torch.zeros(40, 1), logits[:, :1]], dim=1)
    torch.testing.assert_close(log_entropy(logits[:, :1]), log_entropy(pair))
    assert float(log_entropy(torch.tensor([[1e5, 0.0]]))) == math.log(MIN_MEASURE)
