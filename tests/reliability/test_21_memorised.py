"""Promise 21: no validation rows, and a network that overfits its independent rows."""

import re
import warnings
from functools import cache

import pytest
import torch
from draws import Draws
from reliability.helpers import quiet_fit
from tiny_networks import adam
from torch import nn

import trustgp

CASES = [(n, noise) for noise in (0.1, 0.3) for n in (60, 100, 150, 300)]

Pair = tuple[torch.Tensor, torch.Tensor]


def rows_of(seed: int, n: int, noise: float) -> tuple[Pair, Pair]:
    """To train on, and new ones."""
    draws, single = Draws(100 + seed), {"dtype": torch.float32}
    mix, phase = draws.normal(3, 2, **single), 6 * draws.uniform(2, **single)
    x = 2 * draws.uniform(n + 500, 3, **single) - 1
    y = torch.sin(2 * x @ mix + phase)
    y = y + noise * draws.normal(y.shape, **single)
    return (x[:n], y[:n]), (x[n:], y[n:])


def trained(seed: int, train: Pair, width: int = 64, steps: int = 800) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)]
        network = nn.Sequential(*layers)
    return adam(network, lambda net: (net(train[0]) - train[1]).square().mean(), steps, 1e-3)


@cache
def learnt(seed: int) -> nn.Module:
    """The network of a case, for all tests."""
    return trained(seed, rows_of(seed, *CASES[seed])[0])


@torch.no_grad()
def squared_error(network: nn.Module, rows: Pair) -> float:
    return float((rows[1] - network(rows[0])).square().mean())


def covered(seed: int) -> tuple[float, float]:
    """Share of new rows inside the 95 % interval, and how much smaller residuals are than errors."""
    train, new = rows_of(seed, *CASES[seed])
    network = learnt(seed)
    lower, upper = quiet_fit(network, train).predict(new[0]).interval(0.95)
    inside = (lower <= new[1]) & (new[1] <= upper)
    return float(inside.double().mean()), squared_error(network, train) / squared_error(network, new)


def overfit_warnings(network: nn.Module, train: Pair, **options) -> list[str]:
    """Those of a fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trustgp.fit(network, train, progress=False, **options)
    return [str(one.message) for one in caught if "overfits" in str(one.message)]


@pytest.mark.parametrize("seeds", [(0, 1, 4, 6), pytest.param(range(8), marks=pytest.mark.nightly)])
def test_the_interval_covers_new_rows_of_networks_that_overfit(seeds):
    shares, ratios = zip(*map(covered, seeds), strict=True)
    assert max(ratios) < 0.8, "they do not overfit"
    assert sum(shares) / len(shares) >= 0.88
    assert min(shares) >= 0.80


@pytest.mark.parametrize("seed", [0, 4])
def test_fit_warns_of_overfitting_with_the_ratio_of_the_errors(seed):
    train, new = rows_of(seed, *CASES[seed])
    network = learnt(seed)
    (message,) = overfit_warnings(network, train)
    times = float(re.search(r"about (\d+)x", message).group(1))
    actual = (squared_error(network, new) / squared_error(network, train)) ** 0.5
    assert 0.5 * actual <= times <= 2.5 * actual
    assert not overfit_warnings(network, train, validation=new)


def test_a_network_that_does_not_overfit_has_no_warning_and_rows_that_are_met_exactly_have_one():
    train, _ = rows_of(3, *CASES[3])
    assert not overfit_warnings(trained(3, train, width=16, steps=200), train)
    inputs, network = rows_of(0, 60, 0.1)[0][0], learnt(0)
    (message,) = overfit_warnings(network, (inputs, network(inputs).detach()))
    assert "about 1000x" in message
