"""Networks' own answers: of one, of several, or of one under several dropout masks.

The variance over the members themselves is epistemic. To it comes a noise, or, for classes, nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from trustgp.data.trees import Inputs

from ..training.inference import moments, own_randomness, run_network
from .class_answer import ClassAnswer, answer_classes, answer_members, read_labels
from .tuning import NoisyPeer, likeliest_temperature, squared_errors


@dataclass(frozen=True)
class ConstantNoise(NoisyPeer):
    """A network with one variance for each output: its mean squared residual. Made by `fit`."""

    network: nn.Module

    @classmethod
    def fit(cls, network: nn.Module, validation: Any) -> ConstantNoise:
        """The maximum-likelihood variance, output by output."""
        error, _ = cls(network).against(validation)
        return cls(network, noise=squared_errors(error).mean(dim=0))

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The network's output, which does not vary."""
        mean = run_network(self.network, inputs)
        return mean, torch.zeros_like(mean)


@dataclass(frozen=True)
class SoftmaxClassifier:
    """A network whose logits are divided by a temperature. Made by `fit`."""

    network: nn.Module
    temperature: float = 1.0  # T in softmax(z / T); 1: the network as it is

    @classmethod
    def fit(cls, network: nn.Module, validation: Any = None) -> SoftmaxClassifier:
        """The network as it is, or, with validation rows, with the temperature that suits them best."""
        if validation is None:
            return cls(network)
        rows, labels = read_labels(validation, name="validation")
        return cls(network, likeliest_temperature(run_network(network, rows.inputs), labels))

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """Softmax of the network's logits over the temperature."""
        logits = run_network(self.network, inputs)
        return answer_classes(inputs, logits, (logits / self.temperature).softmax(dim=1))


@dataclass(frozen=True)
class Ensemble(NoisyPeer):
    """Networks, trained alike from different starts, whose disagreement is epistemic. Made by `fit`."""

    networks: tuple[nn.Module, ...]

    @classmethod
    def fit(cls, networks: Sequence[nn.Module], validation: Any) -> Ensemble:
        """At least two networks, with the noise that suits how far they spread."""
        return cls(tuple(networks)).fitted(validation)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The members' mean and variance."""
        return moments(_answers(self.networks, inputs))


@dataclass(frozen=True)
class EnsembleClassifier:
    """Networks whose probabilities are averaged. Made by `fit`."""

    networks: tuple[nn.Module, ...]

    @classmethod
    def fit(cls, networks: Sequence[nn.Module]) -> EnsembleClassifier:
        """At least two networks that give logits [n, C]; there is nothing to fit."""
        _check_networks(networks)
        return cls(tuple(networks))

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """The mean of the members' probabilities."""
        return answer_members(inputs, _answers(self.networks, inputs))


@dataclass(frozen=True)
class MCDropout(NoisyPeer):
    """A network that keeps dropping units when it predicts, asked several times. Made by `fit`.

    The same rows in the same order get the same masks.
    """

    network: nn.Module  # a private copy: dropout layers in training mode, everything else in eval mode
    samples: int
    seed: int

    @classmethod
    def fit(cls, network: nn.Module, validation: Any, *, samples: int = 20, seed: int = 0) -> MCDropout:
        """A network trained with dropout, such as `mlp(..., dropout=0.1)`; at least 2 samples."""
        return cls(with_dropout_on(network), samples, seed).fitted(validation)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The mean and variance of the answers under all masks."""
        return moments(_masked(self.network, inputs, self.samples, self.seed))


@dataclass(frozen=True)
class DropoutClassifier:
    """The same for classes: probabilities averaged over the masks. Made by `fit`."""

    network: nn.Module
    samples: int
    seed: int

    @classmethod
    def fit(cls, network: nn.Module, *, samples: int = 20, seed: int = 0) -> DropoutClassifier:
        """A network trained with dropout, such as `cnn(dropout=0.2)`; there is nothing to fit."""
        _check_samples(samples)
        return cls(with_dropout_on(network), samples, seed)

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """The mean of the probabilities under all masks."""
        return answer_members(inputs, _masked(self.network, inputs, self.samples, self.seed))


def with_dropout_on(network: nn.Module) -> nn.Module:
    """A copy in eval mode but for its dropout layers; refused where there is none that drops anything."""
    dropping = copy.deepcopy(network).eval()
    layers = [module for module in dropping.modules() if isinstance(module, _DropoutNd) and module.p > 0]
    if not layers:
        raise ValueError(
            "the network has no dropout layer with p > 0; train one that has, for example "
            "trustgp_experiments.peers.mlp(..., dropout=0.1)."
        )
    for layer in layers:
        layer.train()
    return dropping


def _answers(networks: Sequence[nn.Module], inputs: Inputs) -> Tensor:
    """The members' outputs, [S, n] or [S, n, C]."""
    _check_networks(networks)
    return torch.stack([run_network(network, inputs) for network in networks])


def _masked(network: nn.Module, inputs: Inputs, samples: int, seed: int) -> Tensor:
    """The answers under different masks, [S, n] or [S, n, C]; no global generator moves."""
    _check_samples(samples)
    with own_randomness(seed, next(network.parameters()).device):
        return torch.stack([run_network(network, inputs) for _ in range(samples)])


def _check_networks(networks: Sequence[nn.Module]) -> None:
    if len(networks) < 2:
        raise ValueError(f"{len(networks)} networks; an ensemble needs at least 2.")


def _check_samples(samples: int) -> None:
    if samples < 2:
        raise ValueError(f"samples={samples}; at least 2 are needed to see a spread.")
