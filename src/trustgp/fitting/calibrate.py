"""The last stage: what a model learns from rows that its experts have not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import at_once, chunks, evenly, row_bytes
from ..data.rows import Rows
from ..data.user_warnings import warn_user
from ..executors.progress import Reporter
from ..experts.features import chunk_rows
from ..experts.mixture import Mixture
from ..experts.witness import WitnessPrediction
from ..experts.witness_fit import groups_left_out
from ..likelihoods.base import NoveltyThreshold
from ..math.calibration import CalibrationRows, needed_rows
from ..state.model_state import ModelState, Training, outputs_and_features, predict_latent

MOST_TOGETHER, TOGETHER = 2**16, 32 * 2**20  # held-out rows, and their bytes, answered together


def calibrate(state: ModelState, report: Reporter) -> ModelState:
    """The scale fitted to the validation rows, else to the groups, else left at the defaults; the state knows
    what it was trained on."""
    likelihood, training, witness = state.likelihood, state.training, state.witness
    assert training is not None, "a model that is fitted knows its rows"
    held_out, scores = None, state.held_scores
    if training.validation is not None:
        ((held_out, scores),) = _answered([state], training.validation, report)
    elif training.groups is not None:
        said = None if witness is None else groups_left_out(witness, training.groups)
        parts, scores = _left_out(state.mixtures, training, said)
        held_out = CalibrationRows.cat(parts) if parts else None
    seen = state.provenance.split[1] > 0
    calibrations = likelihood.calibrate(held_out, state.shape, training.rows.targets, seen=seen)
    reason = "" if held_out is None else likelihood.calibration_warning(held_out, calibrations)
    if reason:
        warn_user(reason)
    return replace(state, calibrations=calibrations, held_scores=scores)


def recalibrate(state: ModelState, rows: Rows, report: Reporter) -> ModelState:
    """The scale, and the threshold if there is one, fitted to other rows that neither the network nor the
    experts have seen. What only training rows can tell (see `unruled`) stays as it is."""
    return recalibrate_forms([state], rows, report)[0]


def recalibrate_forms(states: Sequence[ModelState], rows: Rows, report: Reporter) -> list[ModelState]:
    """The same of forms of one model: features of the rows are made once for all."""
    likelihood, shape, found = states[0].likelihood, states[0].shape, []
    likelihood.check(shape.outputs, rows.targets, name="validation")
    for state, (held_out, scores) in zip(states, _answered(states, rows, report), strict=True):
        calibrations = likelihood.recalibrate(held_out, shape, state.calibrations)
        threshold = threshold_again(state.threshold, scores)
        found.append(replace(state, calibrations=calibrations, held_scores=scores, threshold=threshold))
    return found


def threshold_again(threshold: NoveltyThreshold | None, scores: Tensor) -> NoveltyThreshold | None:
    """The threshold on the scores as they are now; None where there are too few held-out rows at hand."""
    if threshold is None or len(scores) < needed_rows(1.0 - float(threshold.false_alarm)):
        return None
    return NoveltyThreshold.fit(scores, float(threshold.false_alarm))


@torch.no_grad()
def _answered(states: Sequence[ModelState], rows: Rows, report: Reporter) -> list[tuple[Any, Tensor]]:
    """Validation rows, chunk by chunk, by each form of a model: as the likelihood wants them, and their
    novelty scores [n]."""
    state, found = states[0], [([], []) for _ in states]
    likelihood = state.likelihood
    size = row_bytes(rows.first) + 80 * state.shape.outputs
    # many rows at a time, so that an expert is asked few times; as many as one pass takes where it gives all
    tangents = state.mixtures[0].tangents
    most = MOST_TOGETHER if tangents.num_columns(expert=False) is None else chunk_rows(tangents)
    parts = list(chunks(len(rows), max(1, min(most, at_once(TOGETHER, state.device) // size))))
    for index in report.track(parts, stage="calibrating", total=len(parts), rows=len):
        inputs, targets = rows.batch(index)
        outputs, features = outputs_and_features(state, inputs)
        for form, (held, scores) in zip(states, found, strict=True):
            raw = predict_latent(form, inputs, outputs, features)
            held.append(likelihood.calibration_rows(outputs, raw, targets))
            scores.append(likelihood.score(raw).cpu())
    return [(type(held[0]).cat(held), torch.cat(scores)) for held, scores in found]


def _left_out(
    mixtures: tuple[Mixture, ...], training: Training, said: WitnessPrediction | None
) -> tuple[list[CalibrationRows], Tensor]:
    """The left-out groups of all experts, with the steadied scales that predictions use, and the novelty of
    their rows, the mean over the outputs; rows held by no expert are not among them.

    `said` is what the witness says of all training rows, their groups left out; None: there is none.
    """
    parts = []
    total = torch.zeros(len(training.rows), dtype=torch.float64)
    told = torch.zeros(len(training.rows), dtype=torch.int64)
    for mixture, solved in zip(mixtures, training.solved, strict=True):
        for log_kappa, result in zip(mixture.log_kappa, solved, strict=True):
            if result.held_out is None:
                continue
            own = result.expert.rows[: int(result.expert.own)]
            own = own[evenly(len(own), len(result.held_out) // len(log_kappa))]  # of many some are judged
            held = replace(result.held_out, log_kappa=log_kappa.repeat(len(own)))
            if said is not None:
                held = _with_witness(held, said, own, mixture.outputs, training.rows.targets)
            parts.append(held)
            rows, novelty = own.cpu(), held.novelty.cpu().reshape(len(own), -1)
            total[rows] += novelty.sum(dim=1)
            told[rows] += novelty.shape[1]
    whole = told == sum(len(mixture.outputs) for mixture in mixtures)
    return parts, total[whole] / told[whole]


def _with_witness(
    held: CalibrationRows, said: WitnessPrediction, rows: Tensor, outputs: Tensor, targets: Tensor
) -> CalibrationRows:
    """Left-out rows with the witness: its error is y - g, so it expects y - f less that error."""
    place = said.mean.device
    rows, outputs = rows.to(place), outputs.to(place)
    error = (targets.to(said.mean) - said.mean)[rows][:, outputs].flatten()
    return replace(
        held,
        witness_mean=held.residual - error.to(held.residual.device),
        witness_precision=said.precision[rows][:, outputs].flatten().to(held.residual.device),
    )
