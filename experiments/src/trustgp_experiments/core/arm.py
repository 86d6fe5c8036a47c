"""Rows of a 7-joint arm (SARCOS, else simulated) and its network, for studies without peers."""

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from ..datasets import Recording, Split, load, simulate, split_groups, split_random, standardise
from ..datasets.splits import Standardiser
from .recipes import NetworkRecipe, Pair, mlp_recipe

TRAJECTORIES, QUICK_TRAJECTORIES = 600, 40
STRIDE = 20  # of the simulated arm: every 20th row, since neighbours in time hardly differ
QUICK_ROWS = (300, 100, 100)  # train, validation, test
NETWORK = mlp_recipe([21, *[200] * 5, 7], epochs=100)
QUICK_NETWORK = mlp_recipe([21, 16, 16, 7], epochs=15)


@dataclass(frozen=True)
class ArmRows:
    """Standardised float32 rows of a recording, inputs [n, 21] and targets [n, 7], with the
    recording's name and a description of rows, split and scaling."""

    train: Pair
    validation: Pair
    test: Pair
    source: str = ""
    about: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(getattr(self, name)[0]) for name in ("train", "validation", "test")}

    def first(self, n: int) -> Pair:
        return self.train[0][:n], self.train[1][:n]


def arm_rows(*, seed: int, quick: bool) -> ArmRows:
    """Rows of one arm, split by the seed and scaled; `quick` keeps a few hundred."""
    recording, split, about = _recording(seed, quick)
    parts = [split.train, split.validation, split.test]
    if quick:
        parts = [part[evenly(len(part), count)] for part, count in zip(parts, QUICK_ROWS, strict=True)]
        about += f"; of these, at most {', '.join(map(str, QUICK_ROWS))} rows, evenly spaced"
    scaling = standardise(recording.inputs[parts[0]], recording.targets[parts[0]])
    about += ". Inputs and torques are standardised by the training rows."
    train, validation, test = (scaled_rows(scaling, recording, part) for part in parts)
    return ArmRows(train, validation, test, recording.name, about)


def arm_recipe(quick: bool) -> NetworkRecipe:
    """Architecture and training of the network."""
    return QUICK_NETWORK if quick else NETWORK


def scaled_rows(scaling: Standardiser, source: Recording, part: Tensor | slice) -> Pair:
    """Rows of a recording as float32, scaled like the training rows."""
    return scaling.inputs(source.inputs[part]).float(), scaling.targets(source.targets[part]).float()


def evenly(n: int, count: int) -> Tensor:
    """Indices of at most `count` of n rows, evenly spaced."""
    return torch.linspace(0, n - 1, min(n, count)).long()


def _recording(seed: int, quick: bool) -> tuple[Recording, Split, str]:
    with suppress(FileNotFoundError):
        recording = load("sarcos")
        split = split_random(len(recording.inputs), test=0.2, validation=0.1, seed=seed)
        return recording, split, "Real SARCOS arm, duplicates dropped; 20 % test, 10 % validation, at random"
    trajectories, every = QUICK_TRAJECTORIES if quick else TRAJECTORIES, slice(None, None, STRIDE)
    recording = simulate(rows=500 * trajectories, seed=0)
    assert recording.groups is not None
    thinned = Recording(recording.inputs[every], recording.targets[every], name=recording.name)
    split = split_groups(recording.groups[every], test_share=0.2, validation_share=0.1, seed=seed)
    about = f"Simulated arm (the SARCOS recording is not here): {trajectories} slow trajectories, every "
    return thinned, split, f"{about}{STRIDE}th row; 20 % of the trajectories test, 10 % validate"
