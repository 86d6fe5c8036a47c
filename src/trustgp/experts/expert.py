"""One expert: rows in, solved state out. Without side effects, so that a worker can solve it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.rows import Rows
from ..data.trees import moved
from ..executors.base import FitContext
from ..math.calibration import MIN_KAPPA
from ..math.evidence import Prior, maximise_evidence, pooled_evidence
from ..math.held_out import CalibrationRows
from ..math.leave_out import leave_out
from ..tangents.base import Features, TangentMap
from .features import NO_COLUMNS, amplitudes, features_at
from .posteriors import Posterior, PriorPosterior, SpanPosterior
from .system import prefer_primal, select_rows

PRIOR_EXPERTS, PRIOR_ROWS = 16, 128  # evenly spread, for the fit of the common prior
MAX_SMALL_NETWORK = (
    2**20
)  # parameters; a larger network, whose passes take longer, uses a quarter of these rows
MAX_LEAVE_OUT_ROWS = 800  # rows of an expert in the prediction of left-out trajectories
# Bounds of a classifier's noise ratio, over the kernel's mean diagonal. The evidence depends on a few rows
# that the network misclassifies; out-of-distribution detection is the same within these bounds
# (docs/classification.md), and worse far outside.
LOWEST, HIGHEST = 1e-2, 1e-1


@dataclass(frozen=True)
class Expert:
    """A solved expert for B outputs."""

    rows: Tensor  # training rows it holds, its own first [m]
    own: Tensor  # how many of them are its own, a scalar
    posterior: Posterior  # predicts
    scale: Tensor  # s over the rows' mean amplitude [B]; see `amplitudes`
    noise: Tensor  # sigma^2 = tau s [B]
    kappa: Tensor  # leave-one-out scale [B]
    jitter: Tensor  # added to the diagonal besides tau, a scalar; usually 0

    @property
    def failed(self) -> bool:
        """Whether the expert could not be solved, so that it predicts the prior."""
        return self.posterior.failed


@dataclass(frozen=True)
class Problem:
    """Data and settings that all experts of one kernel share."""

    rows: Rows  # the training rows
    tangents: TangentMap  # makes features
    outputs: Tensor  # which outputs of the network these experts serve [B]
    residual: Tensor  # r = -H^-1 R, for squared error y - f(x), float64 [n, C]; [n, B] with a blend
    groups: Tensor | None  # trajectory of each row [n]
    cached: Features | None = None  # of all rows, where they are cached; None: computed when needed
    linear: Tensor | None = None  # J theta of all rows [n, C], float64; None: computed when needed
    blend: Tensor | None = None  # combinations of outputs that are learnt [C, B]; None: those it serves
    prior: Prior | None = None  # the scale and noise ratio of all experts; None: each finds its own
    rank: int | None = None  # the most directions that an expert keeps; None: all
    # kernel that predicts left-out trajectories from rows of an expert and its neighbours; None: its own
    leave_out_tangents: TangentMap | None = None
    retrained: Tensor | None = (
        None  # `retrained_errors` of all rows [n, B], where one kernel serves every expert
    )

    def residual_at(self, rows: Tensor) -> Tensor:
        """r of these rows, shape [m, B]."""
        chosen = self.residual[rows]
        chosen = chosen[:, self.outputs] if self.blend is None else chosen
        return chosen.to(self.tangents.network.device)

    def weigh(self, features: Any, rows: Tensor) -> Any:
        """Features of the rows times the roots of their weights, as if all rows had the same noise."""
        return features if self.rows.weights is None else features.scaled(self.roots(rows)[:, 0])

    def roots(self, rows: Tensor) -> Tensor:
        """Roots of the weights of these rows [m, 1], float64; 1 without weights."""
        weights, device = self.rows.weights_at(rows), self.tangents.network.device
        if weights is None:
            return torch.ones(1, 1, dtype=torch.float64, device=device)
        return weights.sqrt()[:, None].to(device)

    def targets_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Pseudo-targets: r plus J theta over the kept columns, shape [m, B], float64."""
        if self.linear is not None:
            return self._served(self.linear[rows.to(self.linear.device)]) + self.residual_at(rows)
        network, direction = self.tangents.network, self.tangents.direction(columns)
        size = network.pass_rows(self.rows.first)
        parts = [network.directional(self.rows.take(part), direction) for part in rows.split(size)]
        return torch.cat([self._served(part.double()) for part in parts]) + self.residual_at(rows)

    def every(self, stride: int) -> Problem:
        """The problem restricted to every `stride`-th row."""
        index = torch.arange(0, len(self.rows), stride)
        cached = self.cached
        if cached is not None:
            cached = cached.take(index.to(next(iter(cached.tensors().values())).device))
        parts = {name: getattr(self, name) for name in ("residual", "groups", "linear")}
        taken = {k: None if v is None else v[index.to(v.device)] for k, v in parts.items()}
        return replace(self, rows=self.rows.every(stride), cached=cached, **taken)

    def _served(self, values: Tensor) -> Tensor:
        """The outputs, or combinations, of values [m, C] that the experts learn, shape [m, B]."""
        return values[:, self.outputs] if self.blend is None else values @ self.blend.to(values)


@dataclass(frozen=True)
class Task:
    """One expert to solve."""

    own: Tensor  # its rows [k]
    candidates: Tensor  # neighbours' rows near the border [l]
    borrowed: int  # the most of the candidates that it takes
    number: int = 0  # of the expert, for messages
    judged: bool = False  # whether its left-out rows are returned
    around: Tensor = NO_COLUMNS  # rows of its neighbours, where the problem has `leave_out_tangents`


@dataclass(frozen=True)
class Solved:
    """A solved expert, and its left-out rows where the task asks for them."""

    expert: Expert
    held_out: CalibrationRows | None


@torch.no_grad()
def solve_expert(problem: Problem, task: Task) -> Solved:
    """Choose the rows, solve the expert, and calibrate it by leave-one-out.

    With groups, each row is left out with its whole group; there is one entry per row and output. The network
    was trained on every group, so its residuals underestimate errors on new ones. Here the group's share in
    the weights is left out: the pseudo-targets t are predicted from the other groups, as if the
    linearised network had been trained without this one. Raises `FactorisationError` where the kernel of
    these rows cannot be factorised.
    """
    tangents, columns, device = problem.tangents, NO_COLUMNS, problem.tangents.network.device
    # inputs are read only where columns are selected
    if tangents.num_columns(expert=True) != tangents.num_columns(expert=False):
        columns = tangents.columns(problem.rows.take(task.own))
    few, cached = prefer_primal(tangents.num_columns(expert=True), len(task.own)), problem.cached
    candidates = task.candidates if task.borrowed else task.candidates[:0]
    if few and cached is not None and len(task.own) == len(cached) and bool((task.own.diff() == 1).all()):
        # not moved: all of them may not fit on the device
        own, border = cached.select(columns), features_at(tangents, problem.rows, candidates, columns, cached)
    else:
        both = features_at(tangents, problem.rows, torch.cat([task.own, candidates]), columns, cached)
        halves = (slice(len(task.own)), slice(len(task.own), None))
        own, border = (moved(both, itemgetter(half)) for half in halves)
    rows = select_rows(task.own, problem.weigh(own, task.own), device)
    if len(candidates):
        rows = rows.borrow(candidates, problem.weigh(border, candidates), task.borrowed)
    root = problem.roots(rows.seen)
    residual = problem.residual_at(rows.seen) * root
    # a given prior does not depend on the targets
    targets = problem.targets_at(rows.seen, columns) * root if problem.prior is None else residual
    solution = rows.solve(columns, targets, residual, problem.prior)
    blended = problem.blend is not None
    amplitude = torch.cat([amplitudes(tangents, part, blended=blended) for part in rows.parts(device)])
    scale, noise = solution.scale / amplitude.mean(dim=0), solution.tau * solution.scale
    errors, variances = solution.leave_out(residual, None)
    ratios = errors.square() / (solution.unit(variances)[:, None] * amplitude * scale + noise)
    expert = Expert(
        rows=rows.seen,
        own=torch.tensor(len(task.own)),
        posterior=solution.posterior.truncate(problem.rank),
        scale=scale,
        noise=noise,
        kappa=ratios[: len(task.own)].mean(dim=0).clamp_min(MIN_KAPPA),
        jitter=solution.jitter,
    )
    if not task.judged:
        return Solved(expert, None)
    values, groups = torch.cat([targets, residual], dim=1), problem.groups
    kept = torch.arange(len(task.own), device=device)
    errors, variances = solution.leave_out(values, None if groups is None else groups[rows.seen].to(device))
    unit, prior = solution.unit(variances), solution.prior
    retrained, corrected = errors.chunk(2, dim=1)
    retrained, residual_mean = (retrained / root)[kept], (residual - corrected) / root
    if problem.leave_out_tangents is not None:
        kept, retrained = _retrained(problem, problem.leave_out_tangents, task)
    every = {
        "residual_mean": residual_mean,
        "epistemic": unit[:, None] / root.square() * amplitude * scale,
        "novelty": torch.where(prior > 0, unit / prior, 1.0).clamp_max(1.0)[:, None],
        "noise": noise.expand_as(residual),
        "log_kappa": expert.kappa.log().expand_as(residual),
    }
    held_out = {name: value[kept] for name, value in every.items()}
    held_out["residual"] = retrained + held_out["residual_mean"]
    return Solved(expert, CalibrationRows.of(problem.outputs, **held_out))


def _retrained(problem: Problem, tangents: TangentMap, task: Task) -> tuple[Tensor, Tensor]:
    """Positions [k] of own rows, and their errors t - t_(-g) [k, B] when each, or its whole group, is left
    out of the rows of this expert and its neighbours: its own rows may come from few trajectories."""
    kept = evenly(len(task.own), MAX_LEAVE_OUT_ROWS)
    if problem.retrained is not None:
        return kept.to(problem.retrained.device), problem.retrained[task.own[kept]]
    errors = retrained_errors(problem, tangents, torch.cat([task.own[kept], task.around]))
    return kept.to(errors.device), errors[: len(kept)]


@torch.no_grad()
def retrained_errors(problem: Problem, tangents: TangentMap, rows: Tensor) -> Tensor:
    """Errors t - t_(-g) of these rows [k, B] when each row, or its whole group, is left out."""
    cached = problem.cached if tangents is problem.tangents else None
    features = problem.weigh(features_at(tangents, problem.rows, rows, NO_COLUMNS, cached), rows)
    root = problem.roots(rows)
    targets = problem.targets_at(rows, NO_COLUMNS) * root
    factor = maximise_evidence(features.gram(features), targets).factor
    groups = None if problem.groups is None else problem.groups[rows].to(targets.device)
    return leave_out(torch.cholesky_inverse(factor), targets, groups)[0] / root


@torch.no_grad()
def extended_expert(problem: Problem, expert: Expert, own: Tensor, first: int, rank: int | None) -> Expert:
    """Light expert with more own rows: `own` among the new rows, which are numbered from `first` on.

    The leave-one-out scale is the mean over all its own rows: each new one is predicted before it is added.
    """
    if not isinstance(expert.posterior, SpanPosterior):  # it could not be solved
        return expert
    posterior = expert.posterior
    features = features_at(problem.tangents, problem.rows, own, posterior.columns, None)
    residual, predicted = problem.residual_at(own), posterior(features)
    amplitude = amplitudes(problem.tangents, features, blended=problem.blend is not None)
    variance = predicted.unit[:, None] * amplitude * expert.scale + expert.noise
    ratios = (residual - predicted.residual_mean).square() / variance
    before = expert.own.to(ratios)
    tau = (expert.noise / expert.scale).mean()  # approximate for several outputs: each has its own amplitude
    phi = features.explicit()
    assert phi is not None, "a light expert has explicit features"
    more = posterior.extended(phi, residual, tau).truncate(rank)
    before_own, borrowed = expert.rows.split([int(expert.own), len(expert.rows) - int(expert.own)])
    return replace(
        expert,
        rows=torch.cat([before_own, own.to(borrowed) + first, borrowed]),
        own=expert.own + len(own),
        posterior=more,
        kappa=(before * expert.kappa + ratios.sum(dim=0)) / (before + len(own)),
    )


def prior_expert(task: Task, siblings: list[Expert]) -> Expert:
    """Substitute for an expert that could not be solved: the typical scale of the others, no rows."""

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


def agree_on_prior(problem: Problem, tasks: list[Task], context: FitContext) -> Prior:
    """Scale and noise ratio that maximise the marginal likelihood of rows of several experts together.

    An expert's own evidence depends on its own rows only: where they are easy its noise ratio vanishes, and
    with it the variance of out-of-distribution rows. Variances of several experts are comparable only under
    one prior.
    """
    filled = [task for task in tasks if len(task.own)]
    chosen = [filled[int(i)] for i in evenly(len(filled), PRIOR_EXPERTS)]

    tangents = problem.tangents
    most = PRIOR_ROWS if tangents.network.num_parameters <= MAX_SMALL_NETWORK else PRIOR_ROWS // 4
    lots = [task.own[evenly(len(task.own), most)] for task in chosen]

    given: list[Tensor | None] = [None] * len(lots)
    if tangents.num_columns(expert=True) == tangents.num_columns(
        expert=False
    ):  # in as few passes as possible
        given = [*problem.targets_at(torch.cat(lots), NO_COLUMNS).split([*map(len, lots)])]

    @torch.no_grad()
    def gram_and_targets(pair: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
        rows, targets = pair
        columns = tangents.columns(problem.rows.take(rows))
        features = features_at(tangents, problem.rows, rows, columns, problem.cached)
        targets = problem.targets_at(rows, columns) if targets is None else targets
        features = problem.weigh(features, rows)
        return features.gram(features), targets * problem.roots(rows)

    systems = context.inline().map(gram_and_targets, [*zip(lots, given, strict=True)])
    return pooled_evidence(systems, lowest=LOWEST, highest=HIGHEST)


def prior_of(experts: tuple[Expert, ...]) -> Prior:
    """The prior that these experts share."""
    first = next(expert for expert in experts if not expert.failed)
    scale = first.scale[0]
    return Prior(tau=first.noise[0] / scale, scale=scale)
