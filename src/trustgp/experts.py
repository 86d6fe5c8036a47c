"""One expert: rows in, solved state out. Pure, so that it can be shipped to a worker."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .data import Inputs, Rows, chunks, count, take
from .math import selection
from .math.calibration import HeldOut, leave_groups_out, leave_one_out
from .math.evidence import Evidence, maximise_evidence
from .posteriors import GramPosterior, PriorPosterior, SpanPosterior, make_posterior
from .tangents.base import Features, TangentMap

# Noise ratio assumed while rows are chosen, before the evidence has spoken, over the mean diagonal.
SELECTION_NOISE = 1e-4


@dataclass(frozen=True)
class Expert:
    """A solved expert for B outputs.

    Args:
        rows: Training rows it holds, its own first, shape [m].
        own: How many of them are its own, a scalar.
        posterior: What answers.
        scale: s, shape [B].
        noise: sigma^2 = tau s, shape [B].
        kappa: Leave-one-out scale, shape [B].
        jitter: Added to the diagonal besides tau, a scalar; 0 as a rule.
    """

    rows: Tensor
    own: Tensor
    posterior: GramPosterior | SpanPosterior | PriorPosterior
    scale: Tensor
    noise: Tensor
    kappa: Tensor
    jitter: Tensor

    @property
    def failed(self) -> bool:
        """Whether it could not be solved and answers with the prior."""
        return isinstance(self.posterior, PriorPosterior)


@dataclass(frozen=True)
class Problem:
    """What all experts of one kernel share.

    Args:
        rows: The training rows.
        tangents: Makes features.
        outputs: Which outputs of the network these experts serve, shape [B].
        residual: r = y - f(x), shape [n, C], float64.
        groups: Trajectory of each row, shape [n], or None.
    """

    rows: Rows
    tangents: TangentMap
    outputs: Tensor
    residual: Tensor
    groups: Tensor | None


@dataclass(frozen=True)
class Task:
    """One expert to solve.

    Args:
        own: Its rows, shape [k].
        candidates: Neighbours' rows near the border, shape [l].
        cap: The most of its own rows it may hold.
        lend: How many candidates it takes.
    """

    own: Tensor
    candidates: Tensor
    cap: int
    lend: int


@dataclass(frozen=True)
class Solved:
    """A solved expert, and its left-out groups if there are groups."""

    expert: Expert
    held_out: HeldOut | None


def features_of(tangents: TangentMap, inputs: Inputs, columns: Tensor) -> Features:
    """Features made chunk by chunk, an expert's columns selected at once."""
    size = chunk_rows(tangents)
    parts = [tangents(take(inputs, i)).select(columns) for i in chunks(count(inputs), size)]
    return parts[0] if len(parts) == 1 else tangents.kind.cat(parts)


def chunk_rows(tangents: TangentMap) -> int:
    """Rows per chunk, so that what is needed on the way stays near 64 MiB."""
    return max(1, min(1024, 64 * 2**20 // max(1, tangents.working_bytes())))


@torch.no_grad()
def solve_expert(problem: Problem, task: Task) -> Solved:
    """Choose the rows, solve, calibrate by leaving out.

    Raises:
        FactorisationError: When the kernel on these rows cannot be factorised.
    """
    tangents, device = problem.tangents, problem.tangents.network.device
    own_inputs = problem.rows.take(task.own)
    columns = tangents.columns(own_inputs)
    features = features_of(tangents, own_inputs, columns)
    gram = features.gram(features)
    kept = _choose_own(gram, task.cap)
    rows = task.own[kept]
    if len(kept) < len(task.own):
        features, gram = features.take(kept.to(device)), gram[kept][:, kept]
    if len(task.candidates) and task.lend:
        border = features_of(tangents, problem.rows.take(task.candidates), columns)
        features, gram, lent = _borrow(features, gram, border, task.lend)
        rows = torch.cat([rows, task.candidates[lent]])
    residual = problem.residual[rows][:, problem.outputs].to(device)
    targets = _pseudo_targets(problem, rows, columns) + residual
    evidence = maximise_evidence(gram, targets)
    return _finish(problem, rows, len(kept), features, columns, gram, evidence, residual)


def prior_expert(task: Task, siblings: list[Expert]) -> Expert:
    """Stands in for an expert that could not be solved: the others' typical scale, no rows."""

    def typical(name: str) -> Tensor:
        return torch.stack([getattr(expert, name) for expert in siblings]).log().mean(dim=0).exp()

    scale = typical("scale")
    return Expert(
        rows=task.own[:0],
        own=torch.tensor(0),
        posterior=PriorPosterior(scale.new_empty(0, len(scale))),
        scale=scale,
        noise=typical("noise"),
        kappa=torch.ones_like(scale),
        jitter=scale.new_zeros(()),
    )


def _choose_own(gram: Tensor, cap: int) -> Tensor:
    """At most `cap` of the expert's own rows, the most informative first, as positions."""
    if len(gram) <= cap:
        return torch.arange(len(gram))
    noise = SELECTION_NOISE * float(gram.diagonal().mean())
    return selection.greedy_rows(gram, cap, noise).cpu()


def _borrow(own: Features, gram: Tensor, border: Features, lend: int) -> tuple[Features, Tensor, Tensor]:
    """Add the `lend` candidates that the expert is most uncertain about, given its own rows."""
    cross, corner = own.gram(border), border.gram(border)
    noise = SELECTION_NOISE * float(gram.diagonal().mean())
    lent = selection.greedy_rows(selection.condition(corner, cross, gram, noise), lend, noise)
    cross, corner = cross[:, lent], corner[lent][:, lent]
    top, bottom = torch.cat([gram, cross], dim=1), torch.cat([cross.T, corner], dim=1)
    return type(own).cat([own, border.take(lent)]), torch.cat([top, bottom]), lent.cpu()


def _pseudo_targets(problem: Problem, rows: Tensor, columns: Tensor) -> Tensor:
    """J theta over the kept columns, shape [m, B], float64; the residual still to be added."""
    network, direction = problem.tangents.network, problem.tangents.direction(columns)
    parts = [network.directional(problem.rows.take(rows[index]), direction) for index in chunks(len(rows))]
    return torch.cat(parts).double()[:, problem.outputs]


def _finish(
    problem: Problem,
    rows: Tensor,
    own: int,
    features: Features,
    columns: Tensor,
    gram: Tensor,
    evidence: Evidence,
    residual: Tensor,
) -> Solved:
    """Posterior and leave-out figures from the evidence."""
    inverse = torch.cholesky_inverse(evidence.factor)
    errors, variances = leave_one_out(inverse, residual)
    ratios = errors.square() / (variances[:, None] * evidence.scale)
    expert = Expert(
        rows=rows,
        own=torch.tensor(own),
        posterior=make_posterior(features, columns, evidence, inverse @ residual),
        scale=evidence.scale,
        noise=evidence.tau * evidence.scale,
        kappa=ratios[:own].mean(dim=0).clamp_min(torch.finfo(torch.float64).tiny),
        jitter=evidence.jitter,
    )
    if problem.groups is None:
        return Solved(expert, None)
    errors, variances = leave_groups_out(inverse, residual, problem.groups[rows].to(inverse.device))
    prior = gram.diagonal()[:own]
    unit = (variances[:own] - evidence.tau).clamp_min(0.0)  # float64 rounding only: 1/Q_ii >= tau
    return Solved(expert, _left_out(problem, expert, residual[:own], errors[:own], unit, prior))


def _left_out(
    problem: Problem, expert: Expert, residual: Tensor, errors: Tensor, unit: Tensor, prior: Tensor
) -> HeldOut:
    """Own rows as if they had not been seen, one entry per row and output."""
    size = residual.shape
    novelty = torch.where(prior > 0, unit / prior, torch.ones_like(prior)).clamp_max(1.0)
    return HeldOut(
        residual=residual.flatten(),
        shift=(residual - errors).flatten(),
        epistemic=(unit[:, None] * expert.scale).flatten(),
        noise=expert.noise.expand(size).flatten(),
        novelty=novelty[:, None].expand(size).flatten(),
        log_kappa=expert.kappa.log().expand(size).flatten(),
        output=problem.outputs.to(residual.device).expand(size).flatten(),
    )
