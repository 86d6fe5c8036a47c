"""Scores, against torch.distributions and scikit-learn."""

import dataclasses

import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from trustgp import metrics
from trustgp.prediction import Prediction


def prediction(mean: torch.Tensor, variance: torch.Tensor) -> Prediction:
    zeros, n = torch.zeros_like(mean), len(mean)
    return Prediction(
        mean=mean,
        epistemic=variance,
        aleatoric=zeros,
        excess=zeros,
        novelty=torch.zeros(n),
        expert=torch.zeros(n, dtype=torch.int64),
        valid=torch.ones(n, dtype=torch.bool),
    )


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_nll_is_that_of_the_normal_distribution():
    mean, target, variance = draw(50, 3), draw(50, 3, seed=1), draw(50, 3, seed=2).exp()
    expected = -torch.distributions.Normal(mean, variance.sqrt()).log_prob(target)
    torch.testing.assert_close(metrics.gaussian_nll(mean, variance, target), expected, rtol=1e-12, atol=1e-12)


def test_nll_of_an_infinite_variance_is_infinite_and_the_row_is_not_dropped():
    mean, variance = torch.zeros(2), torch.tensor([1.0, torch.inf])
    found = metrics.gaussian_nll(mean, variance, mean)
    assert torch.isfinite(found).tolist() == [True, False]
    assert found.mean() == torch.inf


def test_a_variance_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        metrics.gaussian_nll(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.zeros(2))


def test_mse_is_the_mean_over_rows_and_outputs():
    mean, target = draw(20, 2), draw(20, 2, seed=1)
    torch.testing.assert_close(metrics.mse(mean, target), torch.nn.functional.mse_loss(mean, target))


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_coverage_of_the_true_distribution_is_its_level(level):
    target = draw(40_000, 1)
    found = prediction(torch.zeros_like(target), torch.ones_like(target))
    # standard error of a share of 40,000 rows: at most 0.0025
    assert abs(float(metrics.coverage(found, target, level=level)) - level) < 0.01


def test_a_row_without_a_mean_is_not_covered():
    found = prediction(torch.tensor([0.0, torch.nan]), torch.tensor([1.0, torch.inf]))
    assert metrics.coverage(found, torch.zeros(2)) == 0.5


def test_sharpness_is_the_mean_width_of_the_interval():
    found = prediction(draw(10, 2), torch.full((10, 2), 4.0, dtype=torch.float64))
    assert float(metrics.sharpness(found, level=0.95)) == pytest.approx(2 * 1.959963985 * 2.0)


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_that_of_scikit_learn(ties):
    familiar, foreign = draw(300), draw(200, seed=1) + 0.7
    if ties:
        familiar, foreign = (2 * familiar).round(), (2 * foreign).round()
    labels = torch.cat([torch.zeros(300), torch.ones(200)])
    expected = roc_auc_score(labels.numpy(), torch.cat([familiar, foreign]).numpy())
    assert float(metrics.auroc(familiar, foreign)) == pytest.approx(expected, abs=1e-12)


def test_auroc_of_equal_scores_is_chance():
    assert metrics.auroc(torch.ones(5), torch.ones(7)) == 0.5
    assert metrics.auroc(torch.zeros(5), torch.ones(7)) == 1.0


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rows", [100, 293])
def test_fpr95_is_read_off_scikit_learns_roc_curve(ties, rows):
    familiar, foreign = draw(rows), draw(200, seed=1) + 1.5
    if ties:
        familiar, foreign = familiar.round(), foreign.round()
    # positive: familiar rows, which are accepted when their score is low
    labels = torch.cat([torch.ones(rows), torch.zeros(200)])
    false, true, _ = roc_curve(
        labels.numpy(), -torch.cat([familiar, foreign]).numpy(), drop_intermediate=False
    )
    assert float(metrics.fpr95(familiar, foreign)) == pytest.approx(false[true >= 0.95 - 1e-12][0], abs=1e-12)


@pytest.mark.parametrize(
    "score",
    [
        lambda a, b: metrics.mse(a, b),
        lambda a, b: metrics.gaussian_nll(a, a.square() + 1, b),
        lambda a, b: metrics.interval_coverage(a, a, b),
        lambda a, b: metrics.coverage(prediction(a, torch.ones_like(a)), b),
    ],
)
def test_shapes_that_would_broadcast_are_refused(score):
    with pytest.raises(ValueError, match="shapes differ"):
        score(torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize("bad", [torch.zeros(0), torch.zeros(3, 1), torch.tensor([1.0, torch.nan])])
@pytest.mark.parametrize("score", [metrics.auroc, metrics.fpr95])
def test_scores_that_are_not_one_number_a_row_are_refused(score, bad):
    with pytest.raises(ValueError, match="out_scores"):
        score(torch.zeros(3), bad)


def test_predictions_stay_as_they_are():
    found = prediction(draw(5, 1), torch.ones(5, 1, dtype=torch.float64))
    before = [value.clone() for value in vars(found).values() if isinstance(value, torch.Tensor)]
    metrics.coverage(found, torch.zeros(5, 1))
    after = [getattr(found, f.name) for f in dataclasses.fields(found)][: len(before)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
