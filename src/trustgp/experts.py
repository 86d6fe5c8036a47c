"""One expert: rows in, solved state out. Pure, so that it can be shipped to a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .data import Inputs, Rows, count, rows_at_once, take
from .equations import Equations, Solution, solve
from .halving import in_chunks
from .math import selection
from .math.calibration import HeldOut
from .math.evidence import Prior
from .posteriors import GramPosterior, PriorPosterior, RootPosterior, SpanPosterior
from .tangents.base import Features, TangentMap, chunk_bytes, most_rows

# Noise ratio assumed while rows are chosen, before the evidence has spoken, over the mean diagonal.
SELECTION_NOISE = 1e-4
# A network that meets every target exactly would otherwise claim to be certain everywhere.
LEAST_KAPPA = 1e-6
# Of the outputs' average: one whose own gradient vanishes here is not certain for that.
LEAST_AMPLITUDE = 1e-2
NO_COLUMNS = torch.empty(0, dtype=torch.int64)


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
    posterior: GramPosterior | RootPosterior | SpanPosterior | PriorPosterior
    scale: Tensor
    noise: Tensor
    kappa: Tensor
    jitter: Tensor

    @property
    def columns(self) -> Tensor:
        """The feature columns it keeps; empty: all."""
        return self.posterior.columns if isinstance(self.posterior, SpanPosterior) else NO_COLUMNS

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
        cap: The most of its own rows it may hold; the others count through these.
        lend: How many candidates it takes.
        number: Of the expert, for messages.
    """

    own: Tensor
    candidates: Tensor
    cap: int
    lend: int
    number: int = 0


@dataclass(frozen=True)
class Solved:
    """A solved expert, and its left-out groups if there are groups."""

    expert: Expert
    held_out: HeldOut | None


def features_at(
    tangents: TangentMap, rows: Rows, index: Tensor, columns: Tensor, known: Features | None
) -> Features:
    """Features of the rows `index`: taken from those that are known, or made."""
    if known is None:
        return _made(tangents, rows.take, index, columns)
    return known.take(index.to(tangents.network.device)).select(columns)


def features_of(tangents: TangentMap, inputs: Inputs, columns: Tensor) -> Features:
    """Features made chunk by chunk, an expert's columns selected at once."""
    return _made(tangents, lambda index: take(inputs, index), torch.arange(count(inputs)), columns)


def _made(
    tangents: TangentMap, taken: Callable[[Tensor], Inputs], index: Tensor, columns: Tensor
) -> Features:
    """Features of the rows `index`, whose inputs are `taken` chunk by chunk too."""

    def make(part: Tensor) -> Features:
        return tangents(taken(part)).select(columns)

    size = min(chunk_rows(tangents), rows_at_once(taken(index[:1]), tangents.network.device))
    parts = in_chunks(make, index, size)
    return parts[0] if len(parts) == 1 else tangents.kind.cat(parts)


def amplitudes(tangents: TangentMap, features: Features, *, blended: bool = False) -> Tensor:
    r"""How much more, or less, than the average each output may vary at x, shape [n, B] or [n, 1].

    .. math:: \alpha_c(x) = |J_c(x)|^2 \Big/ \tfrac1C \sum_{c'} |J_{c'}(x)|^2

    A kernel that all outputs share says how much of the prior variance the rows leave at x. That prior is
    not the same for all: output c has its own gradient. With a kernel of its own, or where the outputs
    are not told apart, it is 1.

    Args:
        tangents: Made the features.
        features: An expert's columns selected.
        blended: Whether the experts learn one combination of the outputs, and none on its own.
    """
    parts = tangents.parts(features) if len(tangents.mix) > 1 and not blended else None
    if parts is None:
        return torch.ones(len(features), 1, dtype=torch.float64, device=tangents.network.device)
    mean = parts.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, parts / mean, 1.0).clamp_min(LEAST_AMPLITUDE)


def chunk_rows(tangents: TangentMap) -> int:
    """Rows whose features are made at a time."""
    room = chunk_bytes(tangents) // max(1, tangents.working_bytes())
    return max(1, min(most_rows(tangents.network.device), room))


@torch.no_grad()
def solve_expert(problem: Problem, task: Task) -> Solved:
    """Choose the rows, solve, calibrate by leaving out.

    Raises:
        FactorisationError: When the kernel on these rows cannot be factorised.
    """
    tangents = problem.tangents
    columns = NO_COLUMNS
    if tangents.width(expert=True) != tangents.width(expert=False):  # else no inputs need be taken for it
        columns = tangents.columns(problem.rows.take(task.own))
    own = features_at(tangents, problem.rows, task.own, columns, problem.known)
    view, kept = _view(own, task.cap)
    held, seen = task.own[kept], task.own
    if len(task.candidates) and task.lend:
        border = features_at(tangents, problem.rows, task.candidates, columns, problem.known)
        view, lent = view.borrow(border, task.lend)
        held, seen = (torch.cat([rows, task.candidates[lent]]) for rows in (held, seen))
    residual = problem.residual_at(seen)
    # with a prior at hand there is nothing to learn from the targets
    targets = problem.linear_part(seen, columns) + residual if problem.prior is None else residual
    equations = Equations(view.held, columns, view.gram, view.cross, view.seen.diag(), targets, residual)
    return _solved(problem, equations, _Share(held, kept, seen, len(task.own), view.seen))


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
class _View:
    """What an expert sees and holds, while its rows are chosen.

    Args:
        seen: Features of all rows that count, m.
        held: Features of those that stay, r.
        gram: K between the held rows, shape [r, r].
        cross: K between held and seen rows, shape [r, m]; None: the same rows.
    """

    seen: Features
    held: Features
    gram: Tensor
    cross: Tensor | None

    def borrow(self, border: Features, lend: int) -> tuple[_View, Tensor]:
        """Add the `lend` candidates that the held rows leave most uncertain; and which they are."""
        aside, corner = self.held.gram(border), border.gram(border)
        noise = SELECTION_NOISE * float(self.gram.diagonal().mean())
        left = selection.condition(corner, aside, self.gram, noise)
        lent = selection.greedy_rows(left, lend, noise)
        added, aside, corner = border.take(lent), aside[:, lent], corner[lent][:, lent]
        gram = _framed(self.gram, aside, aside.T, corner)
        held = type(self.held).cat([self.held, added])
        if self.cross is None:
            return _View(held, held, gram, None), lent.cpu()
        seen = type(self.seen).cat([self.seen, added])
        return _View(seen, held, gram, _framed(self.cross, aside, added.gram(self.seen), corner)), lent.cpu()


def _view(own: Features, cap: int) -> tuple[_View, Tensor]:
    """An expert with at most `cap` of its own rows, the most informative first; and which, as positions."""
    gram = own.gram(own)
    if len(gram) <= cap:
        return _View(own, own, gram, None), torch.arange(len(gram))
    noise = SELECTION_NOISE * float(gram.diagonal().mean())
    kept = selection.greedy_rows(gram, cap, noise)
    return _View(own, own.take(kept), gram[kept][:, kept], gram[kept]), kept.cpu()


def _framed(body: Tensor, right: Tensor, below: Tensor, corner: Tensor) -> Tensor:
    """A matrix with columns and rows added."""
    return torch.cat([torch.cat([body, right], dim=1), torch.cat([below, corner], dim=1)])


@dataclass(frozen=True)
class _Share:
    """Which rows an expert has.

    Args:
        held: Rows it holds, its own first, shape [r].
        kept: Those of its own, as positions among its own.
        seen: Rows it sees, its own first, shape [m].
        own: How many it sees are its own.
        features: Of the rows it sees.
    """

    held: Tensor
    kept: Tensor
    seen: Tensor
    own: int
    features: Features


def _solved(problem: Problem, equations: Equations, share: _Share) -> Solved:
    """Evidence, posterior and leave-out figures."""
    solution = solve(equations, problem.prior)
    amplitude = amplitudes(problem.tangents, share.features, blended=problem.blend is not None)
    scale, noise = solution.scale / amplitude.mean(dim=0), solution.tau * solution.scale
    ratios = solution.errors.square() / (solution.unit[:, None] * amplitude * scale + noise)
    expert = Expert(
        rows=share.held,
        own=torch.tensor(len(share.kept)),
        posterior=solution.posterior,
        scale=scale,
        noise=noise,
        kappa=ratios[: share.own].mean(dim=0).clamp_min(LEAST_KAPPA),
        jitter=solution.jitter,
    )
    if problem.groups is None:
        return Solved(expert, None)
    return Solved(expert, _left_out(problem, equations, share, solution, expert, amplitude))


def _left_out(
    problem: Problem,
    equations: Equations,
    share: _Share,
    solution: Solution,
    expert: Expert,
    amplitude: Tensor,
) -> HeldOut:
    """Its own rows that it holds, with their whole group left out, one entry per row and output.

    The network has been trained on every group, so its residuals say little about new ones. What is left
    out here is the group's share in the weights themselves: the pseudo-targets t are predicted from the
    other groups, as if the linearised network had been trained without this one.
    """
    assert problem.groups is not None
    values = torch.cat([equations.targets, equations.residual], dim=1)
    errors, unit = solution.without_groups(values, problem.groups[share.seen].to(values.device))
    kept = share.kept.to(values.device)
    unit, amplitude, prior = unit[kept], amplitude[kept], equations.diag[kept]
    retrained, corrected = errors[kept].chunk(2, dim=1)
    shift = equations.residual[kept] - corrected
    novelty = torch.where(prior > 0, unit / prior, torch.ones_like(prior)).clamp_max(1.0)
    size = shift.shape
    return HeldOut(
        residual=(retrained + shift).flatten(),
        shift=shift.flatten(),
        epistemic=(unit[:, None] * amplitude * expert.scale).flatten(),
        noise=expert.noise.expand(size).flatten(),
        novelty=novelty[:, None].expand(size).flatten(),
        log_kappa=expert.kappa.log().expand(size).flatten(),
        output=problem.outputs.to(shift.device).expand(size).flatten(),
        witness_shift=torch.zeros_like(shift).flatten(),  # it is heard when all experts are there
        witness_precision=torch.zeros_like(shift).flatten(),
    )
