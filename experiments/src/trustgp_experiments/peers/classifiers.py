"""Class probabilities of one network, of several, or of one under several dropout masks.

Each method has one temperature, fitted to the validation rows by maximum likelihood, which divides the logits
before anything is averaged. The plain softmax uses 1: the network as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.trees import Inputs

from ..training.train import run_network
from .members import at_least_two, masked_outputs, with_dropout_on
from .tuning import ClassAnswer, answer_classes, answer_members, likeliest_temperature, read_labels


@dataclass(frozen=True)
class SoftmaxClassifier:
    """A network whose logits are divided by a temperature. Made by `fit`."""

    network: nn.Module
    temperature: float = 1.0  # T in softmax(z / T); 1: the network as it is

    @classmethod
    def fit(cls, network: nn.Module, validation: Any) -> Self:
        """Fit the temperature to the validation rows by maximum likelihood."""
        rows, labels = read_labels(validation, name="validation")
        return cls(network, likeliest_temperature(run_network(network, rows.inputs), labels))

    def predict(self, inputs: Inputs) -> ClassAnswer:
        logits = run_network(self.network, inputs)
        return answer_classes(inputs, logits, (logits / self.temperature).softmax(dim=1))


@dataclass(frozen=True)
class MemberClassifier:
    """Members whose probabilities are averaged; a subclass defines them by `members`."""

    temperature: float = field(default=1.0, kw_only=True)  # T, the same for every member

    def members(self, inputs: Inputs) -> Tensor:
        """Logits of all members, shape [S, n, C]."""
        raise NotImplementedError

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """Mean of the members' probabilities; logits and their variance are also after division by T."""
        return answer_members(inputs, self.members(inputs) / self.temperature)

    def tempered(self, validation: Any) -> Self:
        """Copy with the most likely temperature on the validation rows."""
        rows, labels = read_labels(validation, name="validation")
        return replace(self, temperature=likeliest_temperature(self.members(rows.inputs), labels))


@dataclass(frozen=True)
class EnsembleClassifier(MemberClassifier):
    """Networks trained the same way from different starts. Made by `fit`."""

    networks: tuple[nn.Module, ...]

    @classmethod
    def fit(cls, networks: Sequence[nn.Module], validation: Any) -> Self:
        """Fit one temperature to at least two networks, which give logits [n, C]."""
        at_least_two(len(networks), "networks")
        return cls(tuple(networks)).tempered(validation)

    def members(self, inputs: Inputs) -> Tensor:
        return torch.stack([run_network(one, inputs) for one in self.networks])


@dataclass(frozen=True)
class DropoutClassifier(MemberClassifier):
    """A network that drops units when it predicts; the same rows get the same masks. Made by `fit`."""

    network: nn.Module  # a private copy: dropout layers in training mode, everything else in eval mode
    samples: int
    seed: int

    @classmethod
    def fit(cls, network: nn.Module, validation: Any, *, samples: int = 20, seed: int = 0) -> Self:
        """Fit one temperature for all masks of a network trained with dropout, such as `cnn(dropout=0.2)`."""
        return cls(with_dropout_on(network), at_least_two(samples, "samples"), seed).tempered(validation)

    def members(self, inputs: Inputs) -> Tensor:
        return masked_outputs(self.network, inputs, self.samples, self.seed)
