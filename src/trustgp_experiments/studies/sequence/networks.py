"""Networks of the sequence study: a GRU over a window of states, torques from its last state."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from ...core.recipes import NetworkRecipe
from ...training.inference import own_randomness


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


def _recipe(hidden: int, epochs: int) -> NetworkRecipe:
    shape = f"one GRU layer of {hidden} units and a linear one"
    # nothing is recorded: a fused recurrent layer is one long kernel, there is little to gain
    return NetworkRecipe(partial(TorqueGRU, hidden), shape, epochs, learning_rate=5e-3, record=False)


FULL, QUICK = _recipe(64, 40), _recipe(8, 2)
