"""Whole predictions on a GPU, captured as CUDA graphs: network, features, experts, witness and likelihood.

No value is read back inside a call: rows that are not finite are computed like others, then masked.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ..data.trees import Inputs, copied, leaves
from ..experts.mixture import LatentPrediction
from ..likelihoods.base import COMMON
from ..likelihoods.prediction import Prediction
from ..tangents.network import call
from ..tangents.outputs import mean_of
from ..tangents.replay import Branch, Computed, Replay
from .latent import predict_latent

LOGGER = logging.getLogger("trustgp")
ENABLED = True  # whether whole predictions are recorded; the gradients of a call are recorded without it
MAX_DIFFERENCE = 0.05  # of a replayed prediction: the network may round differently
LATENT = "latent "  # prefix for the fields of latent predictions, from which lazy ones are made


class PackedRows:
    """Layout of the tensors of a prediction of n rows, as columns of one matrix per precision; values that
    are the same for all rows are stored once."""

    def __init__(self, kind: type[Prediction], values: dict[str, Any]) -> None:
        self.kind, self.constants, self.plain = kind, {}, {}
        self.names: dict[torch.dtype, list[tuple[str, torch.Size, bool]]] = {}
        self.widths: dict[torch.dtype, list[int]] = {}
        self._columns: dict[torch.dtype, list[Tensor]] = {}
        for name, value in values.items():
            if not isinstance(value, Tensor):
                self.plain[name] = value
            elif value.shape[0] > 1 and value.stride(0) == 0:
                self.constants[name] = value[:1]
            else:
                repeated = value.ndim == 2 and value.shape[1] > 1 and value.stride(1) == 0
                column = (value[:, :1] if repeated else value).reshape(value.shape[0], -1)
                self.names.setdefault(value.dtype, []).append((name, value.shape[1:], repeated))
                self.widths.setdefault(value.dtype, []).append(column.shape[1])
                self._columns.setdefault(value.dtype, []).append(column)

    def pack(self) -> tuple[Tensor, ...]:
        """Return the matrices, and drop the columns they were made from."""
        columns, self._columns = self._columns, {}
        return tuple(torch.cat(lot, dim=1) for lot in columns.values())

    def unpack(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        """All values by name, as views of the matrices."""
        n = tensors[0].shape[0]
        values = self.plain | {k: v.expand(n, *v.shape[1:]) for k, v in self.constants.items()}
        for tensor, (dtype, names) in zip(tensors, self.names.items(), strict=True):
            for (name, shape, repeated), value in zip(
                names, tensor.split(self.widths[dtype], 1), strict=True
            ):
                value = value if len(shape) == 1 else value.reshape(n, *shape)
                values[name] = value.expand(n, *shape) if repeated else value
        return values


class Recordings:
    """Recorded predictions of one state."""

    def __init__(self) -> None:
        self._replay: Replay | None = None
        self._reason: str | None = None  # why there are none; empty: there are

    def __getstate__(self) -> dict[str, Any]:
        return vars(Recordings())

    def __call__(self, state: Any, inputs: Inputs) -> Prediction | None:
        """The prediction for inputs on the GPU; None where such a model cannot be recorded."""
        if self._reason is None:
            self._reason = unrecordable(state)
            owner = weakref.ref(state)
            self._replay = Replay(lambda rows: _work(owner(), rows), MAX_DIFFERENCE, min_launches=0.0)
            if self._reason:
                LOGGER.info("predictions are not recorded as CUDA graphs: %s", self._reason)
        if self._reason or self._replay is None:
            return None
        tensors, outputs, layout = self._replay(inputs, row_bytes(state))
        outputs = mean_of(call(state.network, copied(inputs))) if outputs is None else outputs
        values = layout.unpack(tensors)
        raw = {k.removeprefix(LATENT): values.pop(k) for k in list(values) if k.startswith(LATENT)}
        cached = {name: values.pop(name) for name in layout.kind.RECORDED}
        common = {name: values[name] for name in COMMON}
        later = state.likelihood.later(
            outputs, lambda: LatentPrediction(**raw), state.device_calibrations, common
        )
        prediction = layout.kind(mean=outputs, **values, **later)
        vars(prediction).update(cached)
        return prediction


def unrecordable(state: Any) -> str:
    """Why predictions of a model on a GPU cannot be recorded; empty: they can."""
    if not ENABLED:
        return "it is switched off (trustgp.state.recording.ENABLED)"
    if any(mixture.stack is None for mixture in state.mixtures):
        return "its experts keep rows"
    if any(mixture.tangents.separately_differentiated for mixture in state.mixtures):
        return "some parameters need passes of their own"
    return ""


def zeros_of(inputs: Inputs) -> Tensor:
    """Column [n, 1] that is 0 for finite rows, else NaN."""
    real = [leaf for leaf in leaves(inputs) if leaf.is_floating_point()]
    if not real:
        first = leaves(inputs)[0]
        return torch.zeros(first.shape[0], 1, dtype=torch.float64, device=first.device)
    sums = [(leaf.reshape(leaf.shape[0], -1) * 0.0).sum(dim=1, keepdim=True).double() for leaf in real]
    return sum(sums[1:], sums[0])


def row_bytes(state: Any) -> int:
    """Approximate working memory of a row, in bytes."""
    size = sum(m.tangents.working_bytes() + 12 * m.stack.basis[0].numel() for m in state.mixtures)
    return size + (0 if state.witness is None else 16 * state.witness.largest * len(state.witness.offset))


def _work(state: Any, inputs: Inputs) -> Computed:
    """The prediction and the values that its lazy predictions need, packed."""
    with Branch(state.device) as branch:  # the witness does not need the network
        zeros = zeros_of(inputs)
        witness = None if state.witness is None else state.witness(inputs)
        if witness is not None:
            _ = witness.precision, witness.log_noise, witness.nearest
    outputs, features = state.forward(state.network, state.mixtures[0].tangents, inputs)
    branch.join()
    latent, mean = predict_latent(state, inputs, outputs, features, witness), mean_of(outputs)
    # the witness's mean has the outputs in it
    latent, valid = latent.masked(zeros if witness is not None else zeros + zeros_of(mean))
    prediction = state.likelihood.prediction(
        mean, latent, state.device_calibrations, valid, state.reference_scores
    )
    lazy = {"mean", *state.likelihood.later(mean, lambda: latent, state.device_calibrations, {})}
    values = {f.name: getattr(prediction, f.name) for f in fields(prediction) if f.name not in lazy}
    values |= {name: getattr(prediction, name) for name in prediction.RECORDED}
    if len(lazy) > 1:
        values |= {LATENT + f.name: getattr(latent, f.name) for f in fields(latent)}
    layout = PackedRows(type(prediction), values)
    return Computed(layout.pack(), mean, layout)
