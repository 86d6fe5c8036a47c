"""The last stage: what a model learns from rows that its experts have not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .data import Rows, chunks
from .experts import Solved
from .math.calibration import HeldOut, unruled
from .mixture import Mixture
from .model import Origin, UncertaintyModel
from .progress import Reporter
from .solving import Partition
from .witness import Testimony, WitnessState
from .witnessing import groups_left_out


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
    num_outputs = sum(len(mixture.outputs) for mixture in mixtures)
    rare = unruled(training.rows.targets)
    calibrations = origin.likelihood.calibrate(None, num_outputs, rare)
    model = UncertaintyModel(module, mixtures, calibrations, origin, training, witness)
    held_out: HeldOut | None = None
    if training.validation is not None:
        held_out = _validated(model, training.validation, report)
    elif training.groups is not None:
        said = None
        if witness is not None:
            said = groups_left_out(witness, training.rows.targets, training.groups)
        held_out = HeldOut.cat(_left_out(mixtures, training, said))
    model.calibrations = origin.likelihood.calibrate(held_out, num_outputs, rare)
    return model


def _validated(model: UncertaintyModel, rows: Rows, report: Reporter) -> HeldOut:
    """Validation rows, chunk by chunk."""
    parts = list(chunks(len(rows)))
    with torch.no_grad():
        return HeldOut.cat(
            [
                model.held_out(rows.take(index), rows.targets[index])
                for index in report.track(parts, stage="calibrating", total=len(parts))
            ]
        )


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
