"""MC-dropout: a network that keeps dropping units when it predicts, asked several times."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs
from trustgp.likelihoods.prediction import Prediction
from trustgp.tangents.network import as_matrix

from ..training.inference import answer, errors, moments, own_randomness, run_network
from .class_answer import ClassAnswer, answer_members
from .tuning import likeliest_noise


@dataclass(frozen=True)
class MCDropout:
    """A dropout network whose answers under different masks spread. Made by `fit`.

    Args:
        network: A private copy: its dropout layers in training mode, everything else in eval mode.
        samples: How often it is asked.
        seed: Of the masks; the same rows in the same order get the same masks.
        noise: Variance of the noise of each output, shape [C], float64.
    """

    network: nn.Module
    samples: int
    seed: int
    noise: Tensor

    @classmethod
    def fit(cls, network: nn.Module, validation: Any, *, samples: int = 20, seed: int = 0) -> MCDropout:
        """The noise that makes the validation rows most likely, given how far the answers spread.

        Args:
            network: Trained with dropout, for example `mlp(..., dropout=0.1)`.
            validation: Rows it was not trained on: (inputs, targets), a Dataset or a DataLoader.
            samples: At least 2.
            seed: Of the masks.
        """
        rows = read_rows(validation, name="validation")
        dropping = with_dropout_on(network)
        mean, spread = moments(_ask(dropping, rows.inputs, samples, seed))
        noise = likeliest_noise(errors(mean, rows), as_matrix(spread).double())
        return cls(dropping, samples, seed, noise)

    def predict(self, inputs: Inputs) -> Prediction:
        """The answers' mean; their variance (over the samples themselves) is epistemic.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        mean, spread = moments(_ask(self.network, inputs, self.samples, self.seed))
        return answer(inputs, mean, spread, self.noise)


@dataclass(frozen=True)
class DropoutClassifier:
    """A dropout network, asked several times under different masks. Made by `fit`.

    Args:
        network, samples, seed: See `MCDropout`.
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
        _check(samples)
        return cls(with_dropout_on(network), samples, seed)

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """The mean of the probabilities under all masks; no global generator moves.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        return answer_members(inputs, _ask(self.network, inputs, self.samples, self.seed))


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


def _ask(network: nn.Module, inputs: Inputs, samples: int, seed: int) -> Tensor:
    """The answers under different masks, [S, n] or [S, n, C]; no global generator moves."""
    _check(samples)
    with own_randomness(seed, next(network.parameters()).device):
        return torch.stack([run_network(network, inputs) for _ in range(samples)])


def _check(samples: int) -> None:
    if samples < 2:
        raise ValueError(f"samples={samples}; at least 2 are needed to see a spread.")
