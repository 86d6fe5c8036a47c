"""A deep ensemble: several networks, trained alike from different starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Inputs, read_rows
from ..prediction import Prediction
from ..tangents.network import as_matrix
from .running import answer, errors, run_network
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
        if len(networks) < 2:
            raise ValueError(f"{len(networks)} networks; an ensemble needs at least 2.")
        rows = read_rows(validation, name="validation")
        mean, spread = _members(networks, rows.inputs)
        return cls(tuple(networks), likeliest_noise(errors(mean, rows), as_matrix(spread).double()))

    def predict(self, inputs: Inputs) -> Prediction:
        """The members' mean; their variance (over the members themselves) is epistemic.

        Args:
            inputs: A tensor, tuple or dict, as the networks take them.
        """
        mean, spread = _members(self.networks, inputs)
        return answer(inputs, mean, spread, self.noise)


def _members(networks: Sequence[nn.Module], inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Mean and population variance of the members' outputs, each [n] or [n, C]."""
    outputs = torch.stack([run_network(network, inputs) for network in networks])
    return outputs.mean(dim=0), outputs.var(dim=0, correction=0)
