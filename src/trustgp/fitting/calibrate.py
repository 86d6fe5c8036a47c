"""The last stage: what a model learns from rows that its experts have not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import at_once, chunks, evenly, row_bytes
from ..data.rows import Rows
from ..data.user_warnings import warn_user
from ..executors.progress import Reporter
from ..experts.features import chunk_rows
from ..experts.witness import WitnessPrediction
from ..experts.witness_fit import groups_left_out
from ..likelihoods.base import NoveltyThreshold
from ..math.calibration import CalibrationRows, needed_rows
from ..math.calibration_fit import mean_by_output
from ..state.model_state import ModelState, Training, outputs_and_features, predict_latent

BY_HEART, MOST_ASKED = 3.0, 1024  # times as far off on rows not seen: a warning; rows that are asked
MOST_TOGETHER, TOGETHER = 2**16, 32 * 2**20  # held-out rows, and their bytes, answered together


def calibrate(state: ModelState, report: Reporter) -> ModelState:
    """The scale fitted to left-out training rows, and from there to the validation rows if there are any; the
    state knows what it was trained on."""
    likelihood, training, shape = state.likelihood, state.training, state.shape
    assert training is not None, "a model that is fitted knows its rows"
    held_out, measures, scores, targets = None, None, state.held_scores, training.rows.targets
    if training.validation is not None:
        held_out, measures = _answered(state, training.validation, report)
    if likelihood.leaves_out:
        left_out, familiar, places = _left_out(state, training)
        calibrations = likelihood.calibrate(left_out, shape, targets, far=training.far)
        if held_out is None:
            held_out, scores = left_out, familiar
            if left_out is not None and training.groups is None:
                _tell_of_memory(state, training.rows, places, left_out)
        else:
            calibrations = likelihood.recalibrate(held_out, shape, calibrations)
    else:
        seen = state.provenance.split[1] > 0
        calibrations = likelihood.calibrate(held_out, shape, targets, seen=seen)
    reason = "" if held_out is None else likelihood.calibration_warning(held_out, calibrations)
    if reason:
        warn_user(reason)
    scores = scores if measures is None else likelihood.score(measures, calibrations)
    return replace(state, calibrations=calibrations, held_scores=scores)


def recalibrate(state: ModelState, rows: Rows, report: Reporter) -> ModelState:
    """The scale, and the threshold if there is one, fitted to other rows that neither the network nor the
    experts have seen. What only training rows can tell (see `Rare`) stays as it is."""
    likelihood, shape = state.likelihood, state.shape
    likelihood.check(shape.outputs, rows.targets, name="validation")
    held_out, measures = _answered(state, rows, report)
    calibrations = likelihood.recalibrate(held_out, shape, state.calibrations)
    scores = likelihood.score(measures, calibrations)
    threshold = threshold_again(state.threshold, scores)
    return replace(state, calibrations=calibrations, held_scores=scores, threshold=threshold)


def threshold_again(threshold: NoveltyThreshold | None, scores: Tensor) -> NoveltyThreshold | None:
    """The threshold on the scores as they are now; None where there are too few held-out rows at hand."""
    if threshold is None or len(scores) < needed_rows(1.0 - float(threshold.false_alarm)):
        return None
    return NoveltyThreshold.fit(scores, float(threshold.false_alarm))


@torch.no_grad()
def _answered(state: ModelState, rows: Rows, report: Reporter) -> tuple[Any, Tensor]:
    """Validation rows, chunk by chunk: as the likelihood wants them, and their novelty measures [n, K]."""
    likelihood, held_out, measures = state.likelihood, [], []
    size = row_bytes(rows.first) + 80 * state.shape.outputs
    # many rows at a time, so that an expert is asked few times; as many as one pass takes where it gives all
    tangents = state.mixtures[0].tangents
    most = MOST_TOGETHER if tangents.num_columns(expert=False) is None else chunk_rows(tangents)
    parts = list(chunks(len(rows), max(1, min(most, at_once(TOGETHER, state.device) // size))))
    for index in report.track(parts, stage="calibrating", total=len(parts), rows=len):
        inputs, targets = rows.batch(index)
        outputs, features = outputs_and_features(state, inputs)
        raw = predict_latent(state, inputs, outputs, features)
        held_out.append(likelihood.calibration_rows(outputs, raw, targets))
        measures.append(likelihood.measures(raw).cpu())
    return type(held_out[0]).cat(held_out), torch.cat(measures)


@torch.no_grad()
def _tell_of_memory(state: ModelState, rows: Rows, places: Tensor, left_out: CalibrationRows) -> None:
    """Warn where the network is far closer to its training rows than it would be had it not seen them."""
    network, asked = state.mixtures[0].tangents.network, places[evenly(len(places), MOST_ASKED)]
    parts = [network.matrix(rows.take(part)).cpu() for part in asked.split(network.pass_rows(rows.first))]
    seen = state.likelihood.residual(torch.cat(parts), rows.targets[asked].cpu()).square().mean(dim=0)
    unseen = mean_by_output(left_out, left_out.residual.square(), len(seen))
    heard = unseen > 0
    times = float((unseen[heard] / seen[heard]).log().mean().div(2).exp())
    if times >= BY_HEART:
        warn_user(
            "the network has learnt its training rows by heart: on rows that it has not seen it is off by "
            f"about {min(times, 1000.0):.0f} times as much. The error bar goes by rows that were left out; "
            "pass validation=, rows that the network has not seen, for a sharper one."
        )


def _left_out(state: ModelState, training: Training) -> tuple[CalibrationRows | None, Tensor, Tensor]:
    """The left-out rows of all experts that were judged, with the steadied scales that predictions use; their
    novelty, the mean over the outputs; and where they are among the training rows. None: there are none."""
    parts, mixtures, targets = [], state.mixtures, training.rows.targets
    total = torch.zeros(len(training.rows), dtype=torch.float64)
    told = torch.zeros(len(training.rows), dtype=torch.int64)
    for mixture, solved in zip(mixtures, training.solved, strict=True):
        for log_kappa, result in zip(mixture.log_kappa, solved, strict=True):
            if result.held_out is None:
                continue
            own = result.expert.rows[: int(result.expert.own)]
            own = own[
                evenly(len(own), len(result.held_out) // len(log_kappa))
            ].cpu()  # of many some are judged
            parts.append(
                (own, mixture.outputs, replace(result.held_out, log_kappa=log_kappa.repeat(len(own))))
            )
            novelty = result.held_out.novelty.cpu().reshape(len(own), -1)
            total[own] += novelty.sum(dim=1)
            told[own] += novelty.shape[1]
    if not parts:
        return None, total[:0], told[:0]
    places = torch.cat([own for own, *_ in parts]).unique()
    if state.witness is not None:
        every = torch.arange(len(total)) if training.groups is None else training.groups
        said = groups_left_out(state.witness, every, places)
        parts = [
            (own, served, _with_witness(held, said, own, served, targets)) for own, served, held in parts
        ]
    whole = told == sum(len(mixture.outputs) for mixture in mixtures)
    return CalibrationRows.cat([held for *_, held in parts]), total[whole] / told[whole], places


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
