"""Rows of the simulated arm by the million, and the network that serves however many of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from ...core.recipes import Pair, mlp_recipe
from ...datasets import Recording, simulate, standardise

HELD_ROWS = 20_000  # that validate, and as many that test
STRIDE = 10  # of these, since neighbours in time hardly differ
SCALING_ROWS = 100_000  # the first training rows, whose mean and spread scale everything
BATCH = 1024
STEPS = {"cuda": 10_000, "cpu": 1_500}
TRAINED_ROWS = 500_000  # at most, evenly spaced


@dataclass(frozen=True)
class ScaleRows:
    """Standardised float32 rows: inputs [n, 21] and targets [n, 7].

    Args:
        train: As recorded, trajectory by trajectory; the first of them are the same however many there are.
        validation, test: Of other trajectories.
    """

    train: Pair
    validation: Pair
    test: Pair

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
    recording = simulate(rows=rows, seed=seed, blocks=True)
    scaling = standardise(recording.inputs[:SCALING_ROWS], recording.targets[:SCALING_ROWS])
    apart = simulate(rows=2 * held * STRIDE, seed=seed + 2**31, blocks=True)  # a seed nobody else asks for
    half = held * STRIDE

    def scaled(source: Recording, part: slice) -> Pair:
        return scaling.inputs(source.inputs[part]).float(), scaling.targets(source.targets[part]).float()

    return ScaleRows(
        train=scaled(recording, slice(None)),
        validation=scaled(apart, slice(0, half, STRIDE)),
        test=scaled(apart, slice(half, None, STRIDE)),
    )


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
    recipe = mlp_recipe([21, *widths, 7], epochs=max(1, steps * BATCH // len(chosen)))
    given = rows[0][chosen], rows[1][chosen]
    return replace(recipe, batch_size=BATCH).train(given, seed=seed, device=device, progress=progress)
