"""The last stage: what a model learns from rows that its experts have not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import chunks, row_bytes
from ..data.rows import Rows
from ..data.user_warnings import warn_user
from ..executors.progress import Reporter
from ..experts.mixture import Mixture
from ..experts.witness import WitnessPrediction
from ..experts.witness_fit import groups_left_out
from ..likelihoods.novelty import NoveltyThreshold
from ..math.calibration import CalibrationRows
from ..math.quantiles import needed_rows
from ..state.model_state import ModelState, Training
from ..state.predict import answers

MOST_TOGETHER, TOGETHER = 2**16, 32 * 2**20  # held-out rows, and their bytes, answered together


def calibrate(state: ModelState, report: Reporter) -> ModelState:
    """The scale fitted to the validation rows, else to the groups, else left at the defaults.

    Args:
        state: With what it was trained on.
        report: Shows how far it is.
    """
    likelihood, training = state.likelihood, state.training
    assert training is not None, "a model that is fitted knows its rows"
    held_out: Any = None
    if training.validation is not None:
        held_out, scores = _answered(state, training.validation, report)
        state = replace(state, held_scores=scores)
    elif training.groups is not None:
        said = None
        if state.witness is not None:
            said = groups_left_out(state.witness, training.rows.targets, training.groups)
        parts = _left_out(state.mixtures, training, said)
        held_out = CalibrationRows.cat(parts) if parts else None
        state = replace(state, held_scores=_left_out_novelty(state.mixtures, training))
    seen = state.provenance.split[1] > 0
    calibrations = likelihood.calibrate(held_out, state.shape, training.rows.targets, seen=seen)
    reason = "" if held_out is None else likelihood.calibration_warning(held_out, calibrations)
    if reason:
        warn_user(reason)
    return replace(state, calibrations=calibrations)


def recalibrate(state: ModelState, rows: Rows, report: Reporter) -> ModelState:
    """The scale, and the threshold if there is one, fitted to other validation rows.

    What only training rows can tell (see `unruled`) stays as it is.

    Args:
        state: Whose experts or witness are no longer those it was calibrated with.
        rows: That neither the network nor the experts have seen.
        report: Shows how far it is.
    """
    likelihood, shape = state.likelihood, state.shape
    likelihood.check(shape.outputs, rows.targets, name="validation")
    held_out, scores = _answered(state, rows, report)
    calibrations = likelihood.recalibrate(held_out, shape, state.calibrations)
    threshold = threshold_again(state.threshold, scores)
    return replace(state, calibrations=calibrations, held_scores=scores, threshold=threshold)


def threshold_again(threshold: NoveltyThreshold | None, scores: Tensor) -> NoveltyThreshold | None:
    """The threshold on the scores as they are now; None where there are too few held-out rows at hand."""
    if threshold is None or len(scores) < needed_rows(1.0 - float(threshold.false_alarm)):
        return None
    return NoveltyThreshold.fit(scores, float(threshold.false_alarm))


@torch.no_grad()
def _answered(state: ModelState, rows: Rows, report: Reporter) -> tuple[Any, Tensor]:
    """Validation rows, chunk by chunk: as the likelihood wants them, and their novelty scores [n]."""
    likelihood, held, scores = state.likelihood, [], []
    parts = list(chunks(len(rows), _together(rows, state.shape.outputs)))
    for index in report.track(parts, stage="calibrating", total=len(parts), rows=len):
        outputs, raw = answers(state, rows.take(index))
        held.append(likelihood.calibration_rows(outputs, raw, rows.targets[index.to(rows.targets.device)]))
        scores.append(likelihood.score(raw).cpu())
    return type(held[0]).cat(held), torch.cat(scores)


def _together(rows: Rows, num_outputs: int) -> int:
    """How many held-out rows are answered together: many, so that an expert is asked few times."""
    size = row_bytes(rows.inputs) + 80 * num_outputs
    return max(1, min(MOST_TOGETHER, TOGETHER // size))


def _left_out(
    mixtures: tuple[Mixture, ...], training: Training, said: WitnessPrediction | None
) -> list[CalibrationRows]:
    """The left-out groups of all experts, with the steadied scales that predictions use.

    Args:
        mixtures: One per kernel.
        training: Holds what the experts said of their own left-out rows.
        said: What the witness says of all training rows, their groups left out; None: there is none.
    """
    parts = []
    for mixture, solved in zip(mixtures, training.solved, strict=True):
        for log_kappa, result in zip(mixture.log_kappa, solved, strict=True):
            if result.held_out is None:
                continue
            own = result.expert.rows[: int(result.expert.own)]
            held = replace(result.held_out, log_kappa=log_kappa.repeat(len(own)))
            if said is not None:
                held = _with_witness(held, said, own, mixture.outputs, training.rows.targets)
            parts.append(held)
    return parts


def _left_out_novelty(mixtures: tuple[Mixture, ...], training: Training) -> Tensor:
    """Novelty of the training rows, their groups left out, the mean over the outputs; rows held by no expert
    are not among them."""
    total = torch.zeros(len(training.rows), dtype=torch.float64)
    told = torch.zeros(len(training.rows), dtype=torch.int64)
    for solved in training.solved:
        for result in solved:
            if result.held_out is not None:
                own = result.expert.rows[: int(result.expert.own)].cpu()
                novelty = result.held_out.novelty.cpu().reshape(len(own), -1)
                total[own] += novelty.sum(dim=1)
                told[own] += novelty.shape[1]
    whole = told == sum(len(mixture.outputs) for mixture in mixtures)
    return total[whole] / told[whole]


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
