"""What a state answers, and what it holds: functions of `ModelState`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..data.rows import finite_rows
from ..data.trees import Inputs, as_inputs, copied, count, state_tensors, structure, take, to_device
from ..experts.mixture import LatentPrediction
from ..likelihoods.prediction import Prediction
from ..tangents.base import Features
from ..tangents.network import as_matrix, call
from .model_state import ModelState


@torch.no_grad()
def predict(state: ModelState, inputs: Any) -> Prediction:
    """The network's own output, with its error bar.

    Args:
        state: Fitted.
        inputs: A tensor, tuple or dict as the network takes them, or a Dataset or DataLoader of inputs or of
            (inputs, targets).
    """
    if isinstance(inputs, (DataLoader, Dataset)):
        loader = inputs if isinstance(inputs, DataLoader) else DataLoader(inputs, batch_size=1024)
        parts = [_predict(state, _inputs_of(state, batch)) for batch in loader]
        if not parts:
            raise ValueError("the loader holds no rows.")
        return Prediction.cat(parts)
    return _predict(state, _inputs_of(state, inputs))


def predict_latent(
    state: ModelState, inputs: Inputs, outputs: Tensor, features: Features | None = None
) -> LatentPrediction:
    """What experts and witness say before calibration.

    Args:
        state: Fitted.
        inputs: Finite, on any device.
        outputs: The network's, shape [n] or [n, C].
        features: Of the first kernel, where they are known.
    """
    first, *others = state.mixtures
    raw = LatentPrediction.join([first.raw(inputs, features), *(mixture.raw(inputs) for mixture in others)])
    if state.witness is None:
        return raw
    said = state.witness(to_device(inputs, state.device))
    residual = said.mean - as_matrix(outputs).double()
    return replace(raw, witness_mean=residual, witness_precision=said.precision)


def answers(state: ModelState, inputs: Inputs) -> tuple[Tensor, LatentPrediction]:
    """The network's outputs [n, C], and what experts and witness say of them; all must be finite."""
    outputs = as_matrix(call(state.network, copied(to_device(inputs, state.device))))
    return outputs, predict_latent(state, inputs, outputs)


def calibration_rows(state: ModelState, inputs: Inputs, targets: Tensor) -> Any:
    """Rows with known targets, as the calibration wants them."""
    return state.likelihood.calibration_rows(*answers(state, inputs), targets)


def nbytes(state: ModelState) -> int:
    """What the error bar holds in memory, the network itself not counted."""
    maps = [tuple(mixture.tangents.state().values()) for mixture in state.mixtures]
    return sum(t.numel() * t.element_size() for t in state_tensors((state.mixtures, maps, state.witness)))


def bound(state: ModelState) -> Tensor:
    """Share of squared kernel mass that falls between experts, the mean over kernels."""
    return torch.stack([mixture.bound for mixture in state.mixtures]).mean()


def failed(state: ModelState) -> list[tuple[int, int]]:
    """Experts that could not be solved and answer with the prior, as (kernel, expert)."""
    return [
        (k, e)
        for k, mixture in enumerate(state.mixtures)
        for e, expert in enumerate(mixture.experts)
        if expert.failed
    ]


def _predict(state: ModelState, inputs: Inputs) -> Prediction:
    inputs = to_device(inputs, state.device)
    outputs, features = state.forward(state.network, state.mixtures[0].tangents, inputs)
    good = finite_rows(inputs) & finite_rows(outputs)
    if not bool(good.all()) and bool(good.any()):
        # Rows that are whole must come out as if the others were not there, to the bit.
        outputs = outputs.clone()
        outputs[good] = call(state.network, take(inputs, good.nonzero().flatten()))
    raw, known = _known(state, inputs, outputs, features, good)
    prediction = state.likelihood.prediction(outputs, raw, state.calibrations)
    limit = None if state.threshold is None else float(state.threshold.threshold)
    inner = {
        name: replace(value, valid=known, _threshold=limit)
        for name in ("_corrected", "_plain")
        if (value := getattr(prediction, name)) is not None
    }
    return replace(prediction, valid=known, _threshold=limit, **inner)


def _known(
    state: ModelState, inputs: Inputs, outputs: Tensor, features: Features | None, good: Tensor
) -> tuple[LatentPrediction, Tensor]:
    """What the experts say of the good rows, and for which rows it is finite, shape [n]."""
    if not bool(good.any()):
        told = sum(len(mixture.experts[0].scale) for mixture in state.mixtures)
        return _nothing_known(outputs, told, len(state.mixtures)), good
    whole = bool(good.all())
    chosen = good.nonzero().flatten()
    if whole:
        raw = predict_latent(state, inputs, outputs, features)
    else:
        raw = predict_latent(state, take(inputs, chosen), outputs[chosen])
    sound = raw.finite()  # a gradient may overflow where input and output are finite
    known = good.clone()
    known[good] = sound
    if bool(sound.all()):
        return (raw if whole else raw.spread(known)), known
    return raw.take(sound).spread(known), known


def _nothing_known(outputs: Tensor, told: int, gates: int) -> LatentPrediction:
    """For a batch without a single finite row, as experts that tell so many numbers would answer."""
    blank = outputs.new_zeros(0, told, dtype=torch.float64)
    expert = torch.zeros(0, gates, dtype=torch.int64, device=outputs.device)
    rows = torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
    return LatentPrediction(blank, blank, blank, blank, blank, expert, blank, blank).spread(rows)


def _inputs_of(state: ModelState, batch: Any) -> Inputs:
    """The inputs in what the user passed: themselves, or the first of a pair with targets."""
    inputs = as_inputs(batch)
    wanted = state.provenance.structure
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
