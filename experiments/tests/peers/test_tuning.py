"""Noise and scale from validation rows."""

import pytest
import torch
from draws import Draws
from scipy.optimize import minimize, minimize_scalar

from trustgp_experiments.peers.tuning import held_out_nll, likeliest_noise, likeliest_scale


def test_likeliest_noise_is_where_scipy_finds_it():
    draws, true = Draws(), torch.tensor([0.01, 0.3, 5.0], dtype=torch.float64)
    spread = draws.uniform(400, 3)
    error = draws.normal(400, 3) * (spread + true).sqrt()
    found = likeliest_noise(error, spread)
    for c in range(3):

        def loss(log_noise: float, c: int = c) -> float:
            total = spread[:, c] + torch.tensor(log_noise, dtype=torch.float64).exp()
            return float((total.log() + error[:, c].square() / total).mean())

        best = minimize_scalar(loss, bounds=(-15, 5), method="bounded", options={"xatol": 1e-8})
        # both know the flat minimum to about the root of the rounding error
        assert loss(float(found[c].log())) <= best.fun + 1e-9


def drawn(scale: float, noise: torch.Tensor, n: int = 3000):
    """Errors whose variance is c v + noise, and v."""
    draws = Draws(1)
    spread, error = draws.uniform(n, len(noise)).square(), draws.normal(n, len(noise))
    return error * (scale * spread + noise).sqrt(), spread


def test_likeliest_scale_is_where_scipy_finds_it():
    error, spread = drawn(7.0, torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64))
    scale, noise = likeliest_scale(error, spread)

    def loss(logs) -> float:
        free = torch.as_tensor(logs).exp()
        return held_out_nll(error, free[0] * spread + free[1:])

    best = minimize(loss, [0.0] * 4, method="Nelder-Mead", options={"fatol": 1e-12, "maxiter": 4000})
    found = torch.cat([torch.tensor([scale], dtype=torch.float64), noise]).log()
    assert loss(found) <= best.fun + 1e-9
    for unit in (1e-6, 1e6):  # of the spread
        other, same = likeliest_scale(error, unit * spread)
        assert other * unit == pytest.approx(scale, rel=1e-4)  # where L-BFGS stops in the flat minimum
        torch.testing.assert_close(same, noise, rtol=1e-4, atol=0)


def test_a_scale_for_no_variance_or_no_error_is_refused():
    error, spread = drawn(1.0, torch.ones(2, dtype=torch.float64), n=50)
    with pytest.raises(ValueError, match="nothing to scale"):
        likeliest_scale(error, torch.zeros_like(spread))
    with pytest.raises(ValueError, match="no error"):
        likeliest_scale(torch.zeros_like(error), spread)
