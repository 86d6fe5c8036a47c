"""Primal systems of several experts in stacked tensors: a GPU takes each step for all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.chunking import evenly
from ..math.calibration import MIN_KAPPA
from ..math.evidence import FactorisationError, stacked_evidence
from ..tangents.base import Features
from ..tangents.rows import RowFeatures
from .expert import Expert, Problem, Solved, Task
from .features import NO_COLUMNS, amplitudes
from .posteriors import SpanPosterior
from .system import prefer_primal

MAX_GROUP = 128  # experts whose systems are decomposed in one call
LOT_BYTES = 2**29  # of float64 features in one batch of experts
MIN_GROUP = 2
DEVICES = ("cuda",)  # where many small steps cost more than padding
Moments = tuple[Tensor, Tensor, Tensor, Tensor]


def solved_together(problem: Problem, tasks: Sequence[Task]) -> list[list[int]]:
    """Groups of tasks, by position, that `solve_group` can solve, of similar numbers of rows: their features
    are cached on the GPU and have fewer columns than rows, and they return no left-out rows."""
    cached, device = problem.cached, problem.tangents.network.device
    width, own = (problem.tangents.num_columns(expert=expert) for expert in (False, True))
    if device.type not in DEVICES or not isinstance(cached, RowFeatures) or cached.rows.device != device:
        return []
    if width is None or width != own:
        return []
    fits = [i for i, task in enumerate(tasks) if not task.judged and prefer_primal(width, len(task.own))]
    fits.sort(key=lambda i: len(tasks[i].own) + _borrowed(tasks[i]))
    groups = [fits[start : start + MAX_GROUP] for start in range(0, len(fits), MAX_GROUP)]
    return [group for group in groups if len(group) >= MIN_GROUP]


def group_bytes(width: int) -> int:
    """Peak memory of `solve_group` in bytes, besides the experts themselves."""
    return 3 * LOT_BYTES + 8 * 8 * MAX_GROUP * width**2


@torch.no_grad()
def solve_group(problem: Problem, tasks: Sequence[Task]) -> list[Solved]:
    """Solve the tasks, equal to `solve_expert` of each up to rounding. It waits for the GPU only a few times,
    however many there are. Raises `FactorisationError` where any of them cannot be solved."""
    lots = list(_lots(problem, tasks))
    parts = [lot.moments(problem) for lot in lots]
    gram, by_target, by_residual, energy = (torch.cat(part) for part in zip(*parts, strict=True))
    rows = torch.cat([lot.inside.sum(dim=1) for lot in lots]).double()
    level = gram.diagonal(dim1=1, dim2=2).sum(dim=1) / rows
    values, rotation = torch.linalg.eigh(gram)
    values, eps = values.clamp_min(0.0), torch.finfo(values.dtype).eps
    spanned = values > values[:, -1:] * values.shape[1] * eps
    if problem.prior is None:
        shares = (rotation.mT @ by_target).square() / torch.where(spanned, values, 1.0)[..., None]
        shares = torch.where(spanned[..., None], shares, 0.0)
        others = (energy - shares.sum(dim=1)).clamp_min(0.0)[:, None]  # they have the eigenvalue 0
        tau, scale = stacked_evidence(
            nn.functional.pad(values, (0, 1)), torch.cat([shares, others], dim=1), rows, level
        )
    else:
        tau, scale = problem.prior.at(by_residual[0])
        tau, scale = tau.expand(len(tasks)), scale.expand(len(tasks), -1)
    white = rotation / (values + tau[:, None]).sqrt()[:, None]
    weights = white @ (white.mT @ by_residual)
    numbers, start = [], 0
    for lot in lots:
        one = slice(start, start := start + len(lot.inside))
        numbers.append(lot.left_out(problem, tau[one], scale[one], white[one], weights[one]))
    scale, noise, kappa = (torch.cat(part) for part in zip(*numbers, strict=True))
    most = values.shape[1] if problem.rank is None else min(problem.rank, values.shape[1])
    shrinkage = tau[:, None] / (values + tau[:, None])
    order = torch.where(spanned, shrinkage, torch.inf).argsort(dim=1, stable=True)  # the best determined
    kept = order[:, :most].sort(dim=1).values
    basis = rotation.gather(2, kept[:, None].expand(-1, rotation.shape[1], -1))
    basis = basis.to(problem.tangents.network.dtype)
    shrinkage, finite = shrinkage.gather(1, kept), torch.isfinite(kappa.sum(dim=1) + weights.sum(dim=(1, 2)))
    counts, valid = torch.stack([spanned.sum(dim=1).clamp_max(most), finite]).tolist()  # one copy for all
    if not all(valid):
        raise FactorisationError("the kernel of an expert is not finite, or not positive definite.")
    seen, jitter = [rows for lot in lots for rows in lot.seen], torch.zeros_like(tau)
    results = []
    for i, (task, count) in enumerate(zip(tasks, counts, strict=True)):
        # directions outside the span come first
        span = basis[i, :, most - count :], shrinkage[i, most - count :]
        posterior = SpanPosterior(NO_COLUMNS, *span, weights[i])
        numbers = (scale[i], noise[i], kappa[i], jitter[i])
        results.append(Solved(Expert(seen[i], torch.tensor(len(task.own)), posterior, *numbers), None))
    return results


def _borrowed(task: Task) -> int:
    return min(task.borrowed, len(task.candidates))


def _lots(problem: Problem, tasks: Sequence[Task]) -> Iterator[_Lot]:
    """Yield the rows of the tasks in batches whose features take little memory."""
    seen = [
        torch.cat([task.own, task.candidates[evenly(len(task.candidates), _borrowed(task))]])
        for task in tasks
    ]
    device, width = problem.tangents.network.device, problem.tangents.num_columns(expert=True) or 1
    start = 0
    while start < len(tasks):
        longest = max(map(len, seen[start:]))
        lot = slice(start, start := start + max(1, LOT_BYTES // (8 * width * longest)))
        index = nn.utils.rnn.pad_sequence(seen[lot], batch_first=True)
        sizes = [[len(rows) for rows in seen[lot]], [len(task.own) for task in tasks[lot]]]
        index, sizes = index.to(device), torch.tensor(sizes, device=device)
        place = torch.arange(index.shape[1], device=device)
        yield _Lot(seen[lot], index, place < sizes[0, :, None], place < sizes[1, :, None])


@dataclass(frozen=True)
class _Lot:
    """Rows of g experts, padded to the longest."""

    seen: list[Tensor]  # on the CPU
    index: Tensor  # [g, m]
    inside: Tensor  # which are rows, and not padding [g, m]
    own: Tensor  # which are the expert's own [g, m]

    def features(self, problem: Problem) -> tuple[Tensor, Features]:
        """Phi, zeros in the padding, float64 [g, m, d], and the features that it was made from."""
        assert isinstance(problem.cached, RowFeatures)
        rows = problem.cached.take(self.index.flatten())
        return rows.rows.double().unflatten(0, self.index.shape).mul_(self.roots(problem)), rows

    def roots(self, problem: Problem) -> Tensor:
        """Roots of the rows' weights, 0 in the padding, [g, m, 1]."""
        roots = problem.roots(self.index.flatten())
        return (roots if len(roots) == 1 else roots.view_as(self.index[..., None])) * self.inside[..., None]

    def values(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """t and r, zeros in the padding, [g, m, B]; with a common prior r is t."""
        flat = self.index.flatten()
        residual = problem.residual_at(flat)
        targets = problem.targets_at(flat, NO_COLUMNS) if problem.prior is None else residual
        targets, residual = (
            value.unflatten(0, self.index.shape) * self.roots(problem) for value in (targets, residual)
        )
        return targets, residual

    def moments(self, problem: Problem) -> Moments:
        """Phi^T Phi [g, d, d], Phi^T t, Phi^T r [g, d, B], and |t|^2 [g, B]."""
        (phi, _), (targets, residual) = self.features(problem), self.values(problem)
        return phi.mT @ phi, phi.mT @ targets, phi.mT @ residual, targets.square().sum(dim=1)

    def left_out(
        self, problem: Problem, tau: Tensor, scale: Tensor, white: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scale over the mean amplitude, noise and leave-one-out scale, [g, B] each; see
        `LowRank.leave_out`."""
        (phi, rows), residual, ratio = self.features(problem), self.values(problem)[1], tau[:, None, None]
        amplitude = amplitudes(problem.tangents, rows, blended=problem.blend is not None)
        amplitude = amplitude.unflatten(0, self.index.shape) * self.inside[..., None]
        noise, mean = tau[:, None] * scale, amplitude.sum(dim=1) / self.inside.sum(dim=1, keepdim=True)
        scale = scale / mean
        free = (1.0 - (phi @ white).square().sum(dim=2)).clamp_min(torch.finfo(phi.dtype).eps)[..., None]
        errors = (residual - phi @ weights) / free
        variance = (ratio / free - ratio).clamp_min(0.0) * amplitude * scale[:, None] + noise[:, None]
        ratios = torch.where(self.own[..., None], errors.square() / variance, 0.0).sum(dim=1)
        return scale, noise, (ratios / self.own.sum(dim=1, keepdim=True)).clamp_min(MIN_KAPPA)
