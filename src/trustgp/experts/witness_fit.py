"""How a witness is found: divide inputs into cells, lend each the nearest rows of others, leave rows out."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.rows import Rows
from ..data.trees import Inputs, leaves
from ..executors import FitContext
from ..math.calibration import steady_log_kappa, support_quantile
from ..math.evidence import LENGTHS, best_length, distances, length_losses, relative_lengths
from .gate import find_centroids, nearest_two
from .witness import ExcludedGroups, Witness, WitnessPrediction, WitnessState, vectors_of

FEWEST_ROWS = 50  # with fewer rows it has nothing to go by
FEW, SEVERAL = 1000, 4  # up to so many rows, so many times as many neighbours are asked
MOST_CELLS = 3072  # of more rows than these hold it would be larger, and slower to find, than the experts
APART = 100  # rows far apart that decide together on the lengths of columns
PRIOR_SUBSET = 3  # places whose rows decide on the lengths and the noise ratio for all
PLACES, JUDGED = 16, 1024  # rows at so many places decide between one length and one for each column
MORE = 8  # neighbours are doubled, up to so many times as many, where left-out rows gain by it
NOISY, WORTH, COSTLY = 1e-4, 0.02, 0.25  # as many nats for each: from this ratio on, and below it
COPIES = 0.9  # of the distinct rows have targets of their own: then equal rows are copies
FINEST = 1e-6  # of the targets' spread: values that differ by less are the same, but for rounding
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
    distinct = _distinct(vectors, targets.double())
    vectors, targets = vectors[distinct], targets[distinct]
    empty = _empty(vectors, targets.double(), setting)
    if not all(bool(torch.isfinite(scale).all()) for scale in (empty.offset, empty.spread, empty.floor)):
        return None  # the squares of inputs or targets overflow
    smooth, points = _smoothness(empty, vectors, targets.double(), setting, context)
    state = replace(smooth, centroids=_centroids(points, setting.rows, context.seed))
    members = _members(state, points, 2 * setting.rows, setting.borrowed, context)
    state = _held(state, points, targets, members)
    state = replace(state, rows=distinct[state.rows])
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
    distinct = _distinct(vectors, targets.double())
    points, targets, most = state.scaled(vectors[distinct]), targets[distinct], 2 * setting.rows
    members = _members(state, points, most, setting.borrowed, context)
    found = _held(state, points, targets, members)
    if room is None or found.nbytes <= room:
        return replace(found, rows=distinct[found.rows])
    row = (found.points.nbytes + found.targets.nbytes + found.rows.nbytes) // len(found.rows)
    rest, own, p = found.nbytes - row * len(found.rows), found.own.tolist(), state.most_neighbours

    def nbytes(most: int) -> int:
        held = (min(count, most) for count in own)
        return rest + row * sum(count + max(setting.borrowed * count, p) for count in held)

    most = max(1, bisect_right(range(1, most + 1), room, key=nbytes))  # the most that fit
    found = _held(state, points, targets, _members(state, points, most, setting.borrowed, context))
    return replace(found, rows=distinct[found.rows])


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
    members = _members(state, points, 2 * setting.rows, setting.borrowed, context)
    found = _held(state, points, targets, members)
    return replace(found, rows=torch.cat([state.rows[places], numbers])[found.rows])


@torch.no_grad()
def groups_left_out(state: WitnessState, groups: Tensor, wanted: Tensor) -> WitnessPrediction:
    """What the witness says of training rows when the whole group [n] of the row is left out; nothing of rows
    that are not `wanted` [k]."""
    places, _, said = _left_out(state, groups.to(state.rows), wanted)
    mine, blank = state.rows[places], state.floor.new_ones(len(groups), len(state.floor))
    # of rows that no cell has of its own, nothing is known
    mean, variance, novelty = torch.zeros_like(blank), blank.clone(), blank[:, 0].clone()
    mean[mine], variance[mine], novelty[mine] = said.mean, said.variance, said.novelty
    return WitnessPrediction(mean, variance, novelty, state.reach)


def _left_out(
    state: WitnessState, groups: Tensor, wanted: Tensor | None = None
) -> tuple[Tensor, Tensor, WitnessPrediction]:
    """Places of the cells' own rows [k], all or those that are wanted, their cells [k], and what is said of
    them without their group."""
    places, cell = _own_places(state)
    if wanted is not None:
        mine = torch.isin(state.rows[places], wanted.to(state.rows))
        places, cell = places[mine], cell[mine]
    held = groups[state.rows]
    return (
        places,
        cell,
        state.predict_scaled(state.points[places].double(), ExcludedGroups(cell, held[places], held)),
    )


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
    variance = targets.var(dim=0)
    finest = torch.maximum(LEAST_VARIANCE * variance, torch.minimum(_rounding(targets), variance))
    floor = torch.where(varied, finest.clamp_min(LEAST), SILENT)
    # few rows lie far apart, and more of them speak of a new one
    several = setting.neighbours * (SEVERAL if len(vectors) <= FEW else 1)
    one, rows, none = vectors.new_ones(()), (vectors[:0], targets[:0]), torch.empty(0, dtype=torch.int64)
    cells = (none, none, targets[:0], targets[:0])
    scales = (offset, spread, vectors[:0], one, one, torch.tensor(several), one, floor)
    return WitnessState(*scales, *rows, none, *cells)


def _distinct(vectors: Tensor, targets: Tensor) -> Tensor:
    """Rows without their copies [k]: left out, one of which another is held says nothing about new rows.

    Equal inputs with equal targets are no copies where many other rows have such targets, too.
    """
    n, both = len(vectors), torch.cat([vectors, targets], dim=1)
    weights = torch.rand(both.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weighed, rows = both * weights.to(both), torch.arange(n, device=both.device)
    said = len(weighed[:, vectors.shape[1] :].sum(dim=1).unique())
    if said == n:
        return rows
    order = weighed.sum(dim=1).argsort(stable=True)  # copies side by side
    new = torch.ones_like(rows, dtype=torch.bool)
    new[order[1:]] = (both[order[1:]] != both[order[:-1]]).any(dim=1)
    return rows[new] if said >= COPIES * int(new.sum()) else rows


def _rounding(targets: Tensor) -> Tensor:
    """The variance of what is lost where targets [n, C] are rounded to the values they take: a twelfth of the
    squared smallest step between them, shape [C]."""
    steps = targets.sort(dim=0).values.diff(dim=0)
    least = FINEST * targets.std(dim=0)
    return torch.where(steps > least, steps, torch.inf).amin(dim=0).square() / 12


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
    empty: WitnessState, vectors: Tensor, targets: Tensor, setting: Witness, context: FitContext
) -> tuple[WitnessState, Tensor]:
    """A witness without cells with its lengths, noise ratio and neighbours, and the points as it sees them.

    Lengths of columns, relative to each other, come from rows far apart: the nearest of a recording are those
    of the same moment, and say little about how the columns matter. They are kept, as units of the columns,
    where left-out rows gain from them by more than half log n for each. A few neighbours cannot average noise
    away: twice as many are asked as long as left-out rows gain by it.
    """
    size, generator = setting.rows, torch.Generator().manual_seed(context.seed)
    order = torch.randperm(len(vectors), generator=generator).to(vectors.device)
    found, views, apart = [empty], [empty.scaled(vectors)], order[: PRIOR_SUBSET * APART].split(APART)
    lots = _varying_targets(views[0], targets, apart)
    if lots[0] and vectors.shape[1] > 1:
        found.append(replace(empty, spread=empty.spread * relative_lengths(*lots, _typical(views[0]))))
        views.append(found[1].scaled(vectors))
    centres = order[: min(PLACES, math.ceil(len(order) / size))]
    near = [
        distances(points[centres], points).topk(min(2 * size, len(points)), dim=1, largest=False)[1]
        for points in views
    ]
    some = evenly(min(size, len(order)), JUDGED // len(centres)).to(order.device)
    members = [_left_out_members(lots, some) for lots in zip(*near, strict=True)]
    losses = []
    for k, (points, places) in enumerate(zip(views, near, strict=True)):
        lots = _varying_targets(points, targets, [*places[:, :size], *apart])
        typical = _typical(points)
        by_length = context.map(partial(length_losses, *lots, typical), LENGTHS)
        length, ratio = best_length(by_length, typical)
        found[k] = replace(found[k], length=length, ratio=ratio)
        losses.append(_left_out_loss(found[k], points, targets, members))
    entries = min(len(order), len(centres) * len(some)) * targets.shape[1]
    each = entries * (losses[0] - losses[-1]) > 0.5 * math.log(entries) * vectors.shape[1]
    state, points, loss = found[each], views[each], losses[each]
    worth = WORTH if float(state.ratio) >= NOISY else COSTLY
    most = min(MORE * setting.neighbours // 2, max(len(held) for held, _ in members) - 1)
    while state.most_neighbours <= most:
        several = replace(state, neighbours=2 * state.neighbours)
        less = _left_out_loss(several, points, targets, members)
        if loss - less < worth:
            break
        state, loss = several, less
    return state, points


def _left_out_members(near: Sequence[Tensor], some: Tensor) -> tuple[Tensor, int]:
    """Some of the rows near one as the first sees it, then all others that any sees near it."""
    own, rest = near[0][some], torch.cat(list(near)).unique()
    return torch.cat([own, rest[~torch.isin(rest, own)]]), len(own)


def _left_out_loss(state: WitnessState, points: Tensor, targets: Tensor, members: Members) -> float:
    """Mean negative log likelihood of the members' own rows, each left out."""
    state = _held(state, points, targets, members)
    places, cell, said = _left_out(state, torch.arange(len(points), device=points.device))
    errors = state.targets[places] + state.centre[cell] - said.mean
    return float((said.variance.log() + errors.square() / said.variance).mean() / 2)


def _typical(points: Tensor) -> Tensor:
    """The median distance between rows that differ, a scalar."""
    sample = points[evenly(len(points), 1000).to(points.device)]
    apart = distances(sample, sample)
    apart = apart[apart > 0]
    return apart.median().clamp_min(1e-12) if len(apart) else points.new_ones(())


def _varying_targets(
    points: Tensor, targets: Tensor, lots: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Points and standardised targets of the first lots of rows where any output varies, and of those."""
    inputs, values = [], []
    for rows in lots:
        found = _standardised(targets[rows])
        varied = found.square().sum(dim=0) > 0
        if len(inputs) < PRIOR_SUBSET and bool(varied.any()):
            inputs.append(points[rows])
            values.append(found[:, varied])
    return inputs, values


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
    return replace(state, level=steady, reach=support_quantile(said.novelty))
