"""Scores of probabilities, against loops and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from draws import Draws
from many import each
from metrics.by_hand import calibration_error
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import log_loss

from trustgp import metrics


def drawn(n: int = 500, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws = Draws(seed)
    return (2 * draws.normal(n, classes)).softmax(dim=1), draws.whole(0, classes, n)


@each("classes", [2, 4, 30])
def test_scores_are_those_of_scikit_learn_and_scipy(classes):
    p, labels = drawn(classes=classes)
    ours = metrics.class_nll(p, labels)
    assert ours.shape == (500,)
    assert float(ours.mean()) == pytest.approx(log_loss(labels, p, labels=range(classes)), abs=1e-10)
    np.testing.assert_allclose(metrics.entropy(p), scipy_entropy(p.numpy(), axis=1), atol=1e-12)
    assert metrics.entropy(torch.tensor([[0.0, 1.0]])).tolist() == [0.0]
    onehot = torch.nn.functional.one_hot(labels, classes).double()
    torch.testing.assert_close(metrics.brier(p, labels), (p - onehot).square().sum(1), rtol=0, atol=1e-12)


@each("bins", [1, 10, 15])
def test_calibration_error_is_that_of_a_loop_over_bins(bins):
    p, labels = drawn(n=2000)
    ours = metrics.expected_calibration_error(p, labels, bins=bins)
    assert float(ours) == pytest.approx(calibration_error(p, labels, bins), rel=1e-10)


def test_a_row_without_an_answer_costs_as_much_as_a_sure_mistake():
    p = torch.tensor([[0.5, 0.5], [math.nan, math.nan]])
    labels = torch.tensor([0, 0])
    assert metrics.class_nll(p, labels)[1] == math.inf
    assert metrics.brier(p, labels)[1] == 2.0
    assert float(metrics.expected_calibration_error(p, labels)) == pytest.approx(0.75)


@each(
    ("p", "labels", "says"),
    [
        (torch.rand(3), torch.zeros(3, dtype=torch.int64), "shape"),
        (torch.ones(3, 2) / 2, torch.zeros(2, dtype=torch.int64), "shape"),
        (torch.ones(0, 2), torch.zeros(0, dtype=torch.int64), "at least one row"),
        (torch.ones(3, 2) / 2, torch.zeros(3), "class numbers"),
        (torch.ones(3, 2) / 2, torch.tensor([0, 1, 2]), "0..1 are allowed"),
        (torch.randn(3, 2) + 3, torch.tensor([0, 1, 1]), "logits"),
    ],
)
def test_what_cannot_be_scored_is_refused(p, labels, says):
    with pytest.raises(ValueError, match=says):
        metrics.class_nll(p, labels)
