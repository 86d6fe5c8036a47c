"""The state of a fitted model, and its predictions: functions of `ModelState`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from textwrap import shorten
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..data.batches import Unpack, as_pair, batches_of, inputs_like, is_stream
from ..data.chunking import chunks
from ..data.quantities import size_text
from ..data.rows import Rows, finite_rows, read_rows
from ..data.torch_modes import cpu_default, refuse_transforms, without_autocast
from ..data.trees import (
    Inputs,
    check_dimensions,
    copied,
    count,
    kinds,
    leaves,
    moved,
    state_tensors,
    structure,
    take,
    to_device,
)
from ..experts.expert import Solved
from ..experts.features import chunk_rows
from ..experts.gate import Partition
from ..experts.mixture import LatentPrediction, Mixture
from ..experts.witness import Witness, WitnessState
from ..likelihoods import Calibrations, Likelihood, Shape
from ..likelihoods.base import NoveltyThreshold, ReferenceScores
from ..likelihoods.prediction import Prediction
from ..math.held_out import CalibrationRows
from ..tangents.base import Features, Tangents
from ..tangents.network import as_matrix, call, probe
from ..tangents.outputs import StatedOutputs, mean_of, members_of
from ..tangents.probes import Probes
from .latent import SharedForward, predict_latent
from .recording import Recordings

MAX_LINE = 110  # characters of a line that describes a model
DATASET_ROWS = 1024  # of a Dataset that are predicted at a time


@dataclass(frozen=True)
class Training:
    """What `update` needs besides the model: the rows, and the experts' left-out rows."""

    rows: Rows
    groups: Tensor | None
    validation: Rows | None
    partitions: tuple[Partition, ...]
    solved: tuple[tuple[Solved, ...], ...]
    far: CalibrationRows | None = None  # rows of left-out clusters
    by_output: Tensor | None = None  # sketches of each output [n, C, D], during a fit of few rows


@dataclass(frozen=True)
class Provenance:
    """Origin of a model: plain values that are saved with it."""

    network: str  # fingerprint of the network
    data: str  # fingerprint of the training rows
    rows: int  # number of training rows
    structure: str  # structure of the inputs
    outputs: str  # "shared", "separate" or "pseudo"
    tangents: Tangents  # the representation, with its settings
    likelihood: Likelihood  # the observation model
    lend: tuple[int, ...]  # the rows from each neighbour, per kernel
    seed: int  # of the fit
    witness: Witness | None  # its settings; None: there is none
    split: tuple[int, int] = (0, 0)  # rows given, and how many of them were held out from experts
    compressed: str = ""  # how the model was compressed after the fit, in words; empty: it was not
    rank: int | None = None  # most directions that an expert keeps; None: all
    size: int | None = None  # most bytes of the model, from its budget; None: no limit
    weights: Mapping[str, str] = field(default_factory=dict)  # fingerprints of the weights, by precision
    kinds: tuple[str, ...] = ()  # of the inputs of a row, such as "float32[3]"; empty: older files
    stated: bool = False  # whether the network states the variance of its outputs
    stride: int = 1  # the experts have every `stride`-th training row
    thinned: str = ""  # the stride in words, and what chose it; empty: they have all rows
    head: str = ""  # weight of the layer whose inputs are the hidden vectors; empty: there are none


@dataclass(frozen=True, eq=False)
class ModelState:
    """A network and its error bar. Operations are functions of a state; changes return another state."""

    network: nn.Module  # a private copy of the user's
    mixtures: tuple[Mixture, ...]  # one per kernel
    provenance: Provenance  # holds the likelihood
    calibrations: Calibrations = ()  # of the likelihood, fitted to held-out rows
    witness: WitnessState | None = None  # a nearest-neighbour GP on the inputs
    training: Training | None = None  # what `update` needs; None after loading
    # novelty scores of the held-out rows, float64, [k]; empty where there were none
    held_scores: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    threshold: NoveltyThreshold | None = None  # of the novelty score; None: none was fitted
    probes: Probes | None = None  # the network's outputs in the fit; None: unknown
    # runs the network once for outputs and features, where possible
    forward: SharedForward = field(default_factory=SharedForward, repr=False)

    @cached_property
    def reference_scores(self) -> ReferenceScores:
        """The held-out scores with the fitted threshold, or with the default one."""
        return ReferenceScores.of(self.held_scores, self.threshold)

    @cached_property
    def recordings(self) -> Recordings:
        """Predictions recorded as CUDA graphs, which a GPU replays."""
        return Recordings()

    @cached_property
    def device_calibrations(self) -> Calibrations:
        """The calibrations on the network's device."""
        return moved(self.calibrations, lambda tensor: tensor.to(self.device))

    @property
    def likelihood(self) -> Likelihood:
        return self.provenance.likelihood

    @cached_property
    def _first(self) -> nn.Parameter:
        return next(self.network.parameters())

    @property
    def device(self) -> torch.device:
        return self._first.device

    @property
    def shape(self) -> Shape:
        """The sizes on which calibrations depend."""
        mix = self.mixtures[0].tangents.mix
        return Shape(mix.shape[1], tuple(len(mixture.experts) for mixture in self.mixtures))

    @property
    def directions(self) -> int:
        """Largest number of directions that an expert keeps; 0: experts keep rows."""
        return max(mixture.directions for mixture in self.mixtures)

    @property
    def num_experts(self) -> int:
        """Number of experts of all kernels together."""
        return sum(self.shape.experts)


def changed_behaviour(state: ModelState) -> str:
    """How the network's behaviour differs from that in the fit, in words; empty: it does not, or unknown."""
    return "" if state.probes is None else state.probes.difference(state.mixtures[0].tangents.network)


@torch.no_grad()
@cpu_default()
def predict(
    state: ModelState, inputs: Any, *, batch_size: int | None = None, unpack: Unpack | None = None
) -> Prediction:
    """The network's own output, with its error bar; see `UncertaintyModel.predict`."""
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ValueError(f"batch_size={batch_size!r}; a whole number of at least 1 is needed, or None.")
    batches = batches_of(inputs, batch_size or DATASET_ROWS)[0] if is_stream(inputs) else [inputs]
    parts: list[Prediction] = []
    for batch in batches:
        batch = batch if unpack is None else as_pair(batch, "a batch", unpack)[0]
        rows = inputs_of(state, batch)
        n = count(rows)
        lots = [None] if batch_size is None or n <= batch_size else chunks(n, batch_size)
        parts += [_predict_chunk(state, rows if index is None else take(rows, index)) for index in lots]
    if not parts:
        raise ValueError("the loader holds no rows.")
    return parts[0] if len(parts) == 1 else Prediction.cat(parts)


def _predict_chunk(state: ModelState, inputs: Inputs) -> Prediction:
    """Prediction for tensors; an error names inputs unlike those of the fit as its likely cause."""
    refuse_transforms(inputs)
    try:
        with without_autocast(state.device.type):
            inputs = to_device(inputs, state.device)
            if state.device.type == "cuda" and (recorded := state.recordings(state, inputs)) is not None:
                return recorded
            outputs, features = state.forward(state.network, state.mixtures[0].tangents, inputs)
            return _predict_from_outputs(state, inputs, outputs, features)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        given, wanted = kinds(inputs), list(state.provenance.kinds)
        if given == wanted or not wanted:
            raise
        raise ValueError(
            f"the model cannot predict {count(inputs)} rows of {', '.join(given)}: {error}. It was fitted on "
            f"rows of {', '.join(wanted)}; pass inputs of this shape and type."
        ) from error


def network_pass(state: ModelState, inputs: Inputs) -> tuple[Tensor, Features | None]:
    """The outputs [n, C] of the network, and the features of the first kernel where one pass gives both."""
    tangents, features, outputs = state.mixtures[0].tangents, None, None
    if tangents.num_columns(expert=False) is not None and count(inputs) <= chunk_rows(tangents):
        features, outputs = tangents.features_and_outputs(inputs)
    if outputs is None:
        outputs = call(state.network, copied(to_device(inputs, state.device)))
    return outputs, features


def predict_uncalibrated(
    state: ModelState, inputs: Inputs, given: tuple[Tensor, Features | None] | None = None
) -> tuple[Tensor, LatentPrediction]:
    """The outputs [n, C] of the network, and the latent prediction for them; all must be finite. `given` is
    the result of `network_pass`, if known."""
    outputs, features = given or network_pass(state, inputs)
    return as_matrix(outputs), predict_latent(state, inputs, outputs, features)


def nbytes(state: ModelState) -> int:
    """Memory of the error bar in bytes, without the network."""
    maps = [tuple(mixture.tangents.state().values()) for mixture in state.mixtures]
    return sum(t.nbytes for t in state_tensors((state.mixtures, maps, state.witness)))


def describe(state: ModelState) -> str:
    """A few lines: network, rows, experts, tangents, size, likelihood, calibration."""
    origin, parameters = state.provenance, sum(value.numel() for value in state.network.parameters())
    kept = f"at most {state.directions} directions each" if state.directions else "which keep their rows"
    witness = "none" if state.witness is None else f"{len(state.witness.sizes):,} cells"
    first, *others = members_of(state.network)
    several = f"{1 + len(others)} x " if others else ""
    outputs = f"{state.shape.outputs:,} outputs ({origin.outputs})"
    thinned = f" ({origin.thinned})" if origin.thinned else ""
    facts = {
        "network": f"{several}{type(first).__name__}, {parameters:,} parameters, on {state.device}",
        "rows": f"{origin.rows:,}{thinned}, inputs {origin.structure}, {outputs}",
        "experts": f"{state.num_experts:,}, {kept}; witness: {witness}",
        "tangents": repr(origin.tangents),
        "size": size_text(nbytes(state)) + (f" ({origin.compressed})" if origin.compressed else ""),
        "likelihood": repr(state.likelihood),
        "calibration": _calibrated_on(state),
    }
    lines = (f"  {name}: {value}" for name, value in facts.items())
    return "\n".join(shorten(line, MAX_LINE, initial_indent="  ", placeholder=" ...") for line in lines)


def _calibrated_on(state: ModelState) -> str:
    """Which rows the calibration was fitted to, in words."""
    likelihood, held_out, split = state.likelihood, len(state.held_scores), state.provenance.split[1]
    if not likelihood.calibrated:
        return "none, the variance is that of the evidence"
    if not held_out:
        return "none, there were no rows for it"
    if split:
        return f"{split:,} training rows that the experts did not see"
    if likelihood.fitted_to_left_out(state.calibrations):
        return f"{held_out:,} training rows, left out in turn"
    return f"{held_out:,} validation rows"


def _predict_from_outputs(
    state: ModelState, inputs: Inputs, outputs: Tensor | StatedOutputs, features: Features | None
) -> Prediction:
    """Calibrated prediction; rows that are not finite, or whose gradient overflows, are not valid."""
    checked = inputs if state.witness is not None else (inputs, outputs)  # its mean has the outputs in it
    sums: list[Any] = [x.sum().tolist() for x in leaves(checked) if x.is_floating_point()]
    if all(map(math.isfinite, sums)):  # a quick sufficient test
        latent = predict_latent(state, inputs, outputs, features)
        if latent.all_finite():
            valid = torch.ones(count(inputs), dtype=torch.bool, device=mean_of(outputs).device)
            return _calibrated(state, outputs, latent, valid)
    valid = finite_rows(inputs) & finite_rows(outputs)
    index, again = valid.nonzero().flatten(), outputs
    if 0 < len(index) < len(valid):
        # Finite rows are predicted as if the others were not there, to the bit.
        outputs, again, features = mean_of(outputs).clone(), call(state.network, take(inputs, index)), None
        outputs[valid] = mean_of(again)  # pyright: ignore[reportIndexIssue]
    latent = _no_rows(state)
    if len(index):
        latent = predict_latent(state, take(inputs, index), again, features)
    if not latent.all_finite():
        sound = latent.finite()
        latent = latent.take(sound)
        valid[valid.clone()] = sound
    latent = latent if len(latent.expert) == len(valid) else latent.spread(valid)
    return _calibrated(state, outputs, latent, valid)


def _calibrated(
    state: ModelState, outputs: Tensor | StatedOutputs, latent: LatentPrediction, valid: Tensor
) -> Prediction:
    return state.likelihood.prediction(
        mean_of(outputs), latent, state.device_calibrations, valid, state.reference_scores
    )


def _no_rows(state: ModelState) -> LatentPrediction:
    width, device = sum(len(mixture.experts[0].scale) for mixture in state.mixtures), state.device
    blank = torch.zeros(0, width, dtype=torch.float64, device=device)
    expert = torch.zeros(0, len(state.mixtures), dtype=torch.int64, device=device)
    names = ("witness_mean", "witness_precision", "log_leverage", "log_noise", "log_stated")
    return LatentPrediction(blank, blank, blank, blank, blank, expert, **dict.fromkeys(names, blank))


def inputs_of(state: ModelState, batch: Any) -> Inputs:
    """The inputs in what the user passed: the inputs alone, or a pair of inputs and targets."""
    return inputs_like(batch, state.network, state.provenance.structure, state.provenance.kinds)


def read_like(state: ModelState, source: Any, *, name: str, unpack: Unpack | None = None) -> Rows:
    """Rows with targets, refused where the network cannot take them as it took those of the fit."""
    rows = read_rows(source, name=name, unpack=unpack, network=state.network)
    given, wanted = structure(rows.first), state.provenance.structure
    if given != wanted:
        raise ValueError(f"{name} have the structure {given}; the model was fitted on {wanted}.")
    check_dimensions(rows.first, state.provenance.kinds, name)
    probe(state.network, rows.first, name)
    return rows


def require_support(model: Any, name: str) -> None:
    """Raise, with the reason, where the public function `name` does not take fitted models of this kind."""
    if not isinstance(model, FittedModel):
        raise TypeError(f"model is a {type(model).__name__}; pass what trustgp.fit or trustgp.load gave.")
    if name in model.UNSUPPORTED:
        raise ValueError(f"trustgp.{name} is not for a {type(model).__name__}: {model.UNSUPPORTED[name]}.")


def of_state(name: str, doc: str) -> Any:
    """Property of a fitted model that returns the attribute `name` of its state."""
    return property(attrgetter(f"state.{name}"), doc=doc)


class FittedModel(nn.Module):
    """A module around a state. It moves between devices; its mode and precision cannot be changed."""

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {}  # public functions that do not take it, and why
    state: Any
    predict: Any  # inputs in, the network's own output with its error bar out
    held_scores: Tensor = of_state(
        "held_scores", "Novelty of held-out rows or detections, float64, [k]; empty where there were none."
    )
    novelty_threshold: NoveltyThreshold | None = of_state(
        "threshold", "Threshold of the novelty, with its false alarms; None before `threshold` is called."
    )

    def forward(self, inputs: Any) -> Any:
        """Return the result of `predict`."""
        return self.predict(inputs)

    @cpu_default()
    def _with_threshold(self, scores: Tensor, false_alarm: float) -> float:
        """Fit the threshold to held-out scores [k], store it in the state, and return it."""
        fitted = NoveltyThreshold.fit(scores, false_alarm)
        self.state = replace(self.state, threshold=fitted)
        return float(fitted.threshold)

    def train(self, mode: bool = True) -> Self:
        """Do nothing: the network stays in the mode in which it was fitted."""
        return self

    def _apply(self, fn, recurse: bool = True) -> Self:
        """Move to another device; the precision stays as it was fitted."""
        kept = {value.dtype for value in (*self.parameters(), *self.buffers())} | {torch.float64}
        if any(fn(torch.empty(0, dtype=dtype)).dtype != dtype for dtype in kept):
            raise TypeError(
                "a fitted model keeps its precision; move it with .to(device) only. Pass inputs in that of "
                "its network, or fit the network in another."
            )
        return super()._apply(fn, recurse)
