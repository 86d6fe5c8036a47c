"""What a fitted model consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..experts.expert import Solved
from ..experts.gate import Partition
from ..experts.mixture import Mixture
from ..experts.witness import Witness, WitnessState
from ..likelihoods import Calibrations, Likelihood, Shape
from ..likelihoods.novelty import NoveltyThreshold
from ..likelihoods.prediction import Prediction
from ..tangents.base import Tangents
from .forward import SharedForward


@dataclass(frozen=True)
class Training:
    """What `update` needs beside the model: the rows, and the experts' left-out groups."""

    rows: Rows
    groups: Tensor | None
    validation: Rows | None
    partitions: tuple[Partition, ...]
    solved: tuple[tuple[Solved, ...], ...]


@dataclass(frozen=True)
class Provenance:
    """Where a model comes from: plain values that are saved with it.

    Args:
        network: Fingerprint of the network.
        data: Fingerprint of the training rows.
        rows: How many there were.
        structure: Of the inputs.
        outputs: "shared", "separate" or "pseudo".
        tangents: The representation, with its settings.
        names: The chosen parameters.
        likelihood: What the targets are.
        cap, lend: The most own rows of an expert, and the rows from each neighbour, per kernel.
        seed: Of the fit.
        witness: How the second opinion was formed; None: there is none.
        split: How many rows were given, and how many of them were kept from the experts; (0, 0) without.
        compressed: How the model was made smaller after the fit, in words; empty: it was not.
    """

    network: str
    data: str
    rows: int
    structure: str
    outputs: str
    tangents: Tangents
    names: tuple[str, ...]
    likelihood: Likelihood
    cap: tuple[int, ...]
    lend: tuple[int, ...]
    seed: int
    witness: Witness | None
    split: tuple[int, int] = (0, 0)
    compressed: str = ""


@dataclass(frozen=True, eq=False)
class ModelState:
    """A network and its error bar. Everything that is done with it is a function of it, or makes another.

    Args:
        network: A private copy of the user's network.
        mixtures: One per kernel.
        provenance: Where it comes from; holds the likelihood.
        calibrations: What the likelihood has learnt from held-out rows.
        witness: The second opinion; None: there is none.
        training: What `update` needs; None after loading.
        held_scores: Novelty scores of the held-out rows, float64, shape [k]; empty where there were none.
        threshold: Of the novelty score; None: none was fitted.
        forward: Runs the network once for outputs and features, where that can be.
    """

    network: nn.Module
    mixtures: tuple[Mixture, ...]
    provenance: Provenance
    calibrations: Calibrations = ()
    witness: WitnessState | None = None
    training: Training | None = None
    held_scores: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    threshold: NoveltyThreshold | None = None
    forward: SharedForward = field(default_factory=SharedForward, repr=False)

    @property
    def likelihood(self) -> Likelihood:
        """What the targets are."""
        return self.provenance.likelihood

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return next(self.network.parameters()).device

    @property
    def shape(self) -> Shape:
        """The sizes on which calibrations depend."""
        mix = self.mixtures[0].tangents.mix
        return Shape(mix.shape[1], tuple(len(mixture.experts) for mixture in self.mixtures))

    @property
    def num_experts(self) -> int:
        """Experts of all kernels together."""
        return sum(self.shape.experts)


class FittedModel(Protocol):
    """What holds a state and answers by it: `trustgp.UncertaintyModel`, which stands above this room."""

    state: ModelState

    def __init__(self, state: ModelState) -> None: ...

    def predict(self, inputs: Any) -> Prediction:
        """The network's own output, with its error bar."""
        ...
