"""Networks of the sequence study: a GRU over a window of states, torques from its last state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..baselines import train
from ..baselines.bundle import Bundle
from ..baselines.running import own_randomness
from .transfer_rows import Case

MEMBERS = 5


class TorqueGRU(nn.Module):
    """Windows [n, length, states] to torques [n, joints].

    Args:
        hidden: Units of the one recurrent layer.
        states, joints: Numbers of a state, and torques.
        seed: Of the initial weights; torch's global generators are left alone.
    """

    def __init__(self, hidden: int, *, states: int = 21, joints: int = 7, seed: int = 0) -> None:
        super().__init__()
        with own_randomness(seed, torch.device("cpu")):
            self.gru = nn.GRU(states, hidden, batch_first=True)
            self.last = nn.Linear(hidden, joints)

    def forward(self, window: Tensor) -> Tensor:
        """The torques at the end of each window."""
        return self.last(self.gru(window)[0][:, -1])


@dataclass(frozen=True)
class Recipe:
    """How every network is trained.

    Args:
        hidden: Units.
        epochs, batch_size, learning_rate: See `trustgp.baselines.train`.
    """

    hidden: int
    epochs: int
    batch_size: int = 128
    learning_rate: float = 5e-3

    def words(self) -> str:
        """For the protocol."""
        return (
            f"one GRU layer of {self.hidden} units and a linear one, AdamW, one cycle to "
            f"{self.learning_rate:g}, {self.epochs} epochs of batches of {self.batch_size}"
        )


FULL, QUICK = Recipe(64, 40), Recipe(8, 2)


def train_bundle(case: Case, recipe: Recipe, *, seed: int, device: str, progress: bool) -> Bundle:
    """Five networks on one training set.

    Args:
        case: Its windows.
        recipe: How.
        seed: Of this repetition; members take 100 seed + 0, 1, 2, ...
        device: Where to train.
        progress: Whether to show a bar in a terminal.
    """
    inputs, targets = (part.to(device) for part in case.train)
    networks = [
        train(
            TorqueGRU(recipe.hidden, seed=number),
            inputs,
            targets,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            seed=number,
            device=device,
            record=False,  # a fused recurrent layer is one long kernel: there is little to gain
            progress=progress,
        )
        for number in (100 * seed + member for member in range(MEMBERS))
    ]
    return Bundle(
        network=networks[0],
        members=networks[1:],
        dropout_network=None,
        train=(inputs, targets),
        validation=case.validation,
        seed=seed,
        device=device,
    )
