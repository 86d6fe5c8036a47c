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
from .likelihoods.novelty import NoveltyThreshold
from .likelihoods.prediction import Prediction
from .state import predict as asked
from .state.conformal import ConformalIntervals, ConformalSets, conformal
from .state.frozen_module import FrozenModule
from .state.model_file import save_state
from .state.model_state import ModelState, Provenance, Training
from .tangents.base import Features


class UncertaintyModel(FrozenModule):
    """A trained network with an honest error bar. Made by `trustgp.fit` or `trustgp.load`.

    Args:
        state: All that is known; `threshold`, `update` and a move to another device replace it.
    """

    def __init__(self, state: ModelState) -> None:
        super().__init__()
        self.network = state.network
        self.state = state
        self.training = state.network.training

    @property
    def mixtures(self) -> tuple[Mixture, ...]:
        """One per kernel."""
        return self.state.mixtures

    @property
    def witness(self) -> WitnessState | None:
        """The second opinion; None: there is none."""
        return self.state.witness

    @property
    def calibrations(self) -> Calibrations:
        """What the likelihood has learnt from held-out rows."""
        return self.state.calibrations

    @property
    def origin(self) -> Provenance:
        """Where the model comes from: plain values that are saved with it."""
        return self.state.provenance

    @property
    def memory(self) -> Training | None:
        """What `update` needs; None after loading."""
        return self.state.training

    @property
    def held_scores(self) -> Tensor:
        """Novelty scores of the held-out rows, float64, shape [k]; empty where there were none."""
        return self.state.held_scores

    @property
    def alarm(self) -> NoveltyThreshold | None:
        """The threshold of the novelty score, with its false alarms; None before `threshold` was called."""
        return self.state.threshold

    @property
    def num_experts(self) -> int:
        """Experts of all kernels together."""
        return self.state.num_experts

    @property
    def nbytes(self) -> int:
        """What the error bar holds in memory, the network itself not counted."""
        return asked.nbytes(self.state)

    @property
    def bound(self) -> Tensor:
        """Share of squared kernel mass that falls between experts, the mean over kernels."""
        return asked.bound(self.state)

    @property
    def failed(self) -> list[tuple[int, int]]:
        """Experts that could not be solved and answer with the prior, as (kernel, expert)."""
        return asked.failed(self.state)

    @property
    def shape(self) -> Shape:
        """The sizes on which calibrations depend."""
        return self.state.shape

    @property
    def device(self) -> torch.device:
        return self.state.device

    def forward(self, inputs: Inputs) -> Prediction:
        """The same as `predict`."""
        return self.predict(inputs)

    def predict(self, inputs: Any) -> Prediction:
        """The network's own output, with its error bar.

        Args:
            inputs: A tensor, tuple or dict as the network takes them, or a Dataset or DataLoader of
                inputs or of (inputs, targets).
        """
        return asked.predict(self.state, inputs)

    def raw(self, inputs: Inputs, outputs: Tensor, features: Features | None = None) -> LatentPrediction:
        """What experts and witness say before calibration; see `trustgp.state.predict.predict_latent`."""
        return asked.predict_latent(self.state, inputs, outputs, features)

    def novelty(self, inputs: Inputs) -> Tensor:
        """How far from the training rows, in [0, 1], shape [n]."""
        return self.predict(inputs).novelty

    def threshold(self, rows: Any = None, *, false_alarm: float = 0.01) -> float:
        """Fit the threshold of the novelty score; from now on predictions have `is_novel`.

        A new row like those it is fitted on lies above it with probability `false_alarm` at most, however
        many rows there are. It is saved with the model.

        Args:
            rows: Familiar rows that neither the network nor the experts have seen: inputs, or whatever
                `predict` takes. None: the rows that were held out in the fit.
            false_alarm: In (0, 1); it takes at least 1 / false_alarm - 1 rows.
        """
        scores = self.held_scores if rows is None else self.predict(rows).score.cpu()
        found = NoveltyThreshold.fit(scores, false_alarm)
        self.state = replace(self.state, threshold=found)
        return float(found.threshold)

    def conformal(self, validation: Any, *, level: float = 0.9) -> ConformalIntervals | ConformalSets | Any:
        """Intervals, or sets of classes, that hold the target with probability `level` at least.

        Args:
            validation: Rows that neither the network nor the fit has seen: (inputs, targets), a Dataset or a
                DataLoader. Not those that the model was calibrated on.
            level: In (0, 1).

        Returns:
            An object with `interval(inputs)` for regression, `sets(inputs)` for classification; see
            `trustgp.state.conformal`.
        """
        return conformal(self, validation, level=level)

    def update(self, new_rows: Any, *, groups: Any = None, train: Any = None, **options: Any) -> list[int]:
        """Add rows; only the experts concerned are solved again. See `trustgp.fitting.update`.

        Returns:
            Which experts were solved again, counted through all kernels.
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
