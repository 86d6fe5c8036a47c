"""The simplest peer: the same error bar everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Inputs, read_rows
from ..prediction import Prediction
from .running import answer, errors, run_network


@dataclass(frozen=True)
class ConstantNoise:
    """A network with one variance for each output. Made by `fit`.

    Args:
        network: Trained, in eval mode.
        noise: Variance of each output, shape [C], float64.
    """

    network: nn.Module
    noise: Tensor

    @classmethod
    def fit(cls, network: nn.Module, validation: Any) -> ConstantNoise:
        r"""The maximum-likelihood variance: the mean squared residual, output by output.

        Args:
            network: Trained, in eval mode, that maps rows to [n] or [n, C].
            validation: Rows it was not trained on: (inputs, targets), a Dataset or a DataLoader.
        """
        rows = read_rows(validation, name="validation")
        noise = errors(run_network(network, rows.inputs), rows).square().mean(dim=0)
        if not bool((noise > 0).all()):
            raise ValueError("an output has no error on the validation rows; pass rows it was not fitted to.")
        return cls(network, noise)

    def predict(self, inputs: Inputs) -> Prediction:
        """The network's output, with the same variance for every row.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        mean = run_network(self.network, inputs)
        return answer(inputs, mean, torch.zeros_like(mean), self.noise)
