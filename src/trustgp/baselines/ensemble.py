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

GRID, ZOOMS = 41, 5  # five zooms of 41 points: log noise to better than 1e-5
LOWEST = 1e-8  # noise below this share of the largest squared error says nothing


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


def likeliest_noise(error: Tensor, spread: Tensor) -> Tensor:
    r"""The constant noise of each output by maximum likelihood, by zooming in on a grid of its logarithm.

    .. math:: \arg\min_{\sigma^2} \sum_i \log(v_i + \sigma^2) + e_i^2 / (v_i + \sigma^2)

    It lies below the largest squared error, where the derivative is positive.

    Args:
        error: e, shape [n, C].
        spread: v, shape [n, C].

    Returns:
        Noise variances, shape [C].
    """
    squared = error.square()
    largest = squared.amax(dim=0)
    if not bool((largest > 0).all()):
        raise ValueError("an output has no error on the validation rows; pass rows it was not fitted to.")

    def loss(log_noise: Tensor) -> Tensor:
        total = spread + log_noise.exp()
        return (total.log() + squared / total).mean(dim=0)

    low, high = (LOWEST * largest).log(), largest.log()
    for _ in range(ZOOMS):
        step = (high - low) / (GRID - 1)
        losses = torch.stack([loss(low + i * step) for i in range(GRID)])  # [GRID, C]
        best = low + losses.argmin(dim=0) * step
        low, high = best - step, torch.minimum(best + step, largest.log())
    return best.exp()  # pyright: ignore[reportPossiblyUnboundVariable]


def _members(networks: Sequence[nn.Module], inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Mean and population variance of the members' outputs, each [n] or [n, C]."""
    outputs = torch.stack([run_network(network, inputs) for network in networks])
    return outputs.mean(dim=0), outputs.var(dim=0, correction=0)
