"""Millions of rows of the simulated arm, the network that serves them all, and one measured fit."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from trustgp import metrics
from trustgp.api import fit
from trustgp.model import UncertaintyModel

from ...core.arm import ArmRows, scaled_rows
from ...core.recipes import Pair, mlp_recipe
from ...datasets import simulate, standardise
from ...peers import ConstantNoise

HELD_ROWS = 20_000  # that validate, and as many that test
STRIDE = 10  # of these, since neighbours in time hardly differ
SCALING_ROWS = 100_000  # the first training rows, whose mean and spread scale everything
BATCH = 1024
STEPS = {"cuda": 10_000, "cpu": 1_500}
TRAINED_ROWS = 500_000  # at most, evenly spaced
WARM_ROWS = 2_000  # of a small fit that loads libraries before anything is timed


def scale_rows(rows: int, *, seed: int, held: int = HELD_ROWS) -> ArmRows:
    """Slow motions, the first rows the same however many train; others validate and test."""
    recording = simulate(rows=rows, seed=seed, blocks=True)
    scaling = standardise(recording.inputs[:SCALING_ROWS], recording.targets[:SCALING_ROWS])
    half = held * STRIDE
    others = simulate(rows=2 * half, seed=seed + 2**31, blocks=True)  # a seed that nothing else uses
    validation, test = (scaled_rows(scaling, others, slice(at, at + half, STRIDE)) for at in (0, half))
    return ArmRows(scaled_rows(scaling, recording, slice(None)), validation, test)


def scale_network(
    rows: Pair, *, widths: tuple[int, ...] = (200,) * 5, steps: int | None = None, **place: Any
) -> nn.Module:
    """A ReLU network, 21-5x200-7, trained for a fixed number of steps on evenly spaced rows.

    Steps are of batches of 1,024 rows; None: 10,000 on a GPU, 1,500 elsewhere. `place` are seed, device and
    progress.
    """
    n = len(rows[0])
    chosen = torch.arange(min(n, TRAINED_ROWS)) * n // min(n, TRAINED_ROWS)
    steps = STEPS[torch.device(place["device"]).type] if steps is None else steps
    recipe = mlp_recipe([21, *widths, 7], epochs=max(1, steps * BATCH // len(chosen)))
    return replace(recipe, batch_size=BATCH).train((rows[0][chosen], rows[1][chosen]), **place)


def fit_first(network: nn.Module, rows: ArmRows, n: int, **options: Any) -> UncertaintyModel:
    """A model of the first n rows, without a witness; `options` are of `fit`."""
    return fit(network, rows.first(n), validation=rows.validation, witness=None, **options)


def likelihoods(model: UncertaintyModel, network: nn.Module, rows: ArmRows) -> dict[str, float]:
    """Mean negative log likelihood per torque of the test rows: of trustgp, and of network + noise."""
    peers: dict[str, Any] = {"trustgp": model, "network + noise": ConstantNoise.fit(network, rows.validation)}
    predictions = {name: peer.predict(rows.test[0]) for name, peer in peers.items()}
    return {
        name: float(metrics.gaussian_nll(p.mean, p.variance, rows.test[1].to(p.mean.device)).mean())
        for name, p in predictions.items()
    }


def held_rows(model: UncertaintyModel) -> list[int]:
    """Training rows that each expert holds, kernel after kernel."""
    return [len(expert.rows) for mixture in model.mixtures for expert in mixture.experts]
