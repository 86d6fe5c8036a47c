"""Rows of the simulated arm by the million, and the network that serves however many of them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..baselines import mlp, train
from ..datasets import Standardiser, simulate, standardise

HELD_ROWS = 20_000  # that validate, and as many that test
STRIDE = 10  # of these, since neighbours in time hardly differ
SCALING_ROWS = 100_000  # the first training rows, whose mean and spread scale everything
BATCH = 1024
STEPS = {"cuda": 10_000, "cpu": 1_500}
TRAINED_ROWS = 500_000  # at most, evenly spaced

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ScaleRows:
    """Standardised float32 rows: inputs [n, 21] and targets [n, 7].

    Args:
        train: As recorded, trajectory by trajectory; the first of them are the same however many there are.
        validation, test: Of other trajectories.
        seconds: That it took to make them.
    """

    train: Pair
    validation: Pair
    test: Pair
    seconds: float

    def first(self, n: int) -> Pair:
        """The first n training rows."""
        inputs, targets = self.train
        return inputs[:n], targets[:n]


def scale_rows(rows: int, *, seed: int, held: int = HELD_ROWS) -> ScaleRows:
    """Slow motions of the simulated arm.

    Args:
        rows: That train.
        seed: Of the trajectories and the noise.
        held: Rows that validate, and as many that test.
    """
    start = time.perf_counter()
    recording = simulate(rows=rows, seed=seed, blocks=True)
    first = slice(SCALING_ROWS)
    scaling = standardise(recording.inputs[first], recording.targets[first])
    apart = simulate(rows=2 * held * STRIDE, seed=seed + 2**31, blocks=True)  # a seed nobody else asks for
    half = held * STRIDE

    def scaled(part: slice, source=apart) -> Pair:
        return _scaled(scaling, source.inputs[part], source.targets[part])

    return ScaleRows(
        train=scaled(slice(None), recording),
        validation=scaled(slice(0, half, STRIDE)),
        test=scaled(slice(half, None, STRIDE)),
        seconds=time.perf_counter() - start,
    )


def _scaled(scaling: Standardiser, inputs: Tensor, targets: Tensor) -> Pair:
    return scaling.inputs(inputs).float(), scaling.targets(targets).float()


def scale_network(
    rows: Pair,
    *,
    seed: int,
    device: str,
    widths: tuple[int, ...] = (200,) * 5,
    steps: int | None = None,
    progress: bool = False,
) -> nn.Module:
    """A ReLU network, 21-5x200-7, trained for a fixed number of steps on evenly spaced rows.

    Args:
        rows: Inputs and targets.
        seed: Of the weights and the shuffling.
        device: Where to train.
        widths: Of the hidden layers.
        steps: Of batches of 1,024 rows; None: 10,000 on a GPU, 1,500 elsewhere.
        progress: Whether to show a bar in a terminal.
    """
    n = len(rows[0])
    chosen = torch.arange(min(n, TRAINED_ROWS)) * n // min(n, TRAINED_ROWS)
    steps = STEPS[torch.device(device).type] if steps is None else steps
    return train(
        mlp([21, *widths, 7], seed=seed),
        *(part[chosen] for part in rows),
        epochs=max(1, steps * BATCH // len(chosen)),
        batch_size=BATCH,
        learning_rate=3e-3,
        seed=seed,
        device=device,
        progress=progress,
    )
