"""Held-out quantiles by counting, against MAPIE, and their promise by simulation; groups of points."""

import math

import numpy as np
import pytest
import torch
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin

from trustgp.math.calibration import held_out_quantile, merge_groups, needed_rows


@pytest.mark.parametrize(
    ("n", "level", "place"), [(9, 0.9, 8), (19, 0.95, 18), (99, 0.99, 98), (100, 0.9, 90), (10, 0.5, 5)]
)
def test_the_quantile_is_the_score_at_the_rank_that_is_due(n, level, place):
    scores = torch.randperm(n, generator=torch.Generator().manual_seed(0)).double()
    assert float(held_out_quantile(scores, level)) == place  # places count from 0


def test_with_too_few_rows_nothing_is_ruled_out():
    assert float(held_out_quantile(torch.zeros(8), 0.9)) == math.inf
    assert float(held_out_quantile(torch.zeros(9), 0.9)) == 0.0
    assert [needed_rows(level) for level in (0.5, 0.9, 0.95, 0.99, 0.999)] == [1, 9, 19, 99, 999]


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan])
def test_levels_beyond_0_and_1_are_refused(level):
    with pytest.raises(ValueError, match="strictly between"):
        held_out_quantile(torch.zeros(9), level)


class Given(RegressorMixin, BaseEstimator):
    """An estimator that answers with its input: MAPIE then sees the scores alone."""

    def fit(self, x, y):
        self.is_fitted_, self.n_features_in_ = True, x.shape[1]
        return self

    def predict(self, x):
        return x[:, 0]


@pytest.mark.parametrize("n", [37, 100, 200])
@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_limits_of_intervals_are_those_of_mapie(n, level):
    rng = np.random.default_rng(n)
    x, y = np.zeros((n, 1)), rng.standard_t(3, n)
    peer = SplitConformalRegressor(Given().fit(x, y), confidence_level=level).conformalize(x, y)
    _, interval = peer.predict_interval(np.zeros((1, 1)))
    ours = float(held_out_quantile(torch.from_numpy(np.abs(y)), level))
    assert interval[0, :, 0].tolist() == pytest.approx([-ours, ours], abs=1e-12)


def test_small_groups_join_the_nearest_until_all_are_large_enough():
    points = torch.tensor([[0.0], [1.0], [10.0], [11.0], [30.0]])
    weights = torch.tensor([5.0, 50.0, 20.0, 30.0, 100.0])
    assert merge_groups(points, weights, least=50).tolist() == [0, 0, 1, 1, 2]
    assert merge_groups(points, weights, least=1).tolist() == [0, 1, 2, 3, 4]
    assert merge_groups(points, weights, least=1000).tolist() == [0] * 5


def test_a_gate_without_components_has_one_group():
    assert merge_groups(torch.zeros(1, 0), torch.tensor([3.0]), least=100).tolist() == [0]
