"""Promise 21: no validation rows, and a network that has learnt its independent rows by heart."""

from __future__ import annotations

import torch
from reliability.helpers import quiet_fit
from torch import nn

CASES = [(n, noise) for noise in (0.1, 0.3) for n in (60, 100, 150, 300)]


def covered(seed: int, n: int, noise: float) -> tuple[float, float]:
    """Share of new rows inside the 95 % interval, and how much smaller residuals are than errors."""
    generator = torch.Generator().manual_seed(100 + seed)
    mix, phase = torch.randn(3, 2, generator=generator), 6 * torch.rand(2, generator=generator)
    x = 2 * torch.rand(n + 500, 3, generator=generator) - 1
    y = torch.sin(2 * x @ mix + phase)
    y = y + noise * torch.randn(y.shape, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)]
        network = nn.Sequential(*layers)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(800):
        optimiser.zero_grad()
        (network(x[:n]) - y[:n]).square().mean().backward()
        optimiser.step()
    lower, upper = quiet_fit(network, (x[:n], y[:n])).predict(x[n:]).interval(0.95)
    with torch.no_grad():
        error = (y - network(x)).square()
    inside = (lower <= y[n:]) & (y[n:] <= upper)
    return float(inside.double().mean()), float(error[:n].mean() / error[n:].mean())


def test_the_interval_covers_new_rows_of_networks_that_have_learnt_theirs_by_heart():
    found = [covered(seed, *case) for seed, case in enumerate(CASES)]
    shares = [share for share, _ in found]
    assert all(ratio < 0.8 for _, ratio in found), "they have not learnt them by heart"
    assert sum(shares) / len(shares) >= 0.88
    assert min(shares) >= 0.80
