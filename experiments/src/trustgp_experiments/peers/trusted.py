"""trustgp among its peers: one fit with two predictions, one exact GP on a subset, and the witness alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.api import fit, paper
from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs, as_inputs, to_device
from trustgp.executors import FitContext, Threads
from trustgp.executors.progress import reporting
from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness, WitnessState
from trustgp.experts.witness_fit import find_witness
from trustgp.likelihoods.prediction import Prediction
from trustgp.model import UncertaintyModel
from trustgp.state.model_file import model_tensors

from .tuning import NoisyPeer

Device = str | torch.device
EXACT = {"budget": "none", "progress": False}  # options of `fit`


@dataclass(frozen=True)
class TrustGP:
    """A fitted model, whose predictions keep the network's output as mean or are corrected. Made by `fit`
    or `fit_paper`."""

    model: UncertaintyModel
    is_corrected: bool = False

    @classmethod
    def fit(cls, network: nn.Module, train: Any, validation: Any, **options: Any) -> Self:
        """Fit trustgp with its defaults, calibrated on validation rows; `options` as in `trustgp.fit`."""
        return cls(fit(network, train, validation=validation, **{"progress": False, **options}))

    @classmethod
    def fit_paper(cls, network: nn.Module, train: Any, **options: Any) -> TrustGP:
        """Fit the paper's form, `trustgp.paper`, without validation rows. Its kernel is not pruned: a pruned
        one is far too certain on rows unlike the training rows."""
        return cls(paper(network, train, **{"pruning": None, "progress": False, **options}))

    @property
    def corrected(self) -> TrustGP:
        return replace(self, is_corrected=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors of the network, and of the file that `trustgp.save` would write."""
        own = (*self.model.network.parameters(), *self.model.network.buffers())
        return sum(value.nbytes for value in (*own, *model_tensors(self.model.state).values()))

    def predict(self, inputs: Inputs) -> Prediction:
        prediction = self.model.predict(inputs)
        return prediction.corrected if self.is_corrected else prediction


@dataclass(frozen=True)
class SubsetGP(TrustGP):
    """One exact GP with the tangent kernel: trustgp with one expert on a random subset. Made by `fit`.

    Kernel, evidence, leave-one-out scale and the calibration on validation rows are trustgp's own, so a
    remaining difference comes from the experts (and from the witness, which is not used).
    """

    @classmethod
    def fit(
        cls, network: nn.Module, train: Any, validation: Any, *, rows: int = 2000, seed: int = 0, **more: Any
    ) -> Self:
        """Fit an exact GP to `rows` random training rows, or to all; `more` are options of `trustgp.fit`."""
        every = read_rows(train, name="train")
        kept = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))[:rows]
        subset = every.take(kept), every.targets[kept.to(every.targets.device)]
        alone = {"num_experts": 1, "patchwork": Patchwork(neighbours=0), "witness": None, **EXACT}
        return super().fit(network, subset, validation, **{**alone, "seed": seed, **more})


@dataclass(frozen=True)
class WitnessAlone(NoisyPeer):
    """Local Gaussian processes on the inputs alone: the witness without a network. Made by `fit`."""

    witness: WitnessState  # the local Gaussian processes

    @classmethod
    def fit(cls, train: Any, validation: Any, *, seed: int = 0, device: Device | None = None) -> Self:
        """Fit local GPs to at least 50 rows of at most 64 numbers, then a scale and tails.
        Their variance has a noise; with a second one the scale, and the variance far away, could run to 0."""
        place = torch.device(device or "cpu")
        rows = read_rows(train, name="train")
        with reporting(enabled=False) as report:
            context = FitContext(place, seed, Threads(1 if place.type == "cuda" else None), report)
            witness = find_witness(rows, Witness(), context, None)
        if witness is None:
            raise ValueError("a GP on the inputs needs at least 50 rows of at most 64 real numbers each.")
        return cls(witness).scaled(validation, rows)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Mean and variance by the Gaussian process that a row is assigned to, its noise included."""
        opinion = self.witness(to_device(as_inputs(inputs), self.witness.offset.device))
        return opinion.mean, opinion.variance
