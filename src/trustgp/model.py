"""The fitted model: a network and its error bar."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .data.trees import Inputs, moved
from .experts.mixture import LatentPrediction, Mixture
from .experts.witness import WitnessState
from .fitting.update import update_state
from .likelihoods import Calibrations, Shape
from .likelihoods.prediction import Prediction
from .state import model_state
from .state.conformal import ConformalIntervals, ConformalSets, conformal
from .state.model_file import save_state
from .state.model_state import FittedModel, ModelState, Provenance, Training, of_state
from .tangents.base import Features


class UncertaintyModel(FittedModel):
    """A trained network with an honest error bar. Made by `trustgp.fit` or `trustgp.load`."""

    state: ModelState  # all that is known; `threshold`, `update` and a move to another device replace it
    mixtures: tuple[Mixture, ...] = of_state("mixtures", "One per kernel.")
    witness: WitnessState | None = of_state("witness", "The second opinion; None: there is none.")
    calibrations: Calibrations = of_state("calibrations", "What the likelihood learnt from held-out rows.")
    origin: Provenance = of_state("provenance", "Where the model comes from: plain values, saved with it.")
    memory: Training | None = of_state("training", "What `update` needs; None after loading.")
    num_experts: int = of_state("num_experts", "Experts of all kernels together.")
    shape: Shape = of_state("shape", "The sizes on which calibrations depend.")
    device: torch.device = of_state("device", "Where it lies.")

    def __init__(self, state: ModelState) -> None:
        super().__init__()
        self.network = state.network
        self.state = state
        self.training = state.network.training

    @property
    def nbytes(self) -> int:
        """What the error bar holds in memory, the network itself not counted."""
        return model_state.nbytes(self.state)

    @property
    def bound(self) -> Tensor:
        """Share of squared kernel mass that falls between experts, the mean over kernels."""
        return torch.stack([mixture.bound for mixture in self.mixtures]).mean()

    @property
    def failed(self) -> list[tuple[int, int]]:
        """Experts that could not be solved and answer with the prior, as (kernel, expert)."""
        pairs = [(k, e) for k, mixture in enumerate(self.mixtures) for e in range(len(mixture.experts))]
        return [(k, e) for k, e in pairs if self.mixtures[k].experts[e].failed]

    def predict(self, inputs: Any) -> Prediction:
        """The network's own output, with its error bar.

        Args:
            inputs: A tensor, tuple or dict as the network takes them, or a Dataset or DataLoader of
                inputs or of (inputs, targets).
        """
        return model_state.predict(self.state, inputs)

    def raw(self, inputs: Inputs, outputs: Tensor, features: Features | None = None) -> LatentPrediction:
        """What experts and witness say before calibration; see `trustgp.state.model_state.predict_latent`."""
        return model_state.predict_latent(self.state, inputs, outputs, features)

    def novelty(self, inputs: Inputs) -> Tensor:
        """How far from the training rows, in [0, 1], shape [n]."""
        return self.predict(inputs).novelty

    def threshold(self, rows: Any = None, *, false_alarm: float = 0.01) -> float:
        """Fit the threshold of the novelty score, by which `is_novel` goes from now on.

        A new row like those it is fitted on lies above it with probability `false_alarm` at most, however
        many rows there are. It is saved with the model.

        Args:
            rows: Familiar rows that neither the network nor the experts have seen: inputs, or whatever
                `predict` takes. None: the rows that were held out in the fit.
            false_alarm: In (0, 1); it takes at least 1 / false_alarm - 1 rows.
        """
        scores = self.held_scores if rows is None else self.predict(rows).score.cpu()
        return self._with_threshold(scores, false_alarm)

    def conformal(self, validation: Any, *, level: float = 0.9) -> ConformalIntervals | ConformalSets | Any:
        """Intervals, or sets of classes, that hold the target with probability `level` at least.

        What is returned has `interval(inputs)` or `sets(inputs)`; see `trustgp.state.conformal`.

        Args:
            validation: Rows that neither the network nor the fit has seen: (inputs, targets), a Dataset or a
                DataLoader. Not those that the model was calibrated on.
            level: In (0, 1).
        """
        return conformal(self, validation, level=level)

    def update(self, new_rows: Any, *, groups: Any = None, train: Any = None, **options: Any) -> list[int]:
        """Add rows; only the experts concerned are solved again. See `trustgp.fitting.update`.

        They are returned, counted through all kernels.
        """
        self.state, touched = update_state(self.state, new_rows, groups=groups, train=train, **options)
        return touched

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the network is not in it."""
        save_state(self.state, path)

    def _apply(self, fn, recurse: bool = True) -> UncertaintyModel:
        super()._apply(fn, recurse)
        mixtures, witness = moved(self.mixtures, fn), moved(self.witness, fn)
        self.state = replace(self.state, mixtures=mixtures, witness=witness)
        return self
