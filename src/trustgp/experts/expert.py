"""One expert: rows in, solved state out. Pure, so that it can be shipped to a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..data.rows import Rows
from ..math.calibration import CalibrationRows
from ..math.evidence import Prior
from ..math.selection import SELECTION_NOISE, condition, pivoted_cholesky_rows
from ..tangents.base import Features, TangentMap
from .features import NO_COLUMNS, amplitudes, features_at
from .neighbours import RowQuota
from .posteriors import Posterior, PriorPosterior
from .shrink import Sizes
from .system import LinearSystem, Solution, solve

# A network that meets every target exactly would otherwise claim to be certain everywhere.
LEAST_KAPPA = 1e-6


@dataclass(frozen=True)
class Expert:
    """A solved expert for B outputs.

    Args:
        rows: Training rows it holds, its own first, shape [m].
        own: How many of them are its own, a scalar.
        posterior: What answers.
        scale: s over the rows' mean amplitude, shape [B]; see `amplitudes`.
        noise: sigma^2 = tau s, shape [B].
        kappa: Leave-one-out scale, shape [B].
        jitter: Added to the diagonal besides tau, a scalar; 0 as a rule.
    """

    rows: Tensor
    own: Tensor
    posterior: Posterior
    scale: Tensor
    noise: Tensor
    kappa: Tensor
    jitter: Tensor

    @property
    def columns(self) -> Tensor:
        """The feature columns it keeps; empty: all."""
        return self.posterior.columns

    @property
    def failed(self) -> bool:
        """Whether it could not be solved and answers with the prior."""
        return self.posterior.failed

    def shrink(self, sizes: Sizes, pack: Callable[[Any], Any]) -> Expert:
        """With fewer rows, fewer directions, shorter numbers; `pack` stores features."""
        posterior, kept = self.posterior.shrink(sizes, pack)
        if kept is None:
            return replace(self, posterior=posterior)
        kept = kept.to(self.rows.device)
        return replace(self, rows=self.rows[kept], own=(kept < self.own).sum().cpu(), posterior=posterior)


@dataclass(frozen=True)
class Problem:
    """What all experts of one kernel selection.

    Args:
        rows: The training rows.
        tangents: Makes features.
        outputs: Which outputs of the network these experts serve, shape [B].
        residual: r = -H^-1 R, for squared error y - f(x), float64, shape [n, C]; [n, B] with a blend.
        groups: Trajectory of each row, shape [n], or None.
        known: Features of all rows, where they were kept; None: made again when they are needed.
        linear: J theta of all rows, shape [n, C], float64; None: made when it is needed.
        blend: Combinations of the outputs that the experts learn, shape [C, B]; None: the served outputs.
        prior: The scale and noise ratio of all experts; None: each finds its own.
    """

    rows: Rows
    tangents: TangentMap
    outputs: Tensor
    residual: Tensor
    groups: Tensor | None
    known: Features | None = None
    linear: Tensor | None = None
    blend: Tensor | None = None
    prior: Prior | None = None

    @property
    def num_targets(self) -> int:
        """B."""
        return len(self.outputs) if self.blend is None else self.blend.shape[1]

    def residual_at(self, rows: Tensor) -> Tensor:
        """r of some rows, shape [m, B]."""
        chosen = self.residual[rows]
        chosen = chosen[:, self.outputs] if self.blend is None else chosen
        return chosen.to(self.tangents.network.device)

    def linear_part(self, rows: Tensor, columns: Tensor) -> Tensor:
        """J theta over the kept columns, shape [m, B], float64: pseudo-targets without the residual."""
        if self.linear is not None:
            return self._served(self.linear[rows.to(self.linear.device)])
        network, direction = self.tangents.network, self.tangents.direction(columns)
        size = network.pass_rows(self.rows.inputs)
        parts = [network.directional(self.rows.take(part), direction) for part in rows.split(size)]
        return torch.cat([self._served(part.double()) for part in parts])

    def _served(self, values: Tensor) -> Tensor:
        """What the experts learn of values [m, C], shape [m, B]."""
        return values[:, self.outputs] if self.blend is None else values @ self.blend.to(values)


@dataclass(frozen=True)
class Task:
    """One expert to solve.

    Args:
        own: Its rows, shape [k].
        candidates: Neighbours' rows near the border, shape [l].
        quota: The most of its own rows it may hold, the others counting through these, and how many of the
            candidates it takes.
        number: Of the expert, for messages.
    """

    own: Tensor
    candidates: Tensor
    quota: RowQuota
    number: int = 0


@dataclass(frozen=True)
class Solved:
    """A solved expert, and its left-out groups if there are groups."""

    expert: Expert
    held_out: CalibrationRows | None


@torch.no_grad()
def solve_expert(problem: Problem, task: Task) -> Solved:
    """Choose the rows, solve, calibrate by leaving out.

    Raises:
        FactorisationError: When the kernel on these rows cannot be factorised.
    """
    tangents = problem.tangents
    columns = NO_COLUMNS
    # else no inputs need be taken for it
    if tangents.num_columns(expert=True) != tangents.num_columns(expert=False):
        columns = tangents.columns(problem.rows.take(task.own))
    own = features_at(tangents, problem.rows, task.own, columns, problem.known)
    selection = _own_rows(task, own)
    if len(task.candidates) and task.quota.borrowed:
        border = features_at(tangents, problem.rows, task.candidates, columns, problem.known)
        selection = selection.borrow(task, border)
    residual = problem.residual_at(selection.seen)
    # with a prior at hand there is nothing to learn from the targets
    known = problem.prior is not None
    targets = residual if known else problem.linear_part(selection.seen, columns) + residual
    system = LinearSystem(
        features=selection.held_features,
        columns=columns,
        gram=selection.gram,
        cross=selection.cross,
        diag=selection.seen_features.diag(),
        targets=targets,
        residual=residual,
    )
    return _solved(problem, task, selection, system)


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


@dataclass(frozen=True)
class _Selection:
    """Rows that count for an expert, and those among them that it holds; its own first in both.

    Args:
        seen: Rows that count, shape [m].
        held: Rows that it holds, shape [r].
        kept: Those of its own that it holds, as positions among its own.
        seen_features, held_features: Theirs.
        gram: K between the held rows, shape [r, r].
        cross: K between held and seen rows, shape [r, m]; None: the same rows.
    """

    seen: Tensor
    held: Tensor
    kept: Tensor
    seen_features: Features
    held_features: Features
    gram: Tensor
    cross: Tensor | None

    def borrow(self, task: Task, border: Features) -> _Selection:
        """With those candidates, whose features are given, that the held rows leave most uncertain."""
        aside, corner = self.held_features.gram(border), border.gram(border)
        noise = SELECTION_NOISE * float(self.gram.diagonal().mean())
        left = condition(corner, aside, self.gram, noise)
        chosen = pivoted_cholesky_rows(left, task.quota.borrowed, noise)
        added, aside, corner = border.take(chosen), aside[:, chosen], corner[chosen][:, chosen]
        rows = task.candidates[chosen.cpu()]
        held_features = seen_features = type(border).cat([self.held_features, added])
        cross = None
        if self.cross is not None:
            seen_features = type(border).cat([self.seen_features, added])
            cross = _framed(self.cross, aside, added.gram(self.seen_features), corner)
        return _Selection(
            seen=torch.cat([self.seen, rows]),
            held=torch.cat([self.held, rows]),
            kept=self.kept,
            seen_features=seen_features,
            held_features=held_features,
            gram=_framed(self.gram, aside, aside.T, corner),
            cross=cross,
        )


def _own_rows(task: Task, own: Features) -> _Selection:
    """At most so many of its own rows, whose features are given: the most informative ones."""
    gram, every = own.gram(own), torch.arange(len(task.own))
    if len(gram) <= task.quota.own:
        return _Selection(task.own, task.own, every, own, own, gram, None)
    noise = SELECTION_NOISE * float(gram.diagonal().mean())
    chosen = pivoted_cholesky_rows(gram, task.quota.own, noise)
    kept, cross = chosen.cpu(), gram[chosen]
    return _Selection(task.own, task.own[kept], kept, own, own.take(chosen), cross[:, chosen], cross)


def _framed(body: Tensor, right: Tensor, below: Tensor, corner: Tensor) -> Tensor:
    """A matrix with columns and rows added."""
    return torch.cat([torch.cat([body, right], dim=1), torch.cat([below, corner], dim=1)])


def _solved(problem: Problem, task: Task, selection: _Selection, system: LinearSystem) -> Solved:
    """Evidence, posterior and leave-out figures."""
    solution = solve(system, problem.prior)
    amplitude = amplitudes(problem.tangents, selection.seen_features, blended=problem.blend is not None)
    scale, noise = solution.scale / amplitude.mean(dim=0), solution.tau * solution.scale
    ratios = solution.errors.square() / (solution.unit[:, None] * amplitude * scale + noise)
    expert = Expert(
        rows=selection.held,
        own=torch.tensor(len(selection.kept)),
        posterior=solution.posterior,
        scale=scale,
        noise=noise,
        kappa=ratios[: len(task.own)].mean(dim=0).clamp_min(LEAST_KAPPA),
        jitter=solution.jitter,
    )
    if problem.groups is None:
        return Solved(expert, None)
    return Solved(expert, _left_out(problem, system, selection, solution, expert, amplitude))


def _left_out(
    problem: Problem,
    system: LinearSystem,
    selection: _Selection,
    solution: Solution,
    expert: Expert,
    amplitude: Tensor,
) -> CalibrationRows:
    """Its own rows that it holds, with their whole group left out, one entry per row and output.

    The network has been trained on every group, so its residuals say little about new ones. What is left
    out here is the group's share in the weights themselves: the pseudo-targets t are predicted from the
    other groups, as if the linearised network had been trained without this one.
    """
    assert problem.groups is not None
    values = torch.cat([system.targets, system.residual], dim=1)
    errors, unit = solution.without_groups(values, problem.groups[selection.seen].to(values.device))
    kept = selection.kept.to(values.device)
    unit, amplitude, prior = unit[kept], amplitude[kept], system.diag[kept]
    retrained, corrected = errors[kept].chunk(2, dim=1)
    residual_mean = system.residual[kept] - corrected
    novelty = torch.where(prior > 0, unit / prior, torch.ones_like(prior)).clamp_max(1.0)
    size = residual_mean.shape
    return CalibrationRows(
        residual=(retrained + residual_mean).flatten(),
        residual_mean=residual_mean.flatten(),
        epistemic=(unit[:, None] * amplitude * expert.scale).flatten(),
        noise=expert.noise.expand(size).flatten(),
        novelty=novelty[:, None].expand(size).flatten(),
        log_kappa=expert.kappa.log().expand(size).flatten(),
        output=problem.outputs.to(residual_mean.device).expand(size).flatten(),
        witness_mean=torch.zeros_like(residual_mean).flatten(),  # it joins when all experts are there
        witness_precision=torch.zeros_like(residual_mean).flatten(),
    )
