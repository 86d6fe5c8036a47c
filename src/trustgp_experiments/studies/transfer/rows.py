"""Rows of the transfer study: one arm trains, all arms test, everything in the training rows' units."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...core.cases import IN_DOMAIN, Case, Pair
from ...datasets import Recording, Split, load, split_random, split_unseen, standardise

TRAINED = ("sarcos", "barrett", "kuka", "kuka_sim")
TESTED = (*TRAINED, "sarcos_sim", "barrett_sim")
SPLITS: dict[str, Callable[[Recording, int], Split]] = {
    "random": lambda recording, seed: split_random(len(recording.inputs), seed=seed),
    "unseen": lambda recording, seed: split_unseen(recording, seed=seed),
}
QUICK_ROWS = {"train": 400, "validation": 120, "test": 150}


def make_case(trained: str, split: str, *, seed: int, quick: bool) -> Case:
    """Load, split and scale.

    Args:
        trained: One of `TRAINED`.
        split: One of `SPLITS`.
        seed: Of the split.
        quick: Some hundred rows of each part, and the real arms only.
    """
    recording = load(trained)
    parts = SPLITS[split](recording, seed)
    scaling = standardise(recording.inputs[parts.train], recording.targets[parts.train])

    def rows(source: Recording, chosen: Tensor, part: str) -> Pair:
        if quick:
            chosen = chosen[torch.linspace(0, len(chosen) - 1, QUICK_ROWS[part]).long()]
        inputs, targets = source.inputs[chosen], source.targets[chosen]
        return scaling.inputs(inputs).float(), scaling.targets(targets).float()

    tests = {IN_DOMAIN: rows(recording, parts.test, "test")}
    for name in foreign(trained, quick):
        other = load(name)
        tests[name] = rows(other, torch.arange(len(other.inputs)), "test")
    return Case(rows(recording, parts.train, "train"), rows(recording, parts.validation, "validation"), tests)


def foreign(trained: str, quick: bool) -> list[str]:
    """The recordings that one trained on `trained` is tested on, zero shot."""
    return [name for name in (TRAINED[:2] if quick else TESTED) if name != trained]


def trainings(quick: bool) -> list[tuple[str, str]]:
    """The recordings that train, and how they are split."""
    return [(trained, split) for trained in (TRAINED[:2] if quick else TRAINED) for split in SPLITS]
