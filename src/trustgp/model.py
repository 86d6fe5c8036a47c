"""The fitted model: a network and its error bar."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .data import Inputs, as_inputs, copied, count, finite_rows, structure, take, to_device
from .likelihoods import Calibrations, Likelihood, Shape
from .mixture import Mixture, Raw
from .novelty import Alarm
from .one_pass import OnePass
from .prediction import Prediction
from .tangents.base import Features, Tangents
from .tangents.network import as_matrix, call
from .witness import Witness, WitnessState


@dataclass(frozen=True)
class Origin:
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


class UncertaintyModel(nn.Module):
    """A trained network with an honest error bar. Made by `trustgp.fit` or `trustgp.load`.

    Args:
        network: A private copy of the user's network.
        mixtures: One per kernel.
        calibrations: What the likelihood has learnt from held-out rows.
        origin: Where it comes from.
        memory: What `update` needs; None after loading.
        witness: The second opinion; None: there is none.
        held_scores: Novelty scores of the held-out rows, float64, shape [k]; empty where there were none.
        alarm: The threshold of the novelty score, and the share of false alarms it was made for; None
            before `threshold` was called.
    """

    def __init__(
        self,
        network: nn.Module,
        mixtures: tuple[Mixture, ...],
        calibrations: Calibrations,
        origin: Origin,
        memory: Any = None,
        witness: WitnessState | None = None,
        held_scores: Tensor | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.mixtures = mixtures
        self.calibrations = calibrations
        self.origin = origin
        self.memory = memory
        self.witness = witness
        self.held_scores = torch.zeros(0, dtype=torch.float64) if held_scores is None else held_scores
        self.alarm = alarm
        self.training = network.training
        self._one_pass = OnePass()

    @property
    def num_experts(self) -> int:
        """Experts of all kernels together."""
        return sum(len(mixture.experts) for mixture in self.mixtures)

    @property
    def nbytes(self) -> int:
        """What the error bar holds in memory, the network itself not counted."""
        maps = [tuple(mixture.tangents.state().values()) for mixture in self.mixtures]
        return sum(t.numel() * t.element_size() for t in state_tensors((self.mixtures, maps, self.witness)))

    @property
    def bound(self) -> Tensor:
        """Share of squared kernel mass that falls between experts, the mean over kernels."""
        return torch.stack([mixture.bound for mixture in self.mixtures]).mean()

    @property
    def failed(self) -> list[tuple[int, int]]:
        """Experts that could not be solved and answer with the prior, as (kernel, expert)."""
        return [
            (k, e)
            for k, mixture in enumerate(self.mixtures)
            for e, expert in enumerate(mixture.experts)
            if expert.failed
        ]

    def forward(self, inputs: Inputs) -> Prediction:
        """The same as `predict`."""
        return self.predict(inputs)

    @torch.no_grad()
    def predict(self, inputs: Inputs) -> Prediction:
        """The network's own output, with its error bar.

        Args:
            inputs: A tensor, tuple or dict as the network takes them, or a Dataset or DataLoader of
                inputs or of (inputs, targets).
        """
        if isinstance(inputs, (DataLoader, Dataset)):
            loader = inputs if isinstance(inputs, DataLoader) else DataLoader(inputs, batch_size=1024)
            parts = [self._predict(self._inputs_of(batch)) for batch in loader]
            if not parts:
                raise ValueError("the loader holds no rows.")
            return Prediction.cat(parts)
        return self._predict(self._inputs_of(inputs))

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
        self.alarm = Alarm.fit(scores, false_alarm)
        return float(self.alarm.threshold)

    def conformal(self, validation: Any, *, level: float = 0.9) -> Any:
        """Intervals, or sets of classes, that hold the target with probability `level` at least.

        Args:
            validation: Rows that neither the network nor the fit has seen: (inputs, targets), a Dataset or a
                DataLoader. Not those that the model was calibrated on.
            level: In (0, 1).

        Returns:
            An object with `interval(inputs)` for regression, `sets(inputs)` for classification; see
            `trustgp.conformal`.
        """
        from .conformal import conformal

        return conformal(self, validation, level=level)

    def update(self, new_rows: Any, *, groups: Any = None, train: Any = None, **options) -> list[int]:
        """Add rows; only the experts concerned are solved again. See `trustgp.updating.update`."""
        from .updating import update

        return update(self, new_rows, groups=groups, train=train, **options)

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the network is not in it."""
        from .artifact import save

        save(self, path)

    def raw(self, inputs: Inputs, outputs: Tensor, features: Features | None = None) -> Raw:
        """What experts and witness say before calibration.

        Args:
            inputs: Finite, on any device.
            outputs: The network's, shape [n] or [n, C].
            features: Of the first kernel, where they are known.
        """
        first, *others = self.mixtures
        raw = Raw.join([first.raw(inputs, features), *(mixture.raw(inputs) for mixture in others)])
        if self.witness is None:
            return raw
        said = self.witness(to_device(inputs, self.device))
        shift = said.mean - as_matrix(outputs).double()
        return replace(raw, witness_shift=shift, witness_precision=said.precision)

    def answers(self, inputs: Inputs) -> tuple[Tensor, Raw]:
        """The network's outputs [n, C], and what experts and witness say of them; all must be finite."""
        outputs = as_matrix(call(self.network, copied(to_device(inputs, self.device))))
        return outputs, self.raw(inputs, outputs)

    def held_out(self, inputs: Inputs, targets: Tensor) -> Any:
        """Rows with known targets, as the calibration wants them."""
        return self.origin.likelihood.held_out(*self.answers(inputs), targets)

    @property
    def shape(self) -> Shape:
        """The sizes on which calibrations depend."""
        mix = self.mixtures[0].tangents.mix
        return Shape(mix.shape[1], tuple(len(mixture.experts) for mixture in self.mixtures))

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def _predict(self, inputs: Inputs) -> Prediction:
        inputs = to_device(inputs, self.device)
        outputs, features = self._one_pass(self.network, self.mixtures[0].tangents, inputs)
        good = finite_rows(inputs) & finite_rows(outputs)
        if not bool(good.all()) and bool(good.any()):
            # Rows that are whole must come out as if the others were not there, to the bit.
            outputs = outputs.clone()
            outputs[good] = call(self.network, take(inputs, good.nonzero().flatten()))
        raw, known = self._known(inputs, outputs, features, good)
        prediction = self.origin.likelihood.prediction(outputs, raw, self.calibrations)
        limit = None if self.alarm is None else float(self.alarm.threshold)
        inner = {
            name: replace(value, valid=known, _threshold=limit)
            for name in ("_corrected", "_plain")
            if (value := getattr(prediction, name)) is not None
        }
        return replace(prediction, valid=known, _threshold=limit, **inner)

    def _known(
        self, inputs: Inputs, outputs: Tensor, features: Features | None, good: Tensor
    ) -> tuple[Raw, Tensor]:
        """What the experts say of the good rows, and for which rows it is finite, shape [n]."""
        if not bool(good.any()):
            told = sum(len(mixture.experts[0].scale) for mixture in self.mixtures)
            return _nothing_known(outputs, told, len(self.mixtures)), good
        whole = bool(good.all())
        chosen = good.nonzero().flatten()
        raw = (
            self.raw(inputs, outputs, features) if whole else self.raw(take(inputs, chosen), outputs[chosen])
        )
        sound = raw.finite()  # a gradient may overflow where input and output are finite
        known = good.clone()
        known[good] = sound
        if bool(sound.all()):
            return (raw if whole else raw.spread(known)), known
        return raw.take(sound).spread(known), known

    def _inputs_of(self, batch: Any) -> Inputs:
        """The inputs in what the user passed: themselves, or the first of a pair with targets."""
        inputs = as_inputs(batch)
        wanted = self.origin.structure
        if structure(inputs) != wanted:
            pair = isinstance(inputs, (tuple, list)) and len(inputs) in (1, 2)
            if not (pair and structure(inputs[0]) == wanted):
                raise ValueError(
                    f"inputs have the structure {structure(inputs)}; the model was fitted on {wanted}."
                )
            inputs = inputs[0]
        if count(inputs) == 0:
            raise ValueError("inputs hold no rows.")
        return inputs

    def train(self, mode: bool = True) -> UncertaintyModel:
        """Does nothing: the network stays in the mode in which it was fitted."""
        return self

    def _apply(self, fn, recurse: bool = True) -> UncertaintyModel:
        """Move to another device; the precision stays as it was fitted."""
        if fn(torch.empty(0, dtype=torch.float64)).dtype != torch.float64:
            raise TypeError("a fitted model keeps its precision; move it with .to(device) only.")
        super()._apply(fn, recurse)
        self.mixtures = moved(self.mixtures, fn)
        self.witness = moved(self.witness, fn)
        return self


def state_tensors(state: Any) -> list[Tensor]:
    """Every tensor in nested frozen dataclasses, tuples and lists."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, (tuple, list)):
        return [tensor for item in state for tensor in state_tensors(item)]
    if is_dataclass(state) and not isinstance(state, type):
        return [t for field in fields(state) for t in state_tensors(getattr(state, field.name))]
    return []


def moved(state: Any, fn) -> Any:
    """The same state with every tensor passed through `fn`."""
    if isinstance(state, Tensor):
        return fn(state)
    if isinstance(state, tuple):
        return tuple(moved(item, fn) for item in state)
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{f.name: moved(getattr(state, f.name), fn) for f in fields(state)})
    return state


def _nothing_known(outputs: Tensor, told: int, gates: int) -> Raw:
    """For a batch without a single finite row, as experts that tell so many numbers would answer."""
    blank = outputs.new_zeros(0, told, dtype=torch.float64)
    expert = torch.zeros(0, gates, dtype=torch.int64, device=outputs.device)
    rows = torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
    return Raw(blank, blank, blank, blank, blank, expert, blank, blank).spread(rows)
