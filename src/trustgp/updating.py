"""New rows for a fitted model: only the experts concerned are solved again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .calibrating import Training, alarm_again, calibrated
from .data import BATCH_ROWS, Rows, chunks, gather, leaves, read_rows, structure
from .executors import Executor, nearby, usual_threads
from .experts import Problem, Solved, Task
from .fingerprint import rows_fingerprint
from .gating import nearest_two
from .holding import kept_rows
from .model import UncertaintyModel
from .preparing import check_groups, find_blends, make_problems, residual_of
from .priors import prior_of
from .progress import Reporter, reporting
from .solving import NO_CAP, Handout, Partition, embed_rows, make_tasks, solve_tasks
from .witness import WitnessState
from .witnessing import Court, update_witness


def update(
    model: UncertaintyModel,
    new_rows: Any,
    *,
    groups: Any = None,
    train: Any = None,
    executor: Executor | None = None,
    progress: bool = True,
) -> list[int]:
    """Add rows to a model; the gate, the neighbours and the sizes of the experts stay as they are.

    The result equals a fit with the same partition on all rows.

    Args:
        model: Changed in place.
        new_rows: (inputs, targets), a Dataset or a DataLoader.
        groups: Trajectory of each new row, where the model was fitted with groups.
        train: The rows the model was fitted on; needed after loading, as a file does not hold them.
        executor: Where experts are solved; None: as in `fit`.
        progress: Whether to show bars in a terminal.

    Returns:
        Which experts were solved again, counted through all kernels.
    """
    if model.origin.compressed:
        raise ValueError(
            f"this model was compressed ({model.origin.compressed}) and no longer holds what new rows need; "
            "update the model that it was made from, and compress that again."
        )
    added = read_rows(new_rows, name="new_rows")
    if structure(added.inputs) != model.origin.structure:
        raise ValueError(
            f"new_rows have the structure {structure(added.inputs)}; the model was fitted on "
            f"{model.origin.structure}."
        )
    executor = executor or usual_threads(model.device)
    with reporting(enabled=progress) as report:
        memory = _recall(model, train, executor, report)
        _check_alike(memory.rows, added)
        labels = _join_groups(memory.groups, check_groups(groups, added))
        rows = _joined(memory.rows, added)
        network = model.mixtures[0].tangents.network
        likelihood = model.origin.likelihood
        likelihood.check(model.shape.outputs, added.targets, name="new_rows")
        blends = find_blends([m.tangents.mix for m in model.mixtures], likelihood, model.origin.seed)
        residuals = residual_of(network, likelihood, rows, executor, report, name="new_rows", blends=blends)
        maps = [(mixture.tangents, mixture.outputs) for mixture in model.mixtures]
        problems = make_problems(maps, rows, residuals, labels, blends)
        mixtures, partitions, solved, touched = [], [], [], []
        for k, mixture in enumerate(model.mixtures):
            problem = problems[k]
            if likelihood.common_prior:
                problem = replace(problem, prior=prior_of(mixture.experts))
            points = embed_rows(mixture.tangents, mixture.gate, added, executor, report)
            partition = memory.partitions[k].extend(points)
            handout = Handout(model.origin.cap[k], model.origin.lend[k])
            before, after = make_tasks(memory.partitions[k], handout), make_tasks(partition, handout)
            same = {i: memory.solved[k][i] for i in range(len(after)) if _equal(before[i], after[i])}
            results = _solved(problem, after, same, executor, report)
            offset = sum(len(m.experts) for m in model.mixtures[:k])
            touched += [offset + i for i in range(len(after)) if i not in same]
            mixtures.append(replace(mixture, experts=tuple(result.expert for result in results)))
            partitions.append(partition)
            solved.append(tuple(results))
        origin = replace(model.origin, data=rows_fingerprint(rows, labels), rows=len(rows))
        training = Training(rows, labels, memory.validation, tuple(partitions), tuple(solved))
        witness = _heard_again(model, rows, executor, report)
        refitted = calibrated(model.network, tuple(mixtures), origin, training, witness, report)
        if memory.validation is None and labels is None:
            refitted.calibrations = model.calibrations  # nothing new is known about them
        refitted.alarm = alarm_again(model.alarm, refitted.held_scores)
    for name in ("mixtures", "origin", "calibrations", "memory", "witness", "held_scores", "alarm"):
        setattr(model, name, getattr(refitted, name))
    return touched


def _joined(old: Rows, new: Rows) -> Rows:
    """The old rows, then the new ones; more than memory should hold go to a file."""
    batches = (
        (rows.take(index), rows.targets[index.to(rows.targets.device)].to(old.targets))
        for rows in (old, new)
        for index in chunks(len(rows), BATCH_ROWS)
    )
    inputs, targets = gather(batches, name="old and new rows")
    return Rows(inputs, targets, old.ordered and new.ordered)


def _solved(
    problem: Problem, tasks: list[Task], same: dict[int, Solved], executor: Executor, report: Reporter
) -> list[Solved]:
    """The experts; those whose rows are the same are taken as they are."""
    return solve_tasks(
        problem,
        tasks,
        executor=executor,
        report=report,
        finished=same,
        on_solved=lambda position, result: None,
        strict=False,
    )


def _heard_again(
    model: UncertaintyModel, rows: Rows, executor: Executor, report: Reporter
) -> WitnessState | None:
    """The witness on all rows, within what a budget had left it."""
    origin = model.origin
    if model.witness is None or origin.witness is None:
        return model.witness
    court = Court(model.device, origin.seed, nearby(executor), report)
    limited = any(cap < NO_CAP for cap in origin.cap)  # by a budget
    room = model.witness.nbytes if limited else None
    return update_witness(model.witness, rows, origin.witness, court, room)[0]


def _recall(model: UncertaintyModel, train: Any, executor: Executor, report: Reporter) -> Training:
    """What was there before: from memory, or made again from the training rows."""
    if model.memory is not None:
        return model.memory
    if train is None:
        raise ValueError(
            "this model was loaded from a file, which does not hold its training rows; pass them: "
            "model.update(new_rows, train=(inputs, targets))."
        )
    rows = read_rows(train, name="train")
    if model.origin.split[1]:
        rows = kept_rows(rows, min(len(rows), model.origin.split[0]), model.origin.seed)
    if rows_fingerprint(rows, None) != model.origin.data:
        raise ValueError("train holds other rows than those the model was fitted on (or had groups).")
    partitions = []
    for mixture in model.mixtures:
        points = embed_rows(mixture.tangents, mixture.gate, rows, executor, report)
        nearest = nearest_two(points, mixture.gate.centroids)[0].cpu()
        partitions.append(Partition(mixture.gate, points.cpu(), nearest, mixture.neighbours))
    solved = tuple(tuple(Solved(e, None) for e in mixture.experts) for mixture in model.mixtures)
    return Training(rows, None, None, tuple(partitions), solved)


def _check_alike(rows: Rows, added: Rows) -> None:
    """New rows must have the shape of the old ones."""
    pairs = zip([*leaves(rows.inputs), rows.targets], [*leaves(added.inputs), added.targets], strict=True)
    for old, new in pairs:
        if old.shape[1:] != new.shape[1:]:
            raise ValueError(
                f"new_rows hold {tuple(new.shape[1:])} numbers a row where the model was fitted on "
                f"{tuple(old.shape[1:])}."
            )
    for old, new in zip(leaves(rows.inputs), leaves(added.inputs), strict=True):
        if old.dtype != new.dtype:
            raise ValueError(f"new_rows hold {new.dtype} where the model was fitted on {old.dtype}.")


def _join_groups(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Labels of all rows; new rows are new trajectories."""
    if (old is None) != (new is None):
        raise ValueError("pass groups for the new rows exactly when the model was fitted with groups.")
    if old is None or new is None:
        return None
    return torch.cat([old, new + int(old.max()) + 1])


def _equal(a: Task, b: Task) -> bool:
    return torch.equal(a.own, b.own) and torch.equal(a.candidates, b.candidates)
