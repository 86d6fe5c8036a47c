"""trustgp itself among its peers: one fit and three ways to read it; and parts of it on their own.

These are one GP on some rows, without experts, and the witness, without any network.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from trustgp.api import fit
from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs, as_inputs, to_device
from trustgp.executors import FitContext, Threads
from trustgp.executors.progress import reporting
from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness, WitnessState
from trustgp.experts.witness_fit import find_witness
from trustgp.likelihoods.prediction import Prediction
from trustgp.model import UncertaintyModel

from ..training.train import answer

READINGS = ("own", "corrected", "plain")


@dataclass(frozen=True)
class TrustGP:
    """A fitted model, read in one of three ways. Made by `fit` or `fit_paper`.

    "own": about the network's output; "corrected": about the corrected mean; "plain": about the network's
    output with the variance of the evidence alone.
    """

    model: UncertaintyModel
    reading: str = "own"

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"reading={self.reading!r}; allowed are {', '.join(READINGS)}.")

    @classmethod
    def fit(cls, network: nn.Module, train: Any, validation: Any, **options: Any) -> Self:
        """trustgp as it comes: shared outputs, calibrated on validation rows; options of `trustgp.fit`."""
        return cls(fit(network, train, validation=validation, **{"progress": False, **options}))

    @classmethod
    def fit_paper(cls, network: nn.Module, train: Any, **options: Any) -> TrustGP:
        """The paper's form: a kernel, a gate and experts for each output, the evidence's variance alone.

        There is no witness, and no validation rows are taken. It says nothing about time series: the plain
        variance does not come from leaving rows out.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the rows look like a time series")
            model = fit(network, train, outputs="separate", witness=None, **{"progress": False, **options})
        return cls(model, "plain")

    @property
    def corrected(self) -> TrustGP:
        """The same model, read about the corrected mean."""
        return replace(self, reading="corrected")

    def predict(self, inputs: Inputs) -> Prediction:
        """The reading's prediction."""
        found = self.model.predict(inputs)
        return found if self.reading == "own" else getattr(found, self.reading)


@dataclass(frozen=True)
class SubsetGP(TrustGP):
    """One exact GP with the tangent kernel: trustgp with one expert on a random subset. Made by `fit`.

    Kernel, evidence, leave-one-out scale and the calibration on validation rows are trustgp's own, so what
    is left of a difference comes from the experts (and from the witness, which is not asked).
    """

    @classmethod
    def fit(
        cls, network: nn.Module, train: Any, validation: Any, *, rows: int = 2000, seed: int = 0, **more: Any
    ) -> Self:
        """An exact GP on `rows` random training rows, or on all; more options are those of `trustgp.fit`."""
        every = read_rows(train, name="train")
        kept = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))[:rows]
        subset = every.take(kept), every.targets[kept.to(every.targets.device)]
        alone = {"num_experts": 1, "patchwork": Patchwork(neighbours=0), "witness": None}
        return super().fit(network, subset, validation, **alone, seed=seed, **more)


@dataclass(frozen=True)
class InputGP:
    """Local Gaussian processes on the inputs alone, what the witness would say on its own. Made by `fit`."""

    witness: WitnessState  # the local Gaussian processes
    scale: Tensor  # of the variance of each output, by the validation rows, [C], float64

    @classmethod
    def fit(
        cls, train: Any, validation: Any, *, seed: int = 0, device: str | torch.device | None = None
    ) -> InputGP:
        """The local Gaussian processes, and the size of their variance by maximum likelihood.

        The rows are at least 50, each of at most 64 real numbers; the seed is that of k-means.
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
        """The mean of the Gaussian process that a row falls to."""
        inputs = to_device(as_inputs(inputs), self.scale.device)
        said = self.witness(inputs)
        return answer(inputs, said.mean, self.scale * said.variance, torch.zeros_like(self.scale))
