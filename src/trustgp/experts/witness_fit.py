"""How a witness is found: divide the inputs into cells, give each the nearest rows of others, solve."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.rows import Rows
from ..data.trees import Inputs, leaves
from ..executors import FitContext, Threads
from ..math.calibration import LEAST_KAPPA, leave_groups_out, leave_one_out, reached
from ..math.evidence import choose_length, distances, factorise, profile_scale
from .gate import find_centroids, nearest_two
from .posteriors import GramPosterior
from .witness import Cell, PointFeatures, Witness, WitnessPrediction, WitnessState, vectors_of

FEWEST_ROWS = 50  # with fewer rows it has nothing to go by
MOST_CELLS = 1024  # of more rows than these hold it would be larger, and slower to find, than the experts
SMALLER = (500, 350, 250, 150, 100, 64)  # rows of a cell that are tried where a budget is tight
PRIOR_SUBSET = 3  # cells that decide on the length and the noise ratio for all
NEARBY = 8  # other cells among whose rows those to borrow are looked for
MOST_JUDGED = 2**16  # rows that decide, of many more, whether a cell is too large and is split
STILL = 1e-12  # times its mean: a column that varies by less is constant, but for rounding
LEAST_VARIANCE = 1e-8  # of the targets' own: no claim is finer than this
SILENT = 1e150  # a variance that says nothing, and can be saved
LEAST = torch.finfo(torch.float64).tiny  # of what must stay positive
Members = dict[int, tuple[Tensor, int]]  # the rows of each cell, its own first, and how many are its own


@torch.no_grad()
def find_witness(
    rows: Rows, setting: Witness | None, context: FitContext, room: int | None
) -> WitnessState | None:
    """A second opinion on the training rows; None where none is wanted, or can be, within `room` bytes."""
    if setting is None or not witness_applies(len(rows), rows.first, setting):
        return None
    vectors, targets = vectors_of(rows.inputs).to(context.device), rows.targets.to(context.device).double()
    empty = _empty(vectors, targets)
    if not all(bool(torch.isfinite(scale).all()) for scale in (empty.offset, empty.spread, empty.floor)):
        return None  # the squares of inputs or targets overflow
    points = empty.scaled(vectors)
    for size in (setting.rows, *(smaller for smaller in SMALLER if smaller < setting.rows)):
        if room is not None and 8 * len(rows) ** 2 // math.ceil(len(rows) / size) > room:
            continue  # the factors of its own rows alone are too large
        state = replace(empty, centroids=_centroids(points, size, context.seed), size=torch.tensor(size))
        members = _members(state, points, 2 * size, setting.borrowed)
        sizes = [len(held) for held, _ in members.values()]
        if room is None or witness_bytes(sizes, len(empty.offset), len(empty.floor)) <= room:
            length, ratio = _smoothness(points, targets, members, context)
            state = replace(state, length=length, ratio=ratio)
            cells, novelty = zip(*_solve_cells(state, points, targets, members, context), strict=True)
            return replace(state, reach=reached(torch.cat(novelty)), cells=cells)
    return None


def witness_applies(n: int, inputs: Inputs, setting: Witness) -> bool:
    """Whether n such rows can have a witness: neither too few nor too many, and of few real numbers each."""
    tensors = leaves(inputs)
    real = all(leaf.is_floating_point() and leaf.ndim <= 2 for leaf in tensors)
    few = sum(leaf[:1].numel() for leaf in tensors) <= setting.most_inputs
    return FEWEST_ROWS <= n <= MOST_CELLS * setting.rows and real and few


def witness_bytes(sizes: list[int], num_inputs: int, num_outputs: int) -> int:
    """What a witness with cells of these sizes holds."""
    shared = 8 * (2 * num_inputs + num_outputs + 4)
    each = 8 * (num_inputs + 3 * num_outputs + 2)  # centroid, centre, scale, kappa, own, tau
    return shared + sum(each + 8 * m * (m + num_inputs + num_outputs + 1) for m in sizes)


@torch.no_grad()
def update_witness(
    state: WitnessState, rows: Rows, setting: Witness, context: FitContext, room: int | None
) -> tuple[WitnessState, list[int]]:
    """The witness on all rows, the old ones first: the same cells, length and noise ratio.

    Those cells whose rows changed are solved, and named. It may hold `room` bytes; None: no limit.
    """
    vectors, targets = vectors_of(rows.inputs).to(context.device), rows.targets.to(context.device).double()
    points = state.scaled(vectors)
    members = _members(state, points, 2 * int(state.size), setting.borrowed)
    if room is not None:
        sizes = [len(held) for held, _ in members.values()]

        def nbytes(most: int) -> int:
            return witness_bytes([min(size, most) for size in sizes], len(state.offset), len(state.floor))

        most = max(1, bisect_right(range(1, max(sizes) + 1), room, key=nbytes))  # the most that fit
        members = _members(state, points, most, setting.borrowed)
    changed = {
        number: (held, own)
        for (number, (held, own)), cell in zip(members.items(), state.cells, strict=True)
        if own != int(cell.own) or not torch.equal(held.cpu(), cell.rows.cpu())
    }
    solved = _solve_cells(state, points, targets, changed, context)
    cells = dict(enumerate(state.cells)) | dict(zip(changed, (cell for cell, _ in solved), strict=True))
    return replace(state, cells=tuple(cells.values())), list(changed)


@torch.no_grad()
def groups_left_out(state: WitnessState, targets: Tensor, groups: Tensor) -> WitnessPrediction:
    """What the witness says of each training row when the whole group [n] of the row is left out."""
    targets, groups = targets.to(state.floor), groups.to(state.floor.device)

    @torch.no_grad()
    def leave_out(cell: Cell) -> tuple[Tensor, Tensor]:
        assert isinstance(cell.posterior, GramPosterior), "one that was compressed is not calibrated so"
        rows, inverse = cell.rows.to(targets.device), torch.cholesky_inverse(cell.posterior.factor)
        return leave_groups_out(inverse, targets[rows] - cell.centre, groups[rows])

    def told() -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        results = Threads(1 if targets.is_cuda else None).run(leave_out, state.cells)
        for number, (errors, variances) in results:
            cell, own = state.cells[number], int(state.cells[number].own)
            mine = cell.rows[:own].to(targets.device)
            yield number, mine, targets[mine] - errors[:own], variances[:own] - cell.tau

    return state.gathered(len(targets), told())


def _empty(vectors: Tensor, targets: Tensor) -> WitnessState:
    """A witness without cells: how inputs are scaled, and the finest claim it may make."""
    offset, spread = vectors.mean(dim=0), vectors.std(dim=0)
    # a number that never changed is news as soon as it does
    spread = torch.where(spread > STILL * offset.abs(), spread, 1e-3 * offset.abs().clamp_min(1.0))
    # of an output that never changed there is nothing to say
    varied = targets.std(dim=0) > STILL * targets.mean(dim=0).abs()
    floor = torch.where(varied, (LEAST_VARIANCE * targets.var(dim=0)).clamp_min(LEAST), SILENT)
    nothing = vectors.new_zeros(())
    return WitnessState(offset, spread, vectors[:0], nothing, nothing, torch.tensor(0), nothing, floor, ())


def _centroids(points: Tensor, size: int, seed: int) -> Tensor:
    cells = math.ceil(len(points) / size)
    if cells == 1:
        return points.mean(dim=0, keepdim=True)
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    subset, sample = (
        order[:most].sort().values.to(points.device)
        for most in (max(4096, 8 * cells), max(MOST_JUDGED, 32 * cells))
    )
    return find_centroids(points[subset], points[sample], cells, seed=seed)


def _members(state: WitnessState, points: Tensor, most: int, borrowed: int) -> Members:
    """Of every cell, never more than `most` rows."""
    labels = nearest_two(points, state.centroids)[0]
    owned = [(labels == number).nonzero().flatten() for number in range(len(state.centroids))]
    near = distances(state.centroids, state.centroids).argsort(dim=1, stable=True)
    found = {}
    for number, own in enumerate(owned):
        own = own[evenly(len(own), most).to(own.device)]
        others = [owned[other] for other in near[number].tolist() if other != number][:NEARBY]
        offered = torch.cat(others) if others else own[:0]
        nearest = _nearest_others(points, own, offered, borrowed, min(len(own), most - len(own)))
        found[number] = torch.cat([own, nearest]), len(own)
    return found


def _nearest_others(points: Tensor, own: Tensor, offered: Tensor, count: int, most: int) -> Tensor:
    """The rows nearest to any of the cell's own, each own row naming `count` of them, at most `most`."""
    count = min(count, len(offered))
    if count == 0 or most == 0 or len(own) == 0:
        return own[:0]
    apart = distances(points[own], points[offered])
    named = apart.topk(count, dim=1, largest=False).indices.unique()
    closest = apart[:, named].amin(dim=0).argsort(stable=True)[:most]
    return offered[named[closest]].sort().values


def _smoothness(
    points: Tensor, targets: Tensor, members: Members, context: FitContext
) -> tuple[Tensor, Tensor]:
    """The length and the noise ratio, by evidence on a few cells' own rows."""
    largest = sorted(members.values(), key=lambda member: -member[1])
    spread = largest[:: max(1, len(largest) // PRIOR_SUBSET)][:PRIOR_SUBSET]
    # their own rows, as dense as all are: borrowed ones would add cost only
    subset = [rows[:own] for rows, own in spread]
    sample = points[evenly(len(points), 1000).to(points.device)]
    apart = distances(sample, sample)
    apart = apart[apart > 0]
    typical = apart.median().clamp_min(1e-12) if len(apart) else points.new_ones(())
    values = [_standardised(targets[rows])[0] for rows in subset]
    return choose_length([points[rows] for rows in subset], values, typical, each=context.map)


def _solve_cells(
    state: WitnessState, points: Tensor, targets: Tensor, members: Members, context: FitContext
) -> list[tuple[Cell, Tensor]]:
    """These cells in order, each with the novelty of its own rows, every row left out."""
    # Large tensors that stay are made here, not by the workers, where each would lie among scraps of the
    # work and keep the allocator from giving those back.
    kept = {number: points.new_empty(len(rows), len(rows)) for number, (rows, _) in members.items()}

    @torch.no_grad()
    def solve(number: int) -> tuple[Cell, Tensor]:
        rows, own = members[number]
        features, tau = PointFeatures(points[rows], float(state.length)), float(state.ratio)
        values, centre, unit = _standardised(targets[rows])
        factor, jitter = factorise(features.gram(features), tau)
        scale = profile_scale(factor, values)
        inverse = torch.cholesky_inverse(factor)
        errors, variances = leave_one_out(inverse, values)
        ratios = errors.square() / (variances[:, None] * scale)
        cell = Cell(
            rows=rows.cpu(),
            own=torch.tensor(own),
            posterior=GramPosterior(features, kept[number].copy_(factor), unit * (inverse @ values)),
            centre=centre,
            scale=(unit.square() * scale).clamp_min(LEAST),
            kappa=ratios[:own].mean(dim=0).clamp_min(LEAST_KAPPA),
            tau=scale.new_tensor(tau + jitter),
        )
        return cell, (variances[:own] - cell.tau).clamp(0.0, 1.0)

    return context.map(solve, list(members), stage="a second opinion", rows=lambda number: members[number][1])


def _standardised(targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Targets [m, C] about their mean and of unit size; the mean, and the size, each [C].

    Outputs may have units that differ by many powers of ten.
    """
    centre = targets.mean(dim=0)
    unit = (targets - centre).square().mean(dim=0).sqrt()
    unit = torch.where(unit > 0, unit, 1.0)
    return (targets - centre) / unit, centre, unit
