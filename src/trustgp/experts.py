"""One expert: rows in, solved state out. Pure, so that it can be shipped to a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .data import Inputs, Rows, count, rows_at_once, take
from .halving import in_chunks
from .math import selection
from .math.calibration import HeldOut, leave_groups_out, leave_one_out
from .math.evidence import Evidence, Prior, factorise, maximise_evidence
from .posteriors import GramPosterior, PriorPosterior, SpanPosterior, make_posterior
from .tangents.base import Features, TangentMap, chunk_bytes

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
    posterior: GramPosterior | SpanPosterior | PriorPosterior
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


def chunk_rows(tangents: TangentMap, *, most: int = 1024) -> int:
    """Rows per chunk, so that what is needed on the way stays near 64 KiB for each of `most` rows."""
    return max(
        1, min(most, chunk_bytes(tangents, least=most * 64 * 2**10) // max(1, tangents.working_bytes()))
    )


@torch.no_grad()
def solve_expert(problem: Problem, task: Task) -> Solved:
    """Choose the rows, solve, calibrate by leaving out.

    Raises:
        FactorisationError: When the kernel on these rows cannot be factorised.
    """
    tangents, device = problem.tangents, problem.tangents.network.device
    columns = NO_COLUMNS
    if tangents.width(expert=True) != tangents.width(expert=False):  # else no inputs need be taken for it
        columns = tangents.columns(problem.rows.take(task.own))
    features = features_at(tangents, problem.rows, task.own, columns, problem.known)
    gram = features.gram(features)
    kept = _choose_own(gram, task.cap)
    rows = task.own[kept]
    if len(kept) < len(task.own):
        features, gram = features.take(kept.to(device)), gram[kept][:, kept]
    if len(task.candidates) and task.lend:
        border = features_at(tangents, problem.rows, task.candidates, columns, problem.known)
        features, gram, lent = _borrow(features, gram, border, task.lend)
        rows = torch.cat([rows, task.candidates[lent]])
    residual = problem.residual_at(rows)
    # with a prior at hand there is nothing to learn from the targets
    targets = problem.linear_part(rows, columns) + residual if problem.prior is None else residual
    return _solve(problem, _System(rows, len(kept), features, columns, gram, targets, residual))


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


@dataclass(frozen=True)
class _System:
    """The equations of one expert: m rows, the first `own` of them its own."""

    rows: Tensor
    own: int
    features: Features
    columns: Tensor
    gram: Tensor  # K [m, m]
    targets: Tensor  # t [m, B]
    residual: Tensor  # r [m, B]


def _solve(problem: Problem, system: _System) -> Solved:
    """Evidence, posterior and leave-out figures."""
    evidence = _evidence(system, problem.prior)
    amplitude = amplitudes(problem.tangents, system.features, blended=problem.blend is not None)
    scale, noise = evidence.scale / amplitude.mean(dim=0), evidence.tau * evidence.scale
    inverse = torch.cholesky_inverse(evidence.factor)
    errors, variances = leave_one_out(inverse, system.residual)
    ratios = errors.square() / (_unit(variances, evidence)[:, None] * amplitude * scale + noise)
    weights = inverse @ system.residual
    expert = Expert(
        rows=system.rows,
        own=torch.tensor(system.own),
        posterior=make_posterior(system.features, system.columns, evidence, weights),
        scale=scale,
        noise=noise,
        kappa=ratios[: system.own].mean(dim=0).clamp_min(LEAST_KAPPA),
        jitter=evidence.jitter,
    )
    if problem.groups is None:
        return Solved(expert, None)
    labels = problem.groups[system.rows].to(inverse.device)
    errors, variances = leave_groups_out(inverse, torch.cat([system.targets, system.residual], dim=1), labels)
    unit = _unit(variances, evidence)
    return Solved(expert, _left_out(problem, system, expert, errors, unit, amplitude))


def _unit(variances: Tensor, evidence: Evidence) -> Tensor:
    """Of left-out rows, over s and without the noise; 1 / Q_ii >= tau but for rounding."""
    return (variances - evidence.tau).clamp_min(0.0)


def _evidence(system: _System, prior: Prior | None) -> Evidence:
    """Scale, noise ratio and factor: by the expert's own evidence, or those that all experts share."""
    if prior is None:
        return maximise_evidence(system.gram, system.targets)
    factor, jitter = factorise(system.gram, float(prior.tau))
    tau, scale = prior.tau.to(system.gram), prior.scale.to(system.gram)
    return Evidence(tau, scale.repeat(system.targets.shape[1]), factor, system.gram.new_tensor(jitter))


def _left_out(
    problem: Problem, system: _System, expert: Expert, errors: Tensor, unit: Tensor, amplitude: Tensor
) -> HeldOut:
    """Own rows with their whole group left out, one entry per row and output.

    The network has been trained on every group, so its residuals say little about new ones. What is left
    out here is the group's share in the weights themselves: the pseudo-targets t are predicted from the
    other groups, as if the linearised network had been trained without this one.

    Args:
        errors: Of the pseudo-targets and of the residuals, side by side, shape [m, 2 B].
        unit: Variance of the left-out rows over s, shape [m].
        amplitude: See `amplitudes`.
    """
    unit, amplitude = unit[: system.own], amplitude[: system.own]
    retrained, corrected = errors[: system.own].chunk(2, dim=1)
    shift = system.residual[: system.own] - corrected
    prior = system.gram.diagonal()[: system.own]
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
