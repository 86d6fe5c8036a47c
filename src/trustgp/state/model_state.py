"""What a fitted model consists of, and what it answers: functions of `ModelState`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from textwrap import shorten
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..data.chunking import chunks
from ..data.quantities import size_text
from ..data.rows import Rows, Unpack, as_pair, batches_of, finite_rows, is_stream, read_rows
from ..data.torch_modes import without_autocast
from ..data.trees import (
    Inputs,
    as_inputs,
    check_dimensions,
    copied,
    count,
    kinds,
    leaves,
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
from ..math.calibration import CalibrationRows
from ..tangents.base import Features, TangentMap, Tangents
from ..tangents.network import as_matrix, call, probe
from ..tangents.probes import Probes

REMEMBERED = 64  # shapes of inputs
WIDEST = 110  # letters of a line that describes a model
LOADED = 1024  # rows of a Dataset that are predicted at a time
TOGETHER = 2**24  # bytes of features that are made in one go with the outputs, chunk by chunk


class SharedForward:
    """Outputs of the network, to the bit, and the features of the rows where the same pass gives both. To the
    bit is what has to be seen: a network may take other ways while its layers are watched, such as a fused
    attention. So of inputs of a new shape both passes are made, and compared."""

    def __init__(self) -> None:
        self._dimensions: dict[tuple, int] = {}  # of the outputs, by the inputs' shapes; 0: they differ

    def __call__(
        self, network: nn.Module, tangents: TangentMap, inputs: Inputs
    ) -> tuple[Tensor, Features | None]:
        """The outputs of inputs on the network's device, and their features where they came with them."""
        shapes = tuple((tuple(leaf.shape), leaf.dtype, leaf.device) for leaf in leaves(inputs))
        known = self._dimensions.get(shapes)
        explicit = tangents.num_columns(expert=False) is not None  # such features may be short
        short = TOGETHER // max(1, tangents.row_bytes()) if explicit else 0
        if known == 0 or count(inputs) > max(chunk_rows(tangents), short):
            return call(network, copied(inputs)), None
        try:
            features, seen = tangents.with_outputs(inputs)
        except torch.OutOfMemoryError:  # of a GPU: elsewhere it is done in smaller chunks
            return call(network, copied(inputs)), None
        if known and seen is not None:
            return (seen if known == 2 else seen[:, 0]), features
        outputs = call(network, copied(inputs))
        if known is None and bool(torch.isfinite(outputs).all()):  # else equality says nothing
            if len(self._dimensions) >= REMEMBERED:
                self._dimensions.clear()
            same = seen is not None and seen.dtype == outputs.dtype and torch.equal(seen, as_matrix(outputs))
            self._dimensions[shapes] = outputs.ndim if same else 0
        return outputs, features


@dataclass(frozen=True)
class Training:
    """What `update` needs beside the model: the rows, and the experts' left-out rows."""

    rows: Rows
    groups: Tensor | None
    validation: Rows | None
    partitions: tuple[Partition, ...]
    solved: tuple[tuple[Solved, ...], ...]
    far: CalibrationRows | None = None  # rows of left-out clusters


@dataclass(frozen=True)
class Provenance:
    """Where a model comes from: plain values that are saved with it."""

    network: str  # fingerprint of the network
    data: str  # fingerprint of the training rows
    rows: int  # how many there were
    structure: str  # of the inputs
    outputs: str  # "shared", "separate" or "pseudo"
    tangents: Tangents  # the representation, with its settings
    names: tuple[str, ...]  # the chosen parameters
    likelihood: Likelihood  # what the targets are
    lend: tuple[int, ...]  # the rows from each neighbour, per kernel
    seed: int  # of the fit
    witness: Witness | None  # how the second opinion was formed; None: there is none
    split: tuple[int, int] = (0, 0)  # rows that were given, and those of them kept from the experts
    compressed: str = ""  # how the model was made smaller after the fit, in words; empty: it was not
    rank: int | None = None  # the most directions that an expert keeps; None: all
    size: int | None = None  # the most bytes that it may hold, as its budget had it; None: any
    weights: Mapping[str, str] = field(default_factory=dict)  # fingerprints of the weights, by precision
    kinds: tuple[str, ...] = ()  # of a row of the inputs, "float32[3]" each; empty: files of before


@dataclass(frozen=True, eq=False)
class ModelState:
    """A network and its error bar. Everything that is done with it is a function of it, or makes another."""

    network: nn.Module  # a private copy of the user's
    mixtures: tuple[Mixture, ...]  # one per kernel
    provenance: Provenance  # holds the likelihood
    calibrations: Calibrations = ()  # what the likelihood has learnt from held-out rows
    witness: WitnessState | None = None  # the second opinion
    training: Training | None = None  # what `update` needs; None after loading
    # novelty scores of the held-out rows, float64, [k]; empty where there were none
    held_scores: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    threshold: NoveltyThreshold | None = None  # of the novelty score; None: none was fitted
    probes: Probes | None = None  # what the network did in the fit; None: it is not known
    # runs the network once for outputs and features, where that can be
    forward: SharedForward = field(default_factory=SharedForward, repr=False)

    @cached_property
    def reference_scores(self) -> ReferenceScores:
        """The held-out scores, with the threshold, or the usual one where none was fitted."""
        return ReferenceScores.of(self.held_scores, self.threshold)

    @property
    def likelihood(self) -> Likelihood:
        return self.provenance.likelihood

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def shape(self) -> Shape:
        """The sizes on which calibrations depend."""
        mix = self.mixtures[0].tangents.mix
        return Shape(mix.shape[1], tuple(len(mixture.experts) for mixture in self.mixtures))

    @property
    def directions(self) -> int:
        """The most that an expert keeps; 0: experts keep rows."""
        return max(mixture.directions for mixture in self.mixtures)

    @property
    def num_experts(self) -> int:
        """Experts of all kernels together."""
        return sum(self.shape.experts)


def changed_behaviour(state: ModelState) -> str:
    """What the network does otherwise than in the fit, in words; empty: nothing, or it is not known."""
    return "" if state.probes is None else state.probes.difference(state.mixtures[0].tangents.network)


@torch.no_grad()
def predict(
    state: ModelState, inputs: Any, *, batch_size: int | None = None, unpack: Unpack | None = None
) -> Prediction:
    """The network's own output, with its error bar; see `UncertaintyModel.predict`."""
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ValueError(f"batch_size={batch_size!r}; a whole number of at least 1 is needed, or None.")
    batches = batches_of(inputs, batch_size or LOADED)[0] if is_stream(inputs) else [inputs]
    parts: list[Prediction] = []
    for batch in batches:
        batch = batch if unpack is None else as_pair(batch, "a batch", unpack)[0]
        rows = inputs_of(state, batch)
        n = count(rows)
        lots = [None] if batch_size is None or n <= batch_size else chunks(n, batch_size)
        parts += [_predict_lot(state, rows if index is None else take(rows, index)) for index in lots]
    if not parts:
        raise ValueError("the loader holds no rows.")
    return parts[0] if len(parts) == 1 else Prediction.cat(parts)


def _predict_lot(state: ModelState, inputs: Inputs) -> Prediction:
    """Of tensors; where they are unlike those of the fit, and that goes wrong, it is the reason given."""
    try:
        with without_autocast(state.device.type):
            return predict_variants([state], inputs)[0]
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


def predict_latent(
    state: ModelState, inputs: Inputs, outputs: Tensor, features: Features | None = None
) -> LatentPrediction:
    """What experts and witness say before calibration of finite inputs and outputs, [n] or [n, C], on any
    device; `features` are those of the first kernel, where they are known."""
    first, *others = state.mixtures
    parts = [first.raw(inputs, features), *(mixture.raw(inputs) for mixture in others)]
    raw = LatentPrediction.cat(parts, dim=1)
    if state.witness is None:
        return raw
    said = state.witness(to_device(inputs, state.device))
    residual = said.mean - as_matrix(outputs).double()
    return replace(raw, witness_mean=residual, witness_precision=said.precision)


def answers(state: ModelState, inputs: Inputs) -> tuple[Tensor, LatentPrediction]:
    """The network's outputs [n, C], and what experts and witness say of them; all must be finite."""
    outputs, features = outputs_and_features(state, inputs)
    return outputs, predict_latent(state, inputs, outputs, features)


def outputs_and_features(state: ModelState, inputs: Inputs) -> tuple[Tensor, Features | None]:
    """The network's outputs [n, C], and features of the first kernel where one pass gives both."""
    tangents, features, outputs = state.mixtures[0].tangents, None, None
    if tangents.num_columns(expert=False) is not None and count(inputs) <= chunk_rows(tangents):
        features, outputs = tangents.features_and_outputs(inputs)  # one pass gives both
    if outputs is None:
        outputs = as_matrix(call(state.network, copied(to_device(inputs, state.device))))
    return outputs, features


def nbytes(state: ModelState) -> int:
    """What the error bar holds in memory, the network itself not counted."""
    maps = [tuple(mixture.tangents.state().values()) for mixture in state.mixtures]
    return sum(t.nbytes for t in state_tensors((state.mixtures, maps, state.witness)))


def describe(state: ModelState) -> str:
    """What there is, in a few lines: network, rows, experts, tangents, size, likelihood, calibration."""
    known, parameters = state.provenance, sum(value.numel() for value in state.network.parameters())
    kept = f"at most {state.directions} directions each" if state.directions else "which keep their rows"
    said = "none" if state.witness is None else f"{len(state.witness.sizes):,} cells"
    outputs = f"{state.shape.outputs:,} outputs ({known.outputs})"
    facts = {
        "network": f"{type(state.network).__name__}, {parameters:,} parameters, on {state.device}",
        "rows": f"{known.rows:,}, inputs {known.structure}, {outputs}",
        "experts": f"{state.num_experts:,}, {kept}; witness: {said}",
        "tangents": repr(known.tangents),
        "size": size_text(nbytes(state)) + (f" ({known.compressed})" if known.compressed else ""),
        "likelihood": repr(state.likelihood),
        "calibration": _calibrated_on(state),
    }
    lines = (f"  {name}: {value}" for name, value in facts.items())
    return "\n".join(shorten(line, WIDEST, initial_indent="  ", placeholder=" ...") for line in lines)


def _calibrated_on(state: ModelState) -> str:
    """From which rows it is known how large the error bar must be."""
    likelihood, held, split = state.likelihood, len(state.held_scores), state.provenance.split[1]
    if not likelihood.calibrated:
        return "none, the variance is what the evidence says"
    if not held:
        return "none, there were no rows for it"
    if split:
        return f"{split:,} training rows that were kept from the experts"
    if likelihood.fitted_to_left_out(state.calibrations):
        return f"{held:,} training rows, left out in turn"
    return f"{held:,} validation rows"


def predict_variants(states: Sequence[ModelState], inputs: Inputs) -> list[Prediction]:
    """What forms of one model say of the same inputs: the network runs once for all."""
    first, inputs = states[0], to_device(inputs, states[0].device)
    outputs, features = first.forward(first.network, first.mixtures[0].tangents, inputs)
    return [_told(state, inputs, outputs, features) for state in states]


def _told(state: ModelState, inputs: Inputs, outputs: Tensor, features: Features | None) -> Prediction:
    if _all_finite((inputs, outputs)):
        good = torch.ones(count(inputs), dtype=torch.bool, device=outputs.device)
        raw = predict_latent(state, inputs, outputs, features)
        sound = good if raw.all_finite() else raw.finite()  # a gradient may overflow where they are finite
        raw, known = (raw, good) if sound is good else (raw.take(sound).spread(sound), sound)
    else:
        good = finite_rows(inputs) & finite_rows(outputs)
        if bool(good.any()) and not bool(good.all()):
            # Rows that are whole must come out as if the others were not there, to the bit.
            outputs = outputs.clone()
            outputs[good] = call(state.network, take(inputs, good.nonzero().flatten()))
        raw, known = _known(state, inputs, outputs, good)
    return state.likelihood.prediction(outputs, raw, state.calibrations, known, state.reference_scores)


def _all_finite(values: Any) -> bool:
    """Whether no number is NaN or infinite; where their sum overflows it says no, too."""
    sums: list[Any] = [leaf.sum().tolist() for leaf in leaves(values) if leaf.is_floating_point()]
    return all(map(math.isfinite, sums))


def _known(
    state: ModelState, inputs: Inputs, outputs: Tensor, good: Tensor
) -> tuple[LatentPrediction, Tensor]:
    """What the experts say of the good rows, and for which rows it is finite, shape [n]."""
    if not bool(good.any()):  # as experts that tell so many numbers would answer
        told = sum(len(mixture.experts[0].scale) for mixture in state.mixtures)
        blank = outputs.new_zeros(0, told, dtype=torch.float64)
        expert = torch.zeros(0, len(state.mixtures), dtype=torch.int64, device=outputs.device)
        told = LatentPrediction(blank, blank, blank, blank, blank, expert, blank, blank)
        return told.spread(good), good
    chosen = good.nonzero().flatten()
    raw = predict_latent(state, take(inputs, chosen), outputs[chosen])
    sound = raw.finite()
    known = good.clone()
    known[good] = sound
    raw = raw if bool(sound.all()) else raw.take(sound)
    return (raw if bool(known.all()) else raw.spread(known)), known


def inputs_of(state: ModelState, batch: Any) -> Inputs:
    """The inputs in what the user passed: themselves, or the first of a pair with targets."""
    inputs, wanted = as_inputs(batch, state.network), state.provenance.structure
    given = structure(inputs)
    if given != wanted:
        pair = isinstance(inputs, (tuple, list)) and len(inputs) in (1, 2)
        if not (pair and structure(inputs[0]) == wanted):
            raise ValueError(
                f"inputs have the structure {given}; the model was fitted on {wanted}. Pass them as the "
                "network takes them, or say where they are: unpack=lambda batch: (inputs, targets)."
            )
        inputs = inputs[0]
    check_dimensions(inputs, state.provenance.kinds, "inputs")
    if count(inputs) == 0:
        raise ValueError("inputs hold no rows.")
    return inputs


def read_like(state: ModelState, source: Any, *, name: str, unpack: Unpack | None = None) -> Rows:
    """Rows with targets, refused where the network cannot take them as it took those of the fit."""
    rows = read_rows(source, name=name, unpack=unpack, network=state.network)
    given, wanted = structure(rows.first), state.provenance.structure
    if given != wanted:
        raise ValueError(f"{name} have the structure {given}; the model was fitted on {wanted}.")
    check_dimensions(rows.first, state.provenance.kinds, name)
    probe(state.network, rows.first, name)
    return rows


def of_state(name: str, said: str) -> Any:
    """A property of a fitted model that its state has, by its name there."""
    return property(attrgetter(f"state.{name}"), doc=said)


class FittedModel(nn.Module):
    """A shell around a state: moves between devices; neither its mode nor its precision can be changed."""

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {}  # public functions that do not take it, and why
    state: Any
    predict: Any  # inputs in, the network's own output with its error bar out
    held_scores: Tensor = of_state(
        "held_scores", "Novelty of held-out rows or detections, float64, [k]; empty where there were none."
    )
    novelty_threshold: NoveltyThreshold | None = of_state(
        "threshold", "Of the novelty score, with its false alarms; None before `threshold` was called."
    )
    alarm: NoveltyThreshold | None = of_state("threshold", "Deprecated name of `novelty_threshold`.")

    def forward(self, inputs: Any) -> Any:
        """The same as `predict`."""
        return self.predict(inputs)

    def _with_threshold(self, scores: Tensor, false_alarm: float) -> float:
        """The threshold for held-out scores [k], from now on that of the state."""
        found = NoveltyThreshold.fit(scores, false_alarm)
        self.state = replace(self.state, threshold=found)
        return float(found.threshold)

    def train(self, mode: bool = True) -> Self:
        """Does nothing: the network stays in the mode in which it was fitted."""
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
