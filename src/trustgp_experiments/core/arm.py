"""Rows of a 7-joint arm and the recipe of its network: for the studies of the method alone.

The real SARCOS recording where it is there, else the simulated arm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..datasets import Recording, Split, load, simulate, split_groups, split_random, standardise
from .recipes import NetworkRecipe, Pair, mlp_recipe

TRAJECTORIES, QUICK_TRAJECTORIES = 600, 60
STRIDE = 20  # of the simulated arm: every 20th row, since neighbours in time hardly differ
QUICK_ROWS = (800, 200, 200)  # train, validation, test
NETWORK = mlp_recipe([21, *[200] * 5, 7], epochs=100)
QUICK_NETWORK = mlp_recipe([21, 48, 48, 7], epochs=15)


@dataclass(frozen=True)
class ArmRows:
    """Standardised float32 rows: inputs [n, 21] and targets [n, 7].

    Args:
        train, validation, test: Of one recording.
        source: Its name.
        about: Which rows, which split, which statistics, in words.
    """

    train: Pair
    validation: Pair
    test: Pair
    source: str
    about: str

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each part."""
        return {name: len(getattr(self, name)[0]) for name in ("train", "validation", "test")}


def arm_rows(*, seed: int, quick: bool) -> ArmRows:
    """Rows of one arm, split and scaled.

    Args:
        seed: Of the split.
        quick: Some hundred rows only.
    """
    recording, split, about = _recording(seed, quick)
    if quick:
        parts = (part[_some(len(part), count)] for part, count in zip(_parts(split), QUICK_ROWS, strict=True))
        split = Split(*parts)
        about += f"; of these, at most {', '.join(map(str, QUICK_ROWS))} rows, evenly spaced"
    scaling = standardise(recording.inputs[split.train], recording.targets[split.train])

    def rows(part: Tensor) -> Pair:
        inputs, targets = recording.inputs[part], recording.targets[part]
        return scaling.inputs(inputs).float(), scaling.targets(targets).float()

    words = f"{about}. Inputs and torques are standardised by the training rows."
    return ArmRows(*map(rows, _parts(split)), source=recording.name, about=words)


def arm_recipe(quick: bool) -> NetworkRecipe:
    """How the network is made and trained."""
    return QUICK_NETWORK if quick else NETWORK


def _recording(seed: int, quick: bool) -> tuple[Recording, Split, str]:
    try:
        recording = load("sarcos")
    except FileNotFoundError:
        return _simulated(seed, quick)
    split = split_random(len(recording.inputs), test=0.2, validation=0.1, seed=seed)
    return recording, split, "Real SARCOS arm, duplicates dropped; 20 % test, 10 % validation, at random"


def _simulated(seed: int, quick: bool) -> tuple[Recording, Split, str]:
    trajectories = QUICK_TRAJECTORIES if quick else TRAJECTORIES
    recording = simulate(rows=500 * trajectories, seed=0)
    assert recording.groups is not None
    every = slice(None, None, STRIDE)
    thinned = Recording(recording.inputs[every], recording.targets[every], name=recording.name)
    split = split_groups(recording.groups[every], test_share=0.2, validation_share=0.1, seed=seed)
    about = (
        f"Simulated arm (the SARCOS recording is not here): {trajectories} slow trajectories, every "
        f"{STRIDE}th row; 20 % of the trajectories test, 10 % validate"
    )
    return thinned, split, about


def _parts(split: Split) -> tuple[Tensor, Tensor, Tensor]:
    return split.train, split.validation, split.test


def _some(n: int, count: int) -> Tensor:
    return torch.linspace(0, n - 1, min(n, count)).long()
