"""Calibration far from the data: whole clusters of rows, predicted by experts that have none of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.rows import Rows
from ..experts.expert import Problem, Task
from ..experts.features import NO_COLUMNS, amplitudes, features_at
from ..experts.mixture import Mixture
from ..math.evidence import distances, maximise_evidence
from ..math.held_out import CalibrationRows

DISTANCE_RANKS = (1, 2, 4, 8, 16)  # of the experts that predict the left-out one; 1: the nearest
MAX_ROWS = 60  # rows of each of these experts, at most
MAX_CLUSTERS = 8  # experts, evenly spread, that are left out
MIN_CLUSTER_ROWS = 20


@torch.no_grad()
def clusters_left_out(problem: Problem, mixture: Mixture, tasks: list[Task]) -> CalibrationRows | None:
    r"""Rows of some experts, predicted by experts further and further away; None if there are none.

    The errors of a network that was trained without the rows B, those of the expert and of the chosen experts
    nearer than the predicting one, follow from the pseudo-targets: :math:`e_B = Q_{BB}^{-1} (Q t)_B`, where
    :math:`Q = (K + \tau I)^{-1}`. It uses some rows of each expert.
    """
    parts, experts = [], mixture.experts
    wanted = [i for i, task in enumerate(tasks) if task.judged and len(task.own) >= MIN_CLUSTER_ROWS]
    wanted = [i for i in wanted if not experts[i].failed]
    for place in evenly(len(wanted), MAX_CLUSTERS).tolist():
        parts += _from_further_away(problem, mixture, tasks, wanted[place])
    return joined(parts)


def joined(parts: Sequence[CalibrationRows | None]) -> CalibrationRows | None:
    """Concatenation of the parts that are not None; None if there are none."""
    given = [part for part in parts if part is not None]
    return CalibrationRows.cat(given) if given else None


def _from_further_away(
    problem: Problem, mixture: Mixture, tasks: list[Task], number: int
) -> list[CalibrationRows]:
    """The rows of one expert, predicted by each of several others."""
    centroids = mixture.gate.centroids
    order = distances(centroids[number : number + 1], centroids)[0].argsort(stable=True).tolist()
    order = [i for i in order if i != number and len(tasks[i].own) and not mixture.experts[i].failed]
    others = [order[rank - 1] for rank in DISTANCE_RANKS if rank <= len(order)]
    if not others:
        return []
    lots = [tasks[i].own[evenly(len(tasks[i].own), MAX_ROWS)] for i in (number, *others)]
    rows, cluster = torch.cat(lots), lots[0]
    kernel = problem.tangents if problem.leave_out_tangents is None else problem.leave_out_tangents
    cached = problem.cached if kernel is problem.tangents else None
    features = problem.weigh(features_at(kernel, problem.rows, rows, NO_COLUMNS, cached), rows)
    root = problem.roots(rows)
    targets = problem.targets_at(rows, NO_COLUMNS) * root
    inverse = torch.cholesky_inverse(maximise_evidence(features.gram(features), targets).factor)
    weights, left, parts = inverse @ targets, 0, []
    stated = stated_at(mixture, problem.rows, cluster).to(targets.device)
    y = problem.rows.targets[cluster.to(problem.rows.targets.device)].to(targets)[:, mixture.outputs]
    seen = features_at(problem.tangents, problem.rows, cluster, NO_COLUMNS, problem.cached)
    for other, lot in zip(others, lots, strict=False):
        left += len(lot)
        errors = (torch.linalg.solve(inverse[:left, :left], weights[:left]) / root[:left])[: len(cluster)]
        # the few rows that the other expert has borrowed are not new to it
        new = ~torch.isin(cluster, mixture.experts[other].rows.cpu()).to(errors.device)
        if bool(new.any()):
            features = seen.take(new.nonzero().flatten())
            part = _predicted(problem, mixture, other, features, errors[new], y[new])
            part = replace(part, log_stated=stated[new].flatten())
            parts.append(part.counted(problem.rows.weights_at(cluster[new.cpu()])))
    return parts


def _predicted(
    problem: Problem, mixture: Mixture, number: int, features: Any, errors: Tensor, target: Tensor
) -> CalibrationRows:
    """An expert's prediction of rows that are new to it, without the witness."""
    expert, log_kappa = mixture.experts[number], mixture.log_kappa[number]
    posterior = expert.posterior(features)
    columns = features.select(expert.posterior.columns)
    amplitude = amplitudes(problem.tangents, columns, blended=problem.blend is not None)
    novelty = torch.where(posterior.prior > 0, posterior.unit / posterior.prior, 1.0).clamp(0.0, 1.0)
    return CalibrationRows.of(
        mixture.outputs,
        residual=errors + posterior.residual_mean,
        residual_mean=posterior.residual_mean,
        epistemic=posterior.unit.clamp_min(0.0)[:, None] * amplitude * expert.scale,
        noise=expert.noise,
        novelty=novelty[:, None],
        log_kappa=log_kappa,
        target=target,
    )


def stated_at(mixture: Mixture, rows: Rows, index: Tensor) -> Tensor:
    """Log variances [k, B] that the network itself predicts for training rows `index` [k], on the
    CPU; 0 if it predicts none."""
    network, outputs = mixture.tangents.network, mixture.outputs.cpu()
    if not network.stated:
        return torch.zeros(len(index), len(outputs), dtype=torch.float64)
    parts = index.split(network.pass_rows(rows.first))
    return torch.cat([network.log_variance(rows.take(part)).cpu() for part in parts])[:, outputs]
