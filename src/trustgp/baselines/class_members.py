"""Peers of classification that ask several networks: a deep ensemble, and a network that drops units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..data import Inputs
from .class_answer import ClassAnswer, answer_members
from .dropout import with_dropout_on
from .running import own_randomness, run_network


@dataclass(frozen=True)
class EnsembleClassifier:
    """Networks whose probabilities are averaged. Made by `fit`.

    Args:
        networks: Trained, in eval mode.
    """

    networks: tuple[nn.Module, ...]

    @classmethod
    def fit(cls, networks: Sequence[nn.Module]) -> EnsembleClassifier:
        """There is nothing to fit.

        Args:
            networks: At least two, trained alike from different starts, in eval mode; logits [n, C].
        """
        if len(networks) < 2:
            raise ValueError(f"{len(networks)} networks; an ensemble needs at least 2.")
        return cls(tuple(networks))

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """The mean of the members' probabilities.

        Args:
            inputs: A tensor, tuple or dict, as the networks take them.
        """
        return answer_members(inputs, torch.stack([run_network(one, inputs) for one in self.networks]))


@dataclass(frozen=True)
class DropoutClassifier:
    """A dropout network, asked several times under different masks. Made by `fit`.

    Args:
        network: A private copy: its dropout layers in training mode, everything else in eval mode.
        samples: How often it is asked.
        seed: Of the masks; the same rows in the same order get the same masks.
    """

    network: nn.Module
    samples: int
    seed: int

    @classmethod
    def fit(cls, network: nn.Module, *, samples: int = 20, seed: int = 0) -> DropoutClassifier:
        """There is nothing to fit but the network itself.

        Args:
            network: Trained with dropout, for example `cnn(dropout=0.2)`.
            samples: At least 2.
            seed: Of the masks.
        """
        if samples < 2:
            raise ValueError(f"samples={samples}; at least 2 are needed to see a spread.")
        return cls(with_dropout_on(network), samples, seed)

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """The mean of the probabilities under all masks; no global generator moves.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        with own_randomness(self.seed, next(self.network.parameters()).device):
            logits = [run_network(self.network, inputs) for _ in range(self.samples)]
        return answer_members(inputs, torch.stack(logits))
