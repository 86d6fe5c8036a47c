"""Promise 7: scikit-learn's own estimator checks pass through a thin wrapper."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

import trustgp


class TrustGPRegressor(RegressorMixin, BaseEstimator):
    """A tiny network trained in `fit`, and trustgp's error bar on top of it.

    Args:
        width: Of the hidden layer.
        steps: Of LBFGS.
        num_experts: None: about 1,000 rows each.
        seed: Of the weights and of the error bar.
    """

    def __init__(self, width: int = 8, steps: int = 20, num_experts: int | None = None, seed: int = 0):
        self.width = width
        self.steps = steps
        self.num_experts = num_experts
        self.seed = seed

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X, y):
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        self.flat_ = y.ndim == 1
        targets = y.reshape(len(y), -1).astype(np.float64)
        self.shift_, self.spread_ = X.mean(0), _spread(X)
        self.level_, self.size_ = targets.mean(0), _spread(targets)
        inputs = torch.from_numpy((X - self.shift_) / self.spread_)
        scaled = torch.from_numpy((targets - self.level_) / self.size_)
        network = self._train(inputs, scaled)
        self.model_ = trustgp.fit(
            network, (inputs, scaled), num_experts=self.num_experts, seed=self.seed, progress=False
        )
        return self

    def predict(self, X, return_std: bool = False):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        prediction = self.model_.predict(torch.from_numpy((X - self.shift_) / self.spread_))
        mean = self._like_targets(prediction.mean.numpy() * self.size_ + self.level_)
        if not return_std:
            return mean
        return mean, self._like_targets(prediction.std.numpy() * self.size_)

    def _like_targets(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self.flat_ else values

    def _train(self, inputs: torch.Tensor, targets: torch.Tensor) -> nn.Module:
        network = nn.Sequential(
            nn.Linear(inputs.shape[1], self.width), nn.Tanh(), nn.Linear(self.width, targets.shape[1])
        ).double()
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
                )
        optimiser = torch.optim.LBFGS(
            network.parameters(), max_iter=self.steps, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            optimiser.zero_grad()
            value = (network(inputs) - targets).square().mean()
            value.backward()
            return value

        optimiser.step(loss)
        return network.eval()


def _spread(values: np.ndarray) -> np.ndarray:
    spread = values.std(0)
    return np.where(spread > 0, spread, 1.0)


def expected_failures(estimator) -> dict[str, str]:
    """Checks that do not apply: none."""
    return {}


@parametrize_with_checks([TrustGPRegressor()], expected_failed_checks=expected_failures)
@pytest.mark.filterwarnings("ignore:the rows look like a time series")
def test_estimator_check(estimator, check):
    check(estimator)


def test_the_wrapper_gives_an_error_bar():
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 2, (80, 2))
    y = np.sin(X[:, 0]) + 0.1 * generator.normal(size=80)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mean, std = TrustGPRegressor(num_experts=2).fit(X, y).predict(X, return_std=True)
    assert mean.shape == std.shape == (80,)
    assert (std > 0).all()
    assert np.abs(mean - y).mean() < 0.3
