"""The last stage: what a model learns from rows that its experts have not seen."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .data import Rows, chunks, row_bytes
from .experts import Solved
from .math.calibration import HeldOut
from .math.ranks import needed_rows
from .mixture import Mixture
from .model import Origin, UncertaintyModel
from .novelty import Alarm
from .progress import Reporter
from .solving import Partition
from .witness import Testimony, WitnessState
from .witnessing import groups_left_out

MOST_TOGETHER, TOGETHER = 2**16, 32 * 2**20  # held-out rows, and their bytes, answered together


@dataclass(frozen=True)
class Training:
    """What `update` needs beside the model: the rows, and the experts' left-out groups."""

    rows: Rows
    groups: Tensor | None
    validation: Rows | None
    partitions: tuple[Partition, ...]
    solved: tuple[tuple[Solved, ...], ...]


def calibrated(
    module: nn.Module,
    mixtures: tuple[Mixture, ...],
    origin: Origin,
    training: Training,
    witness: WitnessState | None,
    report: Reporter,
) -> UncertaintyModel:
    """The model, its scale fitted to the validation rows, else to the groups, else left at the defaults."""
    likelihood = origin.likelihood
    model = UncertaintyModel(module, mixtures, (), origin, training, witness)
    held_out: Any = None
    if training.validation is not None:
        held_out, model.held_scores = validated(model, training.validation, report)
    elif training.groups is not None:
        said = None
        if witness is not None:
            said = groups_left_out(witness, training.rows.targets, training.groups)
        parts = _left_out(mixtures, training, said)
        held_out = HeldOut.cat(parts) if parts else None
        model.held_scores = _left_out_novelty(mixtures, training)
    model.calibrations = likelihood.calibrate(
        held_out, model.shape, training.rows.targets, seen=origin.split[1] > 0
    )
    doubt = "" if held_out is None else likelihood.doubt(held_out, model.calibrations)
    if doubt:
        warnings.warn(doubt, stacklevel=4)  # from the line that calls `fit`, or `update`
    return model


def recalibrated(model: UncertaintyModel, rows: Rows, report: Reporter) -> None:
    """Fit the scale of a model, and its threshold if it has one, to validation rows, in place.

    What only training rows can tell (see `unruled`) stays as it is.

    Args:
        model: Whose experts or witness are no longer those it was calibrated with.
        rows: That neither the network nor the experts have seen.
        report: Shows how far it is.
    """
    likelihood = model.origin.likelihood
    likelihood.check(model.shape.outputs, rows.targets, name="validation")
    held_out, model.held_scores = validated(model, rows, report)
    model.calibrations = likelihood.recalibrate(held_out, model.shape, model.calibrations)
    model.alarm = alarm_again(model.alarm, model.held_scores)


def alarm_again(alarm: Alarm | None, scores: Tensor) -> Alarm | None:
    """The threshold on the scores as they are now; None where there are too few held-out rows at hand."""
    if alarm is None or len(scores) < needed_rows(1.0 - float(alarm.false_alarm)):
        return None
    return Alarm.fit(scores, float(alarm.false_alarm))


@torch.no_grad()
def validated(model: UncertaintyModel, rows: Rows, report: Reporter) -> tuple[Any, Tensor]:
    """Validation rows, chunk by chunk: as the likelihood wants them, and their novelty scores [n]."""
    likelihood, held, scores = model.origin.likelihood, [], []
    parts = list(chunks(len(rows), _together(rows, model.shape.outputs)))
    for index in report.track(parts, stage="calibrating", total=len(parts), rows=len):
        outputs, raw = model.answers(rows.take(index))
        held.append(likelihood.held_out(outputs, raw, rows.targets[index.to(rows.targets.device)]))
        scores.append(likelihood.score(raw).cpu())
    return type(held[0]).cat(held), torch.cat(scores)


def _together(rows: Rows, num_outputs: int) -> int:
    """How many held-out rows are answered together: many, so that an expert is asked few times."""
    size = row_bytes(rows.inputs) + 80 * num_outputs
    return max(1, min(MOST_TOGETHER, TOGETHER // size))


def _left_out(mixtures: tuple[Mixture, ...], training: Training, said: Testimony | None) -> list[HeldOut]:
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
                held = _heard(held, said, own, mixture.outputs, training.rows.targets)
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


def _heard(held: HeldOut, said: Testimony, rows: Tensor, outputs: Tensor, targets: Tensor) -> HeldOut:
    """Left-out rows with the witness's word: its error is y - g, so it expects y - f less that error."""
    place = said.mean.device
    rows, outputs = rows.to(place), outputs.to(place)
    error = (targets.to(said.mean) - said.mean)[rows][:, outputs].flatten()
    return replace(
        held,
        witness_shift=held.residual - error.to(held.residual.device),
        witness_precision=said.precision[rows][:, outputs].flatten().to(held.residual.device),
    )
