"""Held-out quantiles by counting and against MAPIE; groups of points; tails of novelty measures."""

import math
import statistics

import numpy as np
import pytest
import torch
from draws import Draws, normal
from mapie.regression import SplitConformalRegressor
from reference import tail_exponent
from sklearn.base import BaseEstimator, RegressorMixin

from trustgp.math.quantiles import TailShares, held_out_quantile, merge_groups, needed_rows


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


@pytest.mark.parametrize("n", [1, 2, 7, 20, 500])
@pytest.mark.parametrize("ties", [False, True])
def test_the_exponent_is_minus_the_log_of_the_share_of_rows_that_are_more_novel(n, ties):
    rows = normal(n, 2, seed=n)
    rows = rows.round() if ties else rows * torch.tensor([1.0, 30.0])
    tails = TailShares.fit(rows)
    assert tails.table.shape == (3, 2, 6)
    values = torch.cat([rows, rows + 0.3, 3 * rows, torch.tensor([[-1e3, 1e3]]).double()])
    columns = list(zip(rows.T.tolist(), values.T.tolist(), strict=True))
    expected = [[tail_exponent(column, value) for value in at] for column, at in columns]
    means = [statistics.mean(pair) for pair in zip(*expected, strict=True)]
    assert tails(values).tolist() == pytest.approx(means, rel=1e-9, abs=1e-12)
    assert float(tails(rows.min(dim=0).values[None])) == 0.0


def test_of_an_exponential_measure_it_is_the_measure():
    rows, at = -Draws().uniform(20_000, 1).log(), [0.0, 0.1, 0.7, 1.4, 2.3, 3.0, 9.0]
    found = TailShares.fit(rows.expand(-1, 2))(torch.tensor(at, dtype=torch.float64)[:, None].expand(-1, 2))
    assert found.tolist() == pytest.approx(at, rel=0.1, abs=0.05)


def test_without_held_out_rows_it_grows_from_a_tenth_of_the_prior_and_new_clusters_are_beyond_all():
    measures = torch.tensor([[0.05, 1.0], [0.1, 9.0], [0.2, 0.0], [1.0, 1e9]], dtype=torch.float64)
    logs = measures.clamp_min(1e-300).log()
    expected = [3.5 * math.log(max(float(share), 0.1) / 0.1) for share in measures[:, 0]]
    assert TailShares.default()(logs).tolist() == pytest.approx(expected, abs=1e-12)
    assert bool((TailShares.novel()(logs) > 1e20).all())
