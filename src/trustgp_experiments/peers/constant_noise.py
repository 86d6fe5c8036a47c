"""The simplest peer: the same error bar everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs
from trustgp.likelihoods.prediction import Prediction

from ..training.inference import answer, errors, run_network
from .tuning import squared_errors


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
        return cls(network, squared_errors(errors(run_network(network, rows.inputs), rows)).mean(dim=0))

    def predict(self, inputs: Inputs) -> Prediction:
        """The network's output, with the same variance for every row.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        mean = run_network(self.network, inputs)
        return answer(inputs, mean, torch.zeros_like(mean), self.noise)
