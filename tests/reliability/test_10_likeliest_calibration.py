"""Promise 10: the calibration is the likeliest one of left-out rows, found anew from their definition."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import dense_jacobian, dense_rows, leave_out
from reliability.helpers import mlp, quiet_fit, rows, train
from reliability.test_10_degenerate_data import calibrated, parameters
from scipy import optimize, stats
from torch import Tensor
from witness_reference import witness_left_out

import trustgp

FREE = ("fade", "onset", "excess", "level", "trust", "constant", "df")  # fitted as logarithms


def left_out(model, network, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of one expert that holds all rows, each left out by itself, [n, C] each or what broadcasts to it.

    A network that had not seen a row would be off by what the others say of its pseudo-target.
    """
    (mixture,), (expert,) = model.mixtures, model.mixtures[0].experts
    dense = dense_jacobian(network, x)[expert.rows]
    phi = dense_rows(dense, mixture.tangents.mix)
    theta = torch.cat([value.detach().flatten() for value in network.parameters()])
    with torch.no_grad():
        residual = (y - network(x))[expert.rows]
    targets = dense @ theta + residual
    solved = parameters(expert, phi, torch.ones_like(residual), targets, residual)
    gram, each = phi @ phi.T, torch.arange(len(phi))
    retrained, _ = leave_out(gram, targets, each, solved.tau)
    corrected, variances = leave_out(gram, residual, each, solved.tau)
    unit = (variances - solved.tau).clamp_min(0.0)
    parts = {
        "mean": residual - corrected,
        "raw": unit[:, None] * solved.scale + solved.noise,
        "novelty": (unit / gram.diagonal())[:, None].clamp_max(1.0).expand_as(residual),
        "log_kappa": solved.kappa.log(),
    }
    parts["residual"] = retrained + parts["mean"]
    parts["second"], parts["precision"] = torch.zeros_like(residual), torch.zeros_like(residual)
    if model.witness is not None:
        state = model.witness
        table = {name: getattr(state, name) for name in type(state).__dataclass_fields__}
        answers = witness_left_out(table, torch.arange(len(x)))
        for place, row in enumerate(expert.rows.tolist()):
            cell, mean, nu, target = answers[row]
            variance = torch.maximum(state.level[cell] * (nu + float(state.ratio)), state.floor)
            parts["second"][place] = parts["residual"][place] - torch.from_numpy(target - mean)
            parts["precision"][place] = (1 - nu) * min(1.0, float(state.reach) / max(nu, 1e-300)) / variance
    return parts


def loss(c, parts: dict[str, Tensor]) -> float:
    """Mean negative log likelihood, by scipy's densities."""
    scaled = calibrated(c, parts["raw"], parts["novelty"], parts["log_kappa"], torch.arange(len(c.level)))
    gain = c.trust * parts["precision"] * scaled
    expected = (c.weight * parts["mean"] + gain * parts["second"]) / (1 + gain)
    left = scaled * (1 + gain) / (1 + gain**2)
    error = (parts["residual"] - c.shift * expected).numpy()
    offset = (c.excess.sqrt() * (1 - c.shift) * expected).numpy()
    df, scale = c.df.numpy(), (left * (c.df - 2) / c.df).sqrt().numpy()
    usual = [stats.t.pdf(error, df, loc=way * offset, scale=scale) for way in (-1.0, 1.0)]
    far = stats.norm.pdf(error, scale=np.sqrt(c.spread.numpy() + left.numpy() + offset**2))
    share = float(c.share)
    return -float(np.log((1 - share) * 0.5 * (usual[0] + usual[1]) + share * far).mean())


@pytest.mark.parametrize("witness", [trustgp.Witness(), None], ids=["default", "no witness"])
@pytest.mark.parametrize("corrected", [False, True], ids=["own", "corrected"])
def test_no_other_calibration_is_likelier_for_rows_that_were_left_out(witness, corrected):
    x, y = rows(60)
    network = train(mlp(2, 5, 2), x, y)
    options = {"num_experts": 1, "tangents": trustgp.JacobianRows(), "outputs": "pseudo"}
    model = quiet_fit(network, (x, y), witness=witness, **options)
    assert (model.witness is None) == (witness is None)
    c, parts = model.calibrations[int(corrected)], left_out(model, network, x, y)
    # what is not fitted has a definition
    torch.testing.assert_close(c.spread, y.var(dim=0))
    assert float(c.share) == 0.5 / len(y)
    assert not bool(c.growth.any())
    ordered = parts["novelty"].flatten().sort().values
    assert float(c.reach) == pytest.approx(float(ordered[int(0.95 * len(ordered))]), rel=1e-6)
    torch.testing.assert_close(c.extent, parts["raw"].sort(dim=0).values[int(0.95 * len(y))])
    # all else is the likeliest, where each logarithm is pulled towards its start
    start = {"constant": parts["residual"].square().mean(dim=0), "df": 10.0}
    base = {name: torch.as_tensor(start.get(name, 1.0), dtype=torch.float64) for name in FREE}

    def shifted(name: str) -> Tensor:
        value, least = getattr(c, name), 2.2 if name == "df" else 0.0
        return ((value - least) / (base[name] - least)).log().flatten()

    logs = [shifted(name) for name in FREE]
    gamma = math.log(float(c.varying) / (1 - float(c.varying))) - math.log(0.95 / 0.05)
    free = torch.cat([*logs, torch.tensor([gamma, float(c.weight) - 1.0])]).numpy()
    sizes = [len(one) for one in logs]

    def objective(place: np.ndarray) -> float:
        logs = torch.from_numpy(place[:-2]).split(sizes)
        least = [2.2 if name == "df" else 0.0 for name in FREE]
        values = {
            name: (low + (base[name] - low) * part.exp()).reshape(getattr(c, name).shape)
            for name, low, part in zip(FREE, least, logs, strict=True)
        }
        varying = torch.tensor(1 / (1 + 0.05 / 0.95 * math.exp(-place[-2])), dtype=torch.float64)
        weight = torch.tensor(1 + place[-1], dtype=torch.float64)
        other = replace(c, **values, varying=varying, weight=weight)
        return loss(other, parts) + 0.5 * float(place @ place) / parts["residual"].numel()

    before = objective(free)
    assert objective(np.zeros_like(free)) > before  # it has moved to somewhere better
    best = optimize.minimize(objective, free, method="L-BFGS-B", options={"maxiter": 60})
    assert before - best.fun < 0.01, f"{before - best.fun:.3f} nats a row are to be had"
