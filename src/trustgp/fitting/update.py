"""New rows for a fitted model: only the experts affected are solved again."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.batches import Unpack
from ..data.chunking import chunks
from ..data.fingerprint import rows_fingerprint, tensor_fingerprint
from ..data.rows import BATCH_ROWS, Rows, distinct_rows, gather, read_rows
from ..data.split import check_groups, kept_rows
from ..data.torch_modes import cpu_default, plain_modes
from ..data.trees import kinds
from ..data.user_warnings import warn_user
from ..executors import Executor, FitContext, usual_threads
from ..executors.progress import reporting
from ..experts.expert import Problem, Solved, extended_expert, prior_of
from ..experts.gate import Partition, nearest, nearest_two
from ..experts.mixture import Mixture
from ..experts.posteriors import SpanPosterior
from ..experts.witness_fit import extend_witness, find_witness, update_witness
from ..state.model_state import ModelState, Training, changed_behaviour, read_like
from .calibrate import calibrate, threshold_again
from .divide import embed_rows
from .leave_out import clusters_left_out, joined
from .prepare import Residuals, make_problems, of_rank, target_projections
from .solve import judged_tasks, make_tasks, solve_tasks
from .whole import extended


@cpu_default()
def update_state(
    state: ModelState,
    new_rows: Any,
    *,
    groups: Any = None,
    train: Any = None,
    executor: Executor | None = None,
    progress: bool = True,
    unpack: Unpack | None = None,
) -> tuple[ModelState, list[int]]:
    """Add rows to a model; the gate, the neighbours and the numbers of lent rows do not change.

    With the earlier rows, the result equals a fit with the same partition on all rows. Without them, the
    experts of a light model get a low-rank update: scale, noise, calibration and the threshold of the novelty
    score stay as they were.

    Arguments are those of `UncertaintyModel.update`. Returns the new state, and the numbers of the experts
    that were solved again, counted through all kernels.
    """
    with plain_modes(), reporting(enabled=progress) as report:
        added, stride = read_like(state, new_rows, name="new_rows", unpack=unpack), state.provenance.stride
        new_groups = check_groups(groups, added)
        added = added.every(stride)  # the old rows were thinned in the same way
        new_groups = None if new_groups is None else new_groups[::stride]
        if difference := changed_behaviour(state):
            raise ValueError(
                f"the model's network is no longer the one it was fitted to: {difference}. Undo changes in "
                "model.network (settings, attributes, buffers, hooks), or fit again."
            )
        executor = executor or usual_threads(state.device)
        context = FitContext(state.device, state.provenance.seed, executor, report)
        if state.training is None and train is None:
            return _low_rank_update(state, added, context)
        before = _rebuild_training(state, train, unpack, context)
        rows, labels = _join_rows(before.rows, added), _join_groups(before.groups, new_groups)
        state.likelihood.check(state.shape.outputs, added.targets, name="new_rows")
        whole = replace(before, rows=rows, groups=labels)
        after, mixtures, touched = _refit_experts(state, whole, added, context)
        provenance = replace(state.provenance, data=rows_fingerprint(rows, labels), rows=len(rows))
        witness, setting = state.witness, provenance.witness
        if witness is not None and setting is not None:  # not larger than before where there is a budget
            limit = None if provenance.size is None else witness.nbytes
            witness = update_witness(witness, rows, setting, context.nearby(), limit)
        elif not (provenance.size or provenance.compressed):
            witness = find_witness(rows, setting, context.nearby(), None)  # there may have been too few rows
        updated = ModelState(state.network, mixtures, provenance, witness=witness, training=after)
        updated = replace(updated, forward=state.forward, probes=state.probes)
        updated, fitted = calibrate(updated, report)
        if fitted.warning:
            warn_user(fitted.warning)
    if state.training is None and not state.likelihood.fitted_to_left_out(state.calibrations):
        updated = replace(updated, calibrations=state.calibrations)  # a file holds no validation rows
    return _with_threshold(updated, state), touched


def _with_threshold(updated: ModelState, before: ModelState) -> ModelState:
    """State with the threshold refitted to the held-out rows' new scores or, with too few rows, the earlier
    one: the more rows experts have, the less novel others are, so false alarms become no more frequent."""
    loaded = before.training is None  # a file holds no left-out rows; those of some experts are not all
    if loaded or not len(updated.held_scores):
        updated = replace(updated, held_scores=before.held_scores)
    threshold = None if loaded else threshold_again(before.threshold, updated.held_scores)
    if before.threshold is not None and threshold is None:
        threshold = before.threshold
        warn_user(
            f"the novelty threshold, {float(threshold.threshold):.4g} for false_alarm="
            f"{float(threshold.false_alarm):g}, stays as it was before the update: there are no held-out "
            "rows, or too few, to fit it again. Call model.threshold(rows) with familiar rows for that."
        )
    return replace(updated, threshold=threshold)


def _low_rank_update(state: ModelState, added: Rows, context: FitContext) -> tuple[ModelState, list[int]]:
    """State with experts updated by new rows, without the old ones; and the numbers of these experts."""
    every = [expert for mixture in state.mixtures for expert in mixture.experts]
    if not all(expert.failed or isinstance(expert.posterior, SpanPosterior) for expert in every):
        raise ValueError(
            "this model was loaded from a file, which does not hold its training rows, and its experts are "
            "exact; pass the rows: model.update(new_rows, train=(inputs, targets))."
        )
    state.likelihood.check(state.shape.outputs, added.targets, name="new_rows")
    problems = _problems(state, added, None, context)
    mixtures, touched, before, first = [], [], 0, state.provenance.rows
    for mixture, problem in zip(state.mixtures, problems, strict=True):
        labels = nearest(embed_rows(mixture.tangents, mixture.gate, added, context), mixture.gate.centroids)
        experts = list(mixture.experts)
        for number in labels.unique().tolist():
            own = (labels == number).nonzero().flatten().cpu()
            experts[number] = extended_expert(problem, experts[number], own, first, state.provenance.rank)
            touched.append(before + number)
        mixtures.append(extended(replace(mixture, experts=tuple(experts)), added))
        before += len(experts)
    witness, setting = state.witness, state.provenance.witness
    if witness is not None and setting is not None:
        witness = extend_witness(witness, added, first, setting, context.nearby())
    data = tensor_fingerprint(text=state.provenance.data + rows_fingerprint(added, None))
    provenance = replace(state.provenance, data=data, rows=first + len(added))
    return replace(state, mixtures=tuple(mixtures), witness=witness, provenance=provenance), touched


def _problems(state: ModelState, rows: Rows, groups: Tensor | None, context: FitContext) -> list[Problem]:
    """Problem of each kernel for these rows: what its experts share."""
    network, likelihood = state.mixtures[0].tangents.network, state.likelihood
    projections = target_projections([m.tangents.mix for m in state.mixtures], likelihood, context.seed)
    residuals = Residuals(likelihood, rows, "new_rows", projections).compute(network, context)
    maps = [(getattr(m.tangents, "plain", m.tangents), m.outputs) for m in state.mixtures]
    return make_problems(maps, rows, residuals, groups, projections)


def _refit_experts(
    state: ModelState, training: Training, added: Rows, context: FitContext
) -> tuple[Training, tuple[Mixture, ...], list[int]]:
    """Training data and mixtures with all rows in the experts, and the numbers of the experts that changed;
    `training` has all rows, but the earlier partitions and experts."""
    problems, likelihood = _problems(state, training.rows, training.groups, context), state.likelihood
    mixtures, partitions, solved, touched, far = [], [], [], [], []
    for k, (mixture, problem) in enumerate(zip(state.mixtures, problems, strict=True)):
        problem = of_rank(problem, state.provenance.rank, likelihood)
        if likelihood.common_prior:
            problem = replace(problem, prior=prior_of(mixture.experts))
        partition = training.partitions[k].extend(embed_rows(mixture.tangents, mixture.gate, added, context))
        before, after = (
            judged_tasks(problem, make_tasks(part, state.provenance.lend[k]), part, likelihood)
            for part in (training.partitions[k], partition)
        )
        same, names, offset = {}, ("own", "candidates", "around"), sum(len(m.experts) for m in mixtures)
        for i, pair in enumerate(zip(before, after, strict=True)):
            if not all(torch.equal(*(getattr(task, name) for task in pair)) for name in names):
                touched.append(offset + i)
            elif training.solved[k][i].held_out is not None or not after[i].judged:  # a file has none
                same[i] = training.solved[k][i]
        results = solve_tasks(problem, after, context, finished=same)
        mixture = replace(mixture, experts=tuple(result.expert for result in results))
        far.append(clusters_left_out(problem, mixture, after))
        mixtures.append(extended(mixture, added))
        partitions.append(partition)
        solved.append(tuple(results))
    after = replace(training, partitions=tuple(partitions), solved=tuple(solved), far=joined(far))
    return after, tuple(mixtures), touched


def _rebuild_training(state: ModelState, train: Any, unpack: Unpack | None, context: FitContext) -> Training:
    """Training rows, partitions and experts: from memory, or rebuilt from `train`."""
    if state.training is not None:
        return state.training
    rows = read_rows(train, name="train", unpack=unpack, network=state.network)
    split = state.provenance.split
    if split[1]:
        rows = kept_rows(rows, min(len(rows), split[0]), context.seed)
    if rows_fingerprint(rows, None) != state.provenance.data:  # deduplicated and thinned, as in a fit
        rows = rows.subset(distinct_rows(rows)).every(state.provenance.stride)
    if rows_fingerprint(rows, None) != state.provenance.data:
        what = "train holds other rows than the model was fitted on"
        raise ValueError(f"{what}, or it was fitted with groups or weights.")
    partitions = []
    for mixture in state.mixtures:
        points = embed_rows(mixture.tangents, mixture.gate, rows, context)
        nearest = nearest_two(points, mixture.gate.centroids)[0].cpu()
        partitions.append(Partition(mixture.gate, points.cpu(), nearest, mixture.neighbours))
    solved = tuple(tuple(Solved(e, None) for e in mixture.experts) for mixture in state.mixtures)
    return Training(rows, None, None, tuple(partitions), solved)


def _join_rows(rows: Rows, added: Rows) -> Rows:
    """Old rows, then the new ones, which get the mean weight; stored in a file if too large for memory. Raise
    ValueError unless both have the same shape and the same types of inputs."""
    given, wanted = ([*kinds(one.first), f"{one.targets.shape[1]} targets"] for one in (added, rows))
    if given != wanted:
        what = f"new_rows have {', '.join(given)} a row"
        raise ValueError(f"{what}; the model was fitted on {', '.join(wanted)}.")
    parts = (one.batch(index) for one in (rows, added) for index in chunks(len(one), BATCH_ROWS))
    pairs = ((inputs, targets.to(rows.targets)) for inputs, targets in parts)
    weights = None if rows.weights is None else torch.cat([rows.weights, rows.weights.new_ones(len(added))])
    return Rows(*gather(pairs, name="old and new rows"), rows.ordered and added.ordered, weights)


def _join_groups(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Group labels of all rows; new rows form new groups."""
    if (old is None) != (new is None):
        raise ValueError("pass groups for the new rows exactly when the model was fitted with groups.")
    return None if old is None or new is None else torch.cat([old, new + int(old.max()) + 1])
