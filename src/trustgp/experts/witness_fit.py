"""How a witness is found: divide inputs into cells, lend each the nearest rows of others, leave rows out."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.rows import Rows
from ..data.trees import Inputs, leaves
from ..executors import FitContext
from ..math.calibration import reached, steady_log_kappa
from ..math.evidence import choose_length, distances
from .gate import find_centroids, nearest_two
from .witness import Hidden, Witness, WitnessPrediction, WitnessState, vectors_of

FEWEST_ROWS = 50  # with fewer rows it has nothing to go by
FEW, SEVERAL = 1000, 4  # up to so many rows, so many times as many neighbours are asked
MOST_CELLS = 3072  # of more rows than these hold it would be larger, and slower to find, than the experts
PRIOR_SUBSET = 3  # cells that decide on the length and the noise ratio for all
NEARBY = 8  # other cells among whose rows those to borrow are looked for
MOST_JUDGED = 2**16  # rows that decide, of many more, whether a cell is too large and is split
STILL = 1e-12  # times its mean: a column that varies by less is constant, but for rounding
LEAST_VARIANCE = 1e-8  # of the targets' own: no claim is finer than this
SILENT = 1e150  # a variance that says nothing, and can be saved
LEAST = torch.finfo(torch.float64).tiny  # of what must stay positive
NARROW = 1e37  # targets in float32 beyond are kept in float64: their differences may overflow
BLUR = 1e-6  # of the length: points that float32 would move by more, far from the mean, stay in float64
Members = list[tuple[Tensor, int]]  # the rows of each cell, its own first, and how many are its own


@torch.no_grad()
def find_witness(
    rows: Rows, setting: Witness | None, context: FitContext, room: int | None
) -> WitnessState | None:
    """A second opinion on the training rows; None where none is wanted, or can be, within `room` bytes."""
    if setting is None or not witness_applies(len(rows), rows.first, setting):
        return None
    vectors, targets = vectors_of(rows.inputs).to(context.device), rows.targets.to(context.device)
    empty = _empty(vectors, targets.double(), setting)
    if not all(bool(torch.isfinite(scale).all()) for scale in (empty.offset, empty.spread, empty.floor)):
        return None  # the squares of inputs or targets overflow
    points = empty.scaled(vectors)
    state = replace(empty, centroids=_centroids(points, setting.rows, context.seed))
    members = _members(state, points, 2 * setting.rows, setting.borrowed, context)
    length, ratio = _smoothness(points, targets.double(), members, context)
    state = _held(replace(state, length=length, ratio=ratio), points, targets, members)
    return None if room is not None and state.nbytes > room else state


def witness_applies(n: int, inputs: Inputs, setting: Witness) -> bool:
    """Whether n such rows can have a witness: neither too few nor too many, and of few real numbers each."""
    tensors = leaves(inputs)
    real = all(leaf.is_floating_point() and leaf.ndim <= 2 for leaf in tensors)
    few = sum(leaf[:1].numel() for leaf in tensors) <= setting.most_inputs
    return FEWEST_ROWS <= n <= MOST_CELLS * setting.rows and real and few


def witness_bytes(n: int, num_inputs: int, num_outputs: int, setting: Witness, *, double: bool) -> int:
    """What a witness of n rows will hold, about; `double`: whether the targets are in float64."""
    cells = math.ceil(n / setting.rows)
    rows = n * (1 + setting.borrowed) if cells > 1 else n
    each = 8 * (num_inputs + 2 * num_outputs + 2)  # centroid, centre, level, own, size
    row = 4 * num_inputs + (8 if double else 4) * num_outputs + 8
    return 8 * (2 * num_inputs + num_outputs + 5) + cells * each + rows * row


@torch.no_grad()
def update_witness(
    state: WitnessState, rows: Rows, setting: Witness, context: FitContext, room: int | None
) -> WitnessState:
    """The witness on all rows, the old ones first: the same cells, length and noise ratio.

    It may hold `room` bytes, with fewer rows of each cell; None: no limit.
    """
    vectors, targets = vectors_of(rows.inputs).to(context.device), rows.targets.to(context.device)
    points, most = state.scaled(vectors), 2 * int(state.size)
    members = _members(state, points, most, setting.borrowed, context)
    found = _held(state, points, targets, members)
    if room is None or found.nbytes <= room:
        return found
    row = (found.points.nbytes + found.targets.nbytes + found.rows.nbytes) // len(found.rows)
    rest, own, p = found.nbytes - row * len(found.rows), found.own.tolist(), state.most_neighbours

    def nbytes(most: int) -> int:
        held = (min(count, most) for count in own)
        return rest + row * sum(count + max(setting.borrowed * count, p) for count in held)

    most = max(1, bisect_right(range(1, most + 1), room, key=nbytes))  # the most that fit
    return _held(state, points, targets, _members(state, points, most, setting.borrowed, context))


@torch.no_grad()
def extend_witness(
    state: WitnessState, added: Rows, first: int, setting: Witness, context: FitContext
) -> WitnessState:
    """The same with new rows, numbered from `first` on, and no others than those it holds from before."""
    places, cell = _own_places(state)
    new = state.scaled(vectors_of(added.inputs).to(context.device))
    numbers = torch.arange(first, first + len(new), device=new.device)
    points = torch.cat([state.points[places].double(), new])
    before = state.targets[places].double() + state.centre[cell]
    targets = torch.cat([before, added.targets.to(before)]).to(state.targets.dtype)
    members = _members(state, points, 2 * int(state.size), setting.borrowed, context)
    found = _held(state, points, targets, members)
    return replace(found, rows=torch.cat([state.rows[places], numbers])[found.rows])


@torch.no_grad()
def groups_left_out(state: WitnessState, groups: Tensor) -> WitnessPrediction:
    """What the witness says of each training row when the whole group [n] of the row is left out."""
    places, _, said = _left_out(state, groups.to(state.rows))
    mine, blank = state.rows[places], state.floor.new_ones(len(groups), len(state.floor))
    # of rows that no cell has of its own, nothing is known
    mean, variance, novelty = torch.zeros_like(blank), blank.clone(), blank[:, 0].clone()
    mean[mine], variance[mine], novelty[mine] = said.mean, said.variance, said.novelty
    return WitnessPrediction(mean, variance, novelty, state.reach)


def _left_out(state: WitnessState, groups: Tensor) -> tuple[Tensor, Tensor, WitnessPrediction]:
    """Places of the cells' own rows [k], their cells [k], and what is said of them without their group."""
    places, cell = _own_places(state)
    held = groups[state.rows]
    return places, cell, state.about(state.points[places].double(), Hidden(cell, held[places], held))


def _own_places(state: WitnessState) -> tuple[Tensor, Tensor]:
    """Of the cells' own rows, and their cells, [k] each."""
    cell = torch.arange(len(state.sizes), device=state.rows.device).repeat_interleave(state.sizes)
    first = (state.sizes.cumsum(dim=0) - state.sizes)[cell]
    places = (torch.arange(len(cell), device=cell.device) - first < state.own[cell]).nonzero().flatten()
    return places, cell[places]


def _empty(vectors: Tensor, targets: Tensor, setting: Witness) -> WitnessState:
    """A witness without cells: how inputs are scaled, and the finest claim it may make."""
    offset, spread = vectors.mean(dim=0), vectors.std(dim=0)
    # a number that never changed is news as soon as it does
    spread = torch.where(spread > STILL * offset.abs(), spread, 1e-3 * offset.abs().clamp_min(1.0))
    # of an output that never changed there is nothing to say
    varied = targets.std(dim=0) > STILL * targets.mean(dim=0).abs()
    floor = torch.where(varied, (LEAST_VARIANCE * targets.var(dim=0)).clamp_min(LEAST), SILENT)
    # few rows lie far apart, and more of them speak of a new one
    several = setting.neighbours * (SEVERAL if len(vectors) <= FEW else 1)
    size, neighbours = torch.tensor(setting.rows), torch.tensor(several)
    one, rows, none = vectors.new_ones(()), (vectors[:0], targets[:0]), torch.empty(0, dtype=torch.int64)
    cells = (none, none, targets[:0], targets[:0])
    scales = (offset, spread, vectors[:0], one, one, size, neighbours, one, floor)
    return WitnessState(*scales, *rows, none, *cells)


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


def _members(state: WitnessState, points: Tensor, most: int, borrowed: int, context: FitContext) -> Members:
    """Of every cell; never more than `most` rows are its own."""
    labels, count = nearest_two(points, state.centroids)[0], len(state.centroids)
    owned = labels.argsort(stable=True).split(labels.bincount(minlength=count).tolist())
    near = distances(state.centroids, state.centroids).argsort(dim=1, stable=True)[:, : NEARBY + 1].tolist()

    @torch.no_grad()
    def hold(number: int) -> tuple[Tensor, int]:
        own = owned[number]
        own = own[evenly(len(own), most).to(own.device)]
        others = [owned[other] for other in near[number] if other != number]
        if not others or borrowed == 0:
            return own, len(own)
        offered = torch.cat(others)
        closest = distances(points[own], points[offered]).amin(dim=0).argsort(stable=True)
        lent = offered[closest[: max(borrowed * len(own), state.most_neighbours)]]
        return torch.cat([own, lent.sort().values]), len(own)

    return context.map(hold, range(count), stage="a second opinion", rows=lambda number: len(owned[number]))


def _smoothness(
    points: Tensor, targets: Tensor, members: Members, context: FitContext
) -> tuple[Tensor, Tensor]:
    """The length and the noise ratio, by evidence on a few cells' own rows."""
    largest = sorted(members, key=lambda member: -member[1])
    spread = largest[:: max(1, len(largest) // PRIOR_SUBSET)][:PRIOR_SUBSET]
    # their own rows, as dense as all are: borrowed ones would add cost only
    subset = [rows[:own] for rows, own in spread]
    sample = points[evenly(len(points), 1000).to(points.device)]
    apart = distances(sample, sample)
    apart = apart[apart > 0]
    typical = apart.median().clamp_min(1e-12) if len(apart) else points.new_ones(())
    values = [_standardised(targets[rows]) for rows in subset]
    return choose_length([points[rows] for rows in subset], values, typical, each=context.map)


def _standardised(targets: Tensor) -> Tensor:
    """Targets [m, C] about their mean and of unit size: outputs may have units powers of ten apart."""
    centred = targets - targets.mean(dim=0)
    unit = centred.square().mean(dim=0).sqrt()
    return centred / torch.where(unit > 0, unit, 1.0)


def _held(state: WitnessState, points: Tensor, targets: Tensor, members: Members) -> WitnessState:
    """The cells with these rows; how far they are off, each row left out, is their level and their reach."""
    rows = torch.cat([held for held, _ in members])
    counts = [[len(held) for held, _ in members], [own for _, own in members]]
    sizes, own = torch.tensor(counts, device=rows.device)
    centre = torch.stack([targets[held].double().mean(dim=0) for held, _ in members])
    about = targets[rows].double() - centre.repeat_interleave(sizes, dim=0)
    narrow = targets.dtype != torch.float64 and float(about.abs().max()) < NARROW
    exact, rounded = points[rows], points[rows].float()
    sharp = bool((rounded - exact).abs().median() <= BLUR * state.length)
    state = replace(
        state,
        points=rounded if sharp else exact,
        targets=about.float() if narrow else about,
        rows=rows,
        sizes=sizes,
        own=own,
        centre=centre,
        level=torch.ones_like(centre),
    )
    places, cell, said = _left_out(state, torch.arange(len(points), device=rows.device))
    errors = about[places] + centre[cell] - said.mean
    ratios = errors.square() / (said.novelty + state.ratio)[:, None]
    # one below the floor would say no more than that
    level = torch.stack([part.mean(dim=0) for part in ratios.split(own.tolist())]).clamp_min(state.floor)
    steady = steady_log_kappa(level.log(), own).exp()
    return replace(state, level=steady, reach=reached(said.novelty))
