"""Promise 10: the calibration is the likeliest one of left-out rows, found anew from their definition."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from reference import dense_jacobian, dense_rows, leave_out
from reliability.helpers import mlp, quiet_fit, rows, train
from reliability.test_10_degenerate_data import calibrated, parameters, tail_exponents
from scipy import optimize, stats
from torch import Tensor
from witness_reference import nearby, witness_left_out

import trustgp

FREE = ("weights", "excess", "trust", "df")  # fitted as logarithms


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
    parts["target"], parts["log_noise"] = y[expert.rows], torch.zeros_like(residual)
    parts["log_leverage"] = torch.zeros_like(residual)
    parts["second"], parts["precision"] = torch.zeros_like(residual), torch.zeros_like(residual)
    own = parts["novelty"].mean(dim=1).clamp_min(1e-6).log(), parts["raw"].log().mean(dim=1)
    parts["measures"] = torch.stack(own, dim=1)
    if model.witness is not None:
        state = model.witness
        table = {name: getattr(state, name) for name in type(state).__dataclass_fields__}
        answers = witness_left_out(table, torch.arange(len(x)))
        for place, row in enumerate(expert.rows.tolist()):
            cell, mean, nu, target = answers[row]
            variance = torch.maximum(state.level[cell] * (nu + float(state.ratio)), state.floor)
            parts["second"][place] = parts["residual"][place] - torch.from_numpy(target - mean)
            parts["precision"][place] = (1 - nu) * min(1.0, float(state.reach) / max(nu, 1e-300)) / variance
            at = state.rows.tolist().index(row)  # one cell holds all rows
            others = np.array([i for i in range(len(x)) if i != at])
            arrays = {k: v.numpy() for k, v in table.items()}
            distance, noise = nearby(arrays, state.points[at].numpy(), others)
            parts["measures"][place] = torch.tensor([max(nu, 1e-12), distance]).log()
            parts["log_noise"][place] = torch.from_numpy(noise).log()
    return parts


def loss(c, parts: dict[str, Tensor]) -> float:
    """Mean negative log likelihood, by scipy's densities."""
    logs, every = {name: parts[name] for name in ("log_noise", "log_leverage")}, torch.arange(len(c.bias))
    scaled = calibrated(c, parts["raw"], parts["log_kappa"], every, parts["measures"], **logs)
    gain = c.trust * parts["precision"] * scaled
    expected = (c.weight * parts["mean"] + gain * parts["second"]) / (1 + gain)
    left = scaled * (1 + gain) / (1 + gain**2)
    error = (parts["residual"] - c.shift * expected).numpy()
    offset = (c.excess.sqrt() * (1 - c.shift) * expected).numpy()
    df, scale = c.df.numpy(), (left * (c.df - 2) / c.df).sqrt().numpy()
    usual = [stats.t.pdf(error, df, loc=way * offset, scale=scale) for way in (-1.0, 1.0)]
    far = stats.norm.pdf(error, scale=np.sqrt(c.spread.numpy() + left.numpy() + offset**2))
    share = float(c.share)
    density = (1 - share) * 0.5 * (usual[0] + usual[1]) + share * far
    novel = 1 - 1 / (1 + 0.005 * tail_exponents(c.tails, parts["measures"]).exp())
    vague = (c.vague * novel)[:, None].numpy()
    marginal = stats.t.pdf(parts["target"] - c.centre, 3, scale=c.spread.sqrt())
    return -float(np.log((1 - vague) * density + vague * marginal).mean())


@cache
def fitted(witness: trustgp.Witness | None):
    """A model, what it says of its left-out rows, and their targets."""
    x, y = rows(60)
    network = train(mlp(2, 5, 2), x, y)
    options = {"num_experts": 1, "tangents": trustgp.JacobianRows(), "outputs": "pseudo"}
    model = quiet_fit(network, (x, y), witness=witness, **options)
    return model, left_out(model, network, x, y), y


@pytest.mark.parametrize("witness", [trustgp.Witness(), None], ids=["default", "no witness"])
@pytest.mark.parametrize("corrected", [False, True], ids=["own", "corrected"])
def test_no_other_calibration_is_likelier_for_rows_that_were_left_out(witness, corrected):
    model, parts, y = fitted(witness)
    assert (model.witness is None) == (witness is None)
    c = model.calibrations[2 + int(corrected)]
    # what is not fitted has a definition
    torch.testing.assert_close(c.spread, y.var(dim=0))
    assert float(c.share) == 0.5 / len(y)
    assert not bool(c.growth.any())
    torch.testing.assert_close(c.centre, y.mean(dim=0))
    assert float(c.vague) == 0.75 * corrected
    ordered = parts["measures"].sort(dim=0).values
    torch.testing.assert_close(c.tails[0, :, -1], ordered[int(0.95 * len(y))], rtol=1e-5, atol=1e-6)
    # all else is the likeliest, where each logarithm is pulled towards its start, statistics about their mean
    weights = torch.tensor([0.95, 0.0, 0.1 * (witness is not None), 0.0]).double()
    base = {"weights": weights, "df": torch.tensor(10.0).double()}
    experts = parts["raw"].log() + parts["log_kappa"]
    centre = torch.stack([experts, parts["log_leverage"], parts["log_noise"]]).mean(dim=1)  # [3, C]

    def level(weights: Tensor, bias: Tensor) -> Tensor:
        return bias + weights[:3] @ centre

    def shifted(name: str) -> Tensor:
        start, least = base.get(name, torch.ones(()).double()), 2.2 if name == "df" else 0.0
        ratio = (getattr(c, name) - least) / (start - least).clamp_min(1e-9)
        return torch.where(start > 0, ratio.log(), 0.0).flatten()

    logs = [shifted(name) for name in FREE]
    moved = level(c.weights, c.bias) - centre[0]  # at the start the experts' own
    free = torch.cat([*logs, moved, c.weight[None] - 1.0]).numpy()
    sizes = [*(len(one) for one in logs), len(c.bias), 1]

    def objective(place: np.ndarray) -> float:
        *logs, bias, weight = torch.from_numpy(place).split(sizes)
        values = {}
        for name, part in zip(FREE, logs, strict=True):
            start, least = base.get(name, torch.ones(()).double()), 2.2 if name == "df" else 0.0
            values[name] = (least + (start - least) * part.exp()).reshape(getattr(c, name).shape)
        values["weights"] = weights * logs[0].exp()
        values["bias"] = centre[0] + bias - level(values["weights"], torch.zeros(2).double())
        other = replace(c, **values, weight=1 + weight[0])
        return loss(other, parts) + 0.5 * float(place @ place) / parts["residual"].numel()

    before = objective(free)
    assert objective(np.zeros_like(free)) > before  # it has moved to somewhere better
    best = optimize.minimize(objective, free, method="L-BFGS-B", options={"maxiter": 60})
    assert before - best.fun < 0.01, f"{before - best.fun:.3f} nats a row are to be had"
