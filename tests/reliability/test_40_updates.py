"""Promise 40: an update without validation rows is as well calibrated as a refit."""

import pytest
import torch
from draws import Draws
from reliability.helpers import mlp, quiet_fit, train


def friedman(x):
    wave, bowl = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]), 20 * (x[:, 2] - 0.5) ** 2
    return ((wave + bowl + 10 * x[:, 3] + 5 * x[:, 4] - 14) / 5)[:, None]


def arm(x):
    """Two joints: products of sines, as torques are."""
    first, second = torch.sin(3 * (x[:, 0] + x[:, 1])), torch.cos(3 * x[:, 1])
    return torch.stack([first * x[:, 2] + second, second * x[:, 3] - first * x[:, 4]], dim=1)


def table(x):
    return 4 * (x[:, :1] - 0.5) * (x[:, 1:2] - 0.5) + x[:, 2:3]


CASES = {"friedman": (friedman, 0.2, 160, 120), "arm": (arm, 0.1, 200, 150), "table": (table, 0.2, 40, 80)}
NAMES = ["table", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("friedman", "arm"))]


def draw(make, noise, n, seed):
    draws = Draws(seed)
    x = draws.uniform(n, 5, dtype=torch.float32)
    targets = make(x)
    return x, targets + noise * draws.normal(targets.shape, dtype=torch.float32)


def coverage(model, x, y):
    low, high = model.predict(x).interval(0.95)
    return float(((low <= y) & (y <= high)).double().mean())


@pytest.mark.parametrize("name", NAMES)
def test_an_update_covers_new_rows_as_a_refit_does(name):
    """Eight fits: the network has seen the first rows only, so new rows show larger errors. 40 rows of the
    table are too few for a witness, 120 are not."""
    make, noise, n, new = CASES[name]
    gaps = []
    for seed in range(4):
        x, y = draw(make, noise, n + new, seed)
        network = train(mlp(5, 24, y.shape[1], dtype=torch.float32, seed=seed), x[:n], y[:n], 150)
        test = draw(make, noise, 2000, 100 + seed)
        model, refit = (quiet_fit(network, (x[:k], y[:k])) for k in (n, n + new))
        model.update((x[n:], y[n:]), progress=False)
        gaps.append(coverage(model, *test) - coverage(refit, *test))
    assert abs(sum(gaps) / len(gaps)) < 0.02
