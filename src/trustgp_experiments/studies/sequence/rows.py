"""Rows of the sequence study: windows of past states, split by time, in the training windows' units."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.cases import IN_DOMAIN, Case, Pair
from ...datasets import Recording, load, seams, simulate, split_unseen, standardise, window_ends, windows_at
from ..transfer.rows import QUICK_ROWS

LENGTH = 12  # states of a window
ARMS = ("sarcos", "barrett", "kuka")
MADE = ("slow", "fast")  # styles of the simulated arm, where a small run has no recordings
MADE_TRAJECTORIES = 15


def arms(quick: bool) -> tuple[str, ...]:
    """The arms that train, and test each other; small runs do without recordings where there are none."""
    if not quick:
        return ARMS
    try:
        return tuple(load(name).name for name in ARMS[:2])
    except FileNotFoundError:
        return MADE


def make_case(trained: str, *, seed: int, quick: bool) -> Case:
    """Load, split, scale, and cut windows: inputs [n, LENGTH, 21], targets [n, 7], float32.

    Args:
        trained: One of `arms`.
        seed: Of the choice of validation blocks.
        quick: Some hundred windows of each part.
    """
    recording = _recording(trained)
    split = split_unseen(recording, seed=seed)
    scaling = standardise(recording.inputs[split.train], recording.targets[split.train])

    def pairs(source: Recording, labels: Tensor, chosen: int, part: str) -> Pair:
        ends = window_ends(labels, seams(source), LENGTH)
        ends = ends[labels[ends] == chosen]
        if quick:
            ends = ends[torch.linspace(0, len(ends) - 1, QUICK_ROWS[part]).long()]
        inputs = windows_at(scaling.inputs(source.inputs).float(), ends, LENGTH)
        return inputs, scaling.targets(source.targets[ends]).float()

    labels = torch.zeros(len(recording.inputs), dtype=torch.int64)
    labels[split.validation], labels[split.test] = 1, 2
    tests = {IN_DOMAIN: pairs(recording, labels, 2, "test")}
    for name in arms(quick):
        if name != trained:
            other = _recording(name)
            tests[name] = pairs(other, torch.zeros(len(other.inputs), dtype=torch.int64), 0, "test")
    return Case(pairs(recording, labels, 0, "train"), pairs(recording, labels, 1, "validation"), tests)


def _recording(name: str) -> Recording:
    if name in MADE:
        return simulate(rows=500 * MADE_TRAJECTORIES, style=name, seed=0)
    return load(name)
