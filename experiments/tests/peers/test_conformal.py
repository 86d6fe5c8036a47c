"""Intervals without a likelihood."""

import pytest
import torch
from draws import Draws, normal
from torch import nn

from trustgp_experiments.peers import Bundle, mlp, train
from trustgp_experiments.peers.conformal import SplitConformal, pinball

HOW = {"epochs": 30, "batch_size": 64, "learning_rate": 0.01}


def rows(n: int = 1200):
    draws = Draws()
    inputs = 2 * draws.uniform(n, 2, dtype=torch.float32) - 1
    size = 0.05 + inputs[:, :1].clamp_min(0.0)
    return inputs, inputs[:, 1:].sin() + size * draws.normal(n, 2, dtype=torch.float32)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    inputs, targets = rows()
    first, held = (inputs[:600], targets[:600]), (inputs[600:800], targets[600:800])
    network = train(mlp([2, 16, 2], activation=nn.Tanh), *first, **HOW)
    return Bundle(network, [], None, first, held, training=HOW)


def test_the_width_is_the_quantile_of_the_errors_with_one_row_more(bundle):
    peer = SplitConformal.fit(bundle.network, bundle.validation)
    inputs, targets = bundle.validation
    with torch.no_grad():
        error = (targets - bundle.network(inputs)).abs().double().sort(dim=0).values
    torch.testing.assert_close(peer.half, error[190])  # the 191st: 201 * 0.95, rounded up
    said = peer.predict(inputs)
    assert torch.equal(said.mean, bundle.network(inputs))
    torch.testing.assert_close(said.std[0], peer.half.float())


def test_pinball_is_least_at_the_quantiles():
    targets = normal(100_001, 1)
    ends = torch.quantile(targets[:, 0], torch.tensor([0.025, 0.975], dtype=torch.float64))

    def loss(*moved: float) -> float:
        outputs = (ends + torch.tensor(moved, dtype=torch.float64)).expand(len(targets), 2)
        return float(pinball(outputs, targets, level=0.95))

    for way in ((0.05, 0.0), (-0.05, 0.0), (0.0, 0.05), (0.0, -0.05)):
        assert loss(*way) > loss(0.0, 0.0)
    below, above = targets[:, 0] - ends[0], targets[:, 0] - ends[1]
    by_hand = torch.where(below > 0, 0.025 * below, -0.975 * below)
    by_hand += torch.where(above > 0, 0.975 * above, -0.025 * above)
    assert loss(0.0, 0.0) == pytest.approx(float(by_hand.mean()), rel=1e-12)


def test_there_is_no_likelihood_and_other_levels_too_few_rows_and_broken_rows_are_not_answered(bundle):
    inputs = bundle.validation[0].clone()
    inputs[0, 0] = torch.nan
    said = SplitConformal.fit(bundle.network, bundle.validation).predict(inputs)
    assert said.variance is said.log_prob is said.crps is None
    assert said.valid.tolist() == [False] + [True] * 199
    assert torch.isinf(said.std[0]).all()
    with pytest.raises(ValueError, match="alone"):
        said.interval(0.9)
    with pytest.raises(ValueError, match="at least 19"):
        SplitConformal.fit(bundle.network, tuple(each[:18] for each in bundle.validation))
