"""Local Gaussian processes on the inputs alone: what trustgp's witness would say without any network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs, as_inputs, to_device
from trustgp.executors import FitContext, Threads
from trustgp.executors.progress import reporting
from trustgp.experts.witness import Witness, WitnessState
from trustgp.experts.witness_fit import find_witness
from trustgp.likelihoods.prediction import Prediction

from ..training.inference import answer


@dataclass(frozen=True)
class InputGP:
    """A witness on its own: its mean, its variance scaled on validation rows. Made by `fit`.

    Args:
        witness: The local Gaussian processes.
        scale: Of the variance of each output, shape [C], float64.
    """

    witness: WitnessState
    scale: Tensor

    @classmethod
    def fit(
        cls, train: Any, validation: Any, *, seed: int = 0, device: str | torch.device | None = None
    ) -> InputGP:
        """The local Gaussian processes, and the size of their variance by maximum likelihood.

        Args:
            train: (inputs, targets), a Dataset or a DataLoader; at least 50 rows of at most 64 real numbers.
            validation: Other rows.
            seed: Of the k-means.
            device: Where to work; None: the CPU.
        """
        place = torch.device(device or "cpu")
        rows, held = read_rows(train, name="train"), read_rows(validation, name="validation")
        with reporting(enabled=False) as report:
            context = FitContext(place, seed, Threads(1 if place.type == "cuda" else None), report)
            witness = find_witness(rows, Witness(), context, None)
        if witness is None:
            raise ValueError("a GP on the inputs needs at least 50 rows of at most 64 real numbers each.")
        said = witness(to_device(held.inputs, place))
        error = held.targets.to(said.mean) - said.mean
        return cls(witness, (error.square() / said.variance).mean(dim=0))

    def predict(self, inputs: Inputs) -> Prediction:
        """The mean of the Gaussian process that a row falls to.

        Args:
            inputs: A tensor, tuple or dict of real numbers.
        """
        inputs = to_device(as_inputs(inputs), self.scale.device)
        said = self.witness(inputs)
        return answer(inputs, said.mean, self.scale * said.variance, torch.zeros_like(self.scale))
