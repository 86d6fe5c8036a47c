"""A deep ensemble: several networks, trained alike from different starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs
from trustgp.likelihoods.prediction import Prediction
from trustgp.tangents.network import as_matrix

from ..training.inference import answer, errors, moments, run_network
from .class_answer import ClassAnswer, answer_members
from .tuning import likeliest_noise


@dataclass(frozen=True)
class Ensemble:
    """Networks whose disagreement is the epistemic variance. Made by `fit`.

    Args:
        networks: Trained, in eval mode.
        noise: Variance of the noise of each output, shape [C], float64.
    """

    networks: tuple[nn.Module, ...]
    noise: Tensor

    @classmethod
    def fit(cls, networks: Sequence[nn.Module], validation: Any) -> Ensemble:
        """The noise that makes the validation rows most likely, given how far the members spread.

        Args:
            networks: At least two, trained, in eval mode.
            validation: Rows they were not trained on: (inputs, targets), a Dataset or a DataLoader.
        """
        rows = read_rows(validation, name="validation")
        mean, spread = moments(_ask(networks, rows.inputs))
        return cls(tuple(networks), likeliest_noise(errors(mean, rows), as_matrix(spread).double()))

    def predict(self, inputs: Inputs) -> Prediction:
        """The members' mean; their variance (over the members themselves) is epistemic.

        Args:
            inputs: A tensor, tuple or dict, as the networks take them.
        """
        mean, spread = moments(_ask(self.networks, inputs))
        return answer(inputs, mean, spread, self.noise)


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
        _check(networks)
        return cls(tuple(networks))

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """The mean of the members' probabilities.

        Args:
            inputs: A tensor, tuple or dict, as the networks take them.
        """
        return answer_members(inputs, _ask(self.networks, inputs))


def _ask(networks: Sequence[nn.Module], inputs: Inputs) -> Tensor:
    """The members' outputs, [E, n] or [E, n, C]."""
    _check(networks)
    return torch.stack([run_network(network, inputs) for network in networks])


def _check(networks: Sequence[nn.Module]) -> None:
    if len(networks) < 2:
        raise ValueError(f"{len(networks)} networks; an ensemble needs at least 2.")
