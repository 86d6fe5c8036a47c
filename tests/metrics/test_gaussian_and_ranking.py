"""Scores, against torch.distributions, scikit-learn and uncertainty-toolbox."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from draws import normal
from many import each
from metrics.by_hand import make
from sklearn.metrics import mean_squared_error, roc_auc_score, roc_curve

from trustgp import metrics
from trustgp.math.predictive import MAX_DF

GAUSSIAN = 5 / MAX_DF  # how far a Student-t of the most degrees of freedom is from a Gaussian


@pytest.fixture
def toolbox():
    """uncertainty-toolbox, which takes flat arrays of means, standard deviations and targets."""
    return pytest.importorskip("uncertainty_toolbox")


def rows(n: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Means, variances and targets of n rows, the error bars somewhat too small."""
    variance = (0.7 * normal(n, seed=seed)).exp()
    mean = 3 * normal(n, seed=seed + 1)
    return mean, variance, mean + 1.3 * variance.sqrt() * normal(n, seed=seed + 2)


def flat(mean: torch.Tensor, variance: torch.Tensor, target: torch.Tensor) -> tuple[np.ndarray, ...]:
    return mean.numpy(), variance.sqrt().numpy(), target.numpy()


@each("ties", [False, True])
def test_auroc_is_that_of_scikit_learn(ties):
    familiar, foreign = normal(300), normal(200, seed=1) + 0.7
    if ties:
        familiar, foreign = (2 * familiar).round(), (2 * foreign).round()
    labels = torch.cat([torch.zeros(300), torch.ones(200)])
    expected = roc_auc_score(labels.numpy(), torch.cat([familiar, foreign]).numpy())
    assert float(metrics.auroc(familiar, foreign)) == pytest.approx(expected, abs=1e-12)


@each("ties", [False, True])
@each("rows", [100, 293])
def test_fpr95_is_read_off_scikit_learns_roc_curve(ties, rows):
    familiar, foreign = normal(rows), normal(200, seed=1) + 1.5
    if ties:
        familiar, foreign = familiar.round(), foreign.round()
    # positive: familiar rows, which are accepted when their score is low
    labels = torch.cat([torch.ones(rows), torch.zeros(200)])
    both = -torch.cat([familiar, foreign]).numpy()
    false, true, _ = roc_curve(labels.numpy(), both, drop_intermediate=False)
    assert float(metrics.fpr95(familiar, foreign)) == pytest.approx(false[true >= 0.95 - 1e-12][0], abs=1e-12)


@each(
    ("call", "match"),
    [
        (lambda a, b: metrics.squared_error(a, b), "shapes differ"),  # [4, 1] and [4] would broadcast
        (lambda a, b: metrics.gaussian_nll(a, a.square() + 1, b), "shapes differ"),
        (lambda a, b: metrics.coverage(make(a, torch.ones_like(a)), b), "shapes differ"),
        (lambda a, b: metrics.selective_risk(b, b[:3]), "shapes differ"),
        (lambda a, b: metrics.selective_risk(b + torch.nan, b), "NaN"),
        (lambda a, b: metrics.gaussian_nll(b, b, b), "must be positive"),
        (lambda a, b: metrics.coverage_curve(make(b, b + 1), b, levels=b + 1.2), "levels"),
    ],
)
def test_what_cannot_be_scored_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call(torch.zeros(4, 1), torch.zeros(4))


@each("bad", [torch.zeros(0), torch.zeros(3, 1), torch.tensor([1.0, torch.nan])])
@each("score", [metrics.auroc, metrics.fpr95])
def test_scores_that_are_not_one_number_a_row_are_refused(score, bad):
    with pytest.raises(ValueError, match="out_scores"):
        score(torch.zeros(3), bad)


def test_nll_is_that_of_uncertainty_toolbox(toolbox):
    mean, variance, target = rows()
    expected = toolbox.metrics_scoring_rule.nll_gaussian(*flat(mean, variance, target))
    assert float(metrics.gaussian_nll(mean, variance, target).mean()) == pytest.approx(expected, rel=1e-12)


@each(("mean", "variance"), [(0.0, torch.inf), (torch.nan, torch.inf), (torch.nan, 1.0)])
def test_a_row_without_a_finite_prediction_costs_infinitely_much(mean, variance):
    cost = metrics.gaussian_nll(torch.tensor([0.0, mean]), torch.tensor([1.0, variance]), torch.zeros(2))
    assert bool(torch.isfinite(cost[0]))
    assert cost[1] == torch.inf


def test_the_coverage_curve_and_calibration_error_are_those_of_uncertainty_toolbox(toolbox):
    mean, variance, target = rows()
    levels, observed = metrics.coverage_curve(make(mean, variance), target)
    theirs = toolbox.metrics_calibration
    promised, counted = theirs.get_proportion_lists_vectorized(*flat(mean, variance, target))
    np.testing.assert_allclose(levels.numpy(), promised, rtol=0, atol=1e-15)
    np.testing.assert_allclose(observed.numpy(), counted, rtol=0, atol=1e-15)
    expected = theirs.mean_absolute_calibration_error(*flat(mean, variance, target), vectorized=True)
    assert float(metrics.calibration_error(levels, observed)) == pytest.approx(expected, rel=1e-12)


@each("level", [0.1, 0.5, 0.95])
def test_with_an_excess_width_and_coverage_are_those_of_a_folded_gaussian(level):
    mean, variance, target = rows()
    excess = rows(seed=3)[1]
    p = make(mean, variance, excess)
    folded = scipy.stats.foldnorm((excess / variance).sqrt().numpy(), scale=variance.sqrt().numpy())
    lower, upper = p.interval(level)
    np.testing.assert_allclose(folded.cdf((upper - lower).numpy() / 2), level, rtol=GAUSSIAN)
    reached = folded.cdf((target - mean).abs().numpy())
    assert np.abs(reached - level).min() > GAUSSIAN  # or a row might change sides
    levels = torch.tensor([level], dtype=torch.float64)
    observed = metrics.coverage_curve(p, target, levels=levels)[1]
    assert 0 < float(observed) < 1
    assert float(observed) == float(metrics.coverage(p, target, level=level)) == (reached <= level).mean()


def test_a_row_without_a_mean_is_in_no_interval_not_even_in_the_widest():
    lost = make(torch.tensor([0.0, torch.nan]), torch.tensor([1.0, torch.inf]))
    _, observed = metrics.coverage_curve(lost, torch.zeros(2))
    assert float(observed[-1]) == 0.5


def test_selective_risk_is_scikit_learns_error_of_the_rows_that_are_kept():
    mean, variance, target = rows(60)
    risk = metrics.selective_risk(variance, metrics.squared_error(mean, target))
    order = np.argsort(variance.numpy())
    expected = [mean_squared_error(target.numpy()[order[:k]], mean.numpy()[order[:k]]) for k in range(1, 61)]
    np.testing.assert_allclose(risk.numpy(), expected, rtol=1e-10)


def test_rows_of_equal_score_are_taken_in_random_order_on_average():
    scores, losses = torch.tensor([2.0, 1.0, 2.0, 2.0]), torch.tensor([1.0, 5.0, 2.0, 6.0])
    orders = [[1, *tied] for tied in itertools.permutations([0, 2, 3])]
    curves = [np.cumsum(losses.numpy()[order]) / np.arange(1, 5) for order in orders]
    np.testing.assert_allclose(metrics.selective_risk(scores, losses).numpy(), np.mean(curves, 0), rtol=1e-12)
