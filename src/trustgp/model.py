"""The fitted model: a network and its error bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from .data.batches import Unpack
from .data.rows import Rows
from .data.split import check_groups
from .data.trees import Inputs, moved
from .data.user_warnings import explain_call
from .executors import Executor
from .experts.mixture import Mixture
from .experts.witness import WitnessState
from .fitting.dense import MAX_POSITIONS, position_rows, read_dense_rows
from .fitting.update import update_state
from .likelihoods import Calibrations, Shape
from .likelihoods.prediction import Prediction
from .state import dense, model_state
from .state.conformal import ConformalIntervals, ConformalSets, conformal
from .state.joint import JointPrediction, joint
from .state.model_file import save_state
from .state.model_state import FittedModel, ModelState, Provenance, Training, of_state, require_support


class UncertaintyModel(FittedModel):
    """A trained network with an honest error bar. Made by `trustgp.fit` or `trustgp.load`.

    Examples:
        >>> model = trustgp.fit(network, train, validation=held_out, progress=False)
        >>> model.predict(inputs).std.shape == network(inputs).shape
        True
    """

    state: ModelState  # everything fitted; `threshold`, `update` and a move to another device replace it
    mixtures: tuple[Mixture, ...] = of_state("mixtures", "Gates and experts, one mixture per kernel.")
    witness: WitnessState | None = of_state("witness", "Nearest-neighbour GP on the inputs; None: not used.")
    calibrations: Calibrations = of_state("calibrations", "Calibrations, fitted to held-out rows.")
    origin: Provenance = of_state("provenance", "Settings and data of the fit: plain values, saved with it.")
    memory: Training | None = of_state("training", "Training rows for `update`; None after loading.")
    num_experts: int = of_state("num_experts", "Number of experts of all kernels.")
    shape: Shape = of_state("shape", "Sizes on which the calibrations depend.")
    device: torch.device = of_state("device", "Device of the model.")

    def __init__(self, state: ModelState) -> None:
        super().__init__()
        self.network, self.state, self.training = state.network, state, state.network.training

    @property
    def nbytes(self) -> int:
        """Size of the error bar in memory, in bytes, without the network."""
        return model_state.nbytes(self.state)

    @property
    def bound(self) -> Tensor:
        """Share of squared kernel mass that falls between experts, the mean over kernels."""
        return torch.stack([mixture.bound for mixture in self.mixtures]).mean()

    @property
    def failed(self) -> list[tuple[int, int]]:
        """Experts that could not be solved and predict their prior, as (kernel, expert)."""
        return [(k, e) for k, m in enumerate(self.mixtures) for e, one in enumerate(m.experts) if one.failed]

    @explain_call("predict((image, vector))", "Several inputs are one tuple")
    def predict(
        self, inputs: Any, *, batch_size: int | None = None, unpack: Unpack | None = None
    ) -> Prediction:
        """The network's own output, with its error bar.

        Args:
            inputs: A tensor, array or data frame, or a tuple or dict of them, as the network takes them; or a
                Dataset, DataLoader or iterable of inputs or of (inputs, targets).
            batch_size: Maximum number of rows per pass, if memory is short. None: all rows of a tensor, the
                batches of a loader, 1,024 rows of a Dataset.
            unpack: As for `fit`: `lambda batch: (inputs, targets)`, for batches of another form.
        """
        return model_state.predict(self.state, inputs, batch_size=batch_size, unpack=unpack)

    def joint(self, inputs: Inputs) -> JointPrediction:
        """The joint distribution of a few rows: `covariance` between them, and `sample(k)` of all of them.

        Regression only; see `trustgp.state.joint` for what is exact. Its diagonal is the variance of
        `predict`.
        """
        require_support(self, "joint")
        return joint(self.state, inputs)

    def novelty(self, inputs: Inputs) -> Tensor:
        """Novelty of each row, in [0, 1], shape [n]: 0 on the training rows, 1 far from them."""
        return self.predict(inputs).novelty

    def threshold(
        self, rows: Any = None, *, false_alarm: float = 0.01, unpack: Unpack | None = None
    ) -> float:
        """Fit and return the threshold of the novelty score, which `is_novel` uses from now on.

        The score of a new row like those it is fitted on exceeds it with probability `false_alarm` at most,
        for any number of rows. It is saved with the model.

        Args:
            rows: Familiar rows that neither the network nor the experts have seen: inputs in any
                form that `predict` takes. None: the rows that were held out in the fit.
            false_alarm: Probability in (0, 1); at least 1 / false_alarm - 1 rows are needed.
            unpack: As for `predict`.
        """
        scores = self.held_scores if rows is None else self.predict(rows, unpack=unpack).score.cpu()
        return self._with_threshold(scores, false_alarm)

    def conformal(
        self, validation: Any, *, level: float = 0.9, unpack: Unpack | None = None
    ) -> ConformalIntervals | ConformalSets | Any:
        """Intervals, or sets of classes, that hold the target with probability `level` at least.

        The result has a method `interval(inputs)` or `sets(inputs)`; see `trustgp.state.conformal`.

        Args:
            validation: Rows that neither the network nor the fit has seen: (inputs, targets), a Dataset or a
                DataLoader. Rows that calibrated the model must not be among them.
            level: Coverage in (0, 1).
            unpack: As for `fit`.
        """
        require_support(self, "conformal")
        return conformal(self, validation, level=level, unpack=unpack)

    @explain_call("update((inputs, targets))")
    def update(
        self,
        new_rows: Any,
        *,
        groups: Any = None,
        train: Any = None,
        executor: Executor | None = None,
        progress: bool = True,
        unpack: Unpack | None = None,
    ) -> list[int]:
        """Add rows; only the experts concerned are solved again. See `trustgp.fitting.update`.

        The numbers of these experts are returned, counted through all kernels.
        """
        options = {"executor": executor, "progress": progress, "unpack": unpack}
        self.state, touched = update_state(self.state, new_rows, groups=groups, train=train, **options)
        return touched

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the network is not in it."""
        save_state(self.state, path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}\n{model_state.describe(self.state)}"

    def _apply(self, fn, recurse: bool = True) -> UncertaintyModel:
        super()._apply(fn, recurse)
        # what is float32 in the error bar of a float64 network stays so under .double()
        mixtures, witness = moved((self.mixtures, self.witness), lambda tensor: fn(tensor).to(tensor.dtype))
        self.state = replace(self.state, mixtures=mixtures, witness=witness)
        return self


class DenseModel(UncertaintyModel):
    """A network whose outputs have positions (sequences, images, masks), with an error bar at each.

    `predict` returns a `DensePrediction`. Made by `trustgp.fit` or `trustgp.load`; `state`, `mixtures` and
    `origin` belong to the model of its rows: positions, or flattened outputs.

    Examples:
        >>> dense = trustgp.fit(segmenter, (images, masks), likelihood="classification", progress=False)
        >>> dense.predict(images).classes.shape == masks.shape
        True
    """

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "compress": "pass budget= to fit, which limits its size",
        "Monitor": "it judges frames of one position; compare p.score_of_inputs with a limit of your own",
        "joint": "positions of one input are predicted independently",
        "conformal": "positions of one input are not exchangeable; use p.interval, or p.probabilities",
    }

    def __init__(self, state: dense.DenseState) -> None:
        super().__init__(state.rows)
        self.dense, self.full_network = state, state.network

    def predict(self, inputs: Any, *, batch_size: int | None = None, unpack: Unpack | None = None) -> Any:
        """Predict as `UncertaintyModel.predict` does; a `DensePrediction` in the shape of the output."""
        return dense.predict(self._dense, inputs, batch_size=batch_size, unpack=unpack)

    @property
    def _dense(self) -> dense.DenseState:
        return replace(self.dense, rows=self.state)

    def threshold(
        self, rows: Any = None, *, false_alarm: float = 0.01, unpack: Unpack | None = None
    ) -> float:
        """Fit as `UncertaintyModel.threshold` does; `false_alarm` is a share of familiar positions."""
        p = None if rows is None else self.predict(rows, unpack=unpack).rows
        scores = self.held_scores if p is None else p.score[p.valid].cpu()
        return self._with_threshold(scores, false_alarm)

    def watch(self) -> Any:
        """Raise ValueError: a monitor judges frames of one position."""
        require_support(self, "Monitor")

    @property
    def row_model(self) -> UncertaintyModel:
        """Model of the rows: positions, as features and outputs, or flattened outputs."""
        return UncertaintyModel(self.state)

    def as_rows(self, source: Any, name: str, unpack: Unpack | None = None) -> Rows:
        """Rows of `UncertaintyModel(state)`: all positions that have a target, or flattened outputs."""
        rows = read_dense_rows(source, name, self.full_network, unpack)
        return self._rows(rows)[0]

    def _rows(self, rows: Rows, groups: Any = None, most: int | None = None) -> tuple[Rows, Tensor | None]:
        classes = self.state.likelihood.class_numbers
        labels = check_groups(groups, rows)
        return position_rows(self.dense.positions, rows, classes=classes, groups=labels, most=most)

    def update(
        self, new_rows: Any, *, groups: Any = None, unpack: Unpack | None = None, **options: Any
    ) -> list[int]:
        """Add rows as `UncertaintyModel.update` does; of many positions, a few of each input are added."""
        if options.get("train") is not None:
            raise ValueError("train= is not for outputs of many positions: experts are updated without it.")
        rows = read_dense_rows(new_rows, "new_rows", self.full_network, unpack)
        added, labels = self._rows(rows, groups, MAX_POSITIONS)
        return super().update(added, groups=labels, **options)

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the network is not in it."""
        dense.save_dense(self._dense, path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}\n{dense.describe(self._dense)}"
