"""Fit a witness: divide the inputs into cells, borrow the nearest rows of other cells, leave rows out."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.rows import Rows, distinct_rows
from ..data.trees import Inputs, leaves
from ..executors import FitContext
from ..math.calibration import MAX_FLOAT32, MIN_FLOAT32, MIN_SUPPORT, steady_log_kappa
from ..math.evidence import LENGTHS, best_length, distances, length_losses, relative_lengths
from .gate import find_centroids, nearest_two
from .witness import ExcludedGroups, Witness, WitnessPrediction, WitnessState, vectors_of

MIN_ROWS = 50  # with fewer rows there is no witness
LEAST_WEIGHT = 0.1  # of a row, over the mean weight: all rows have one noise
MAX_FEW_ROWS, FEW_ROWS_FACTOR = 1000, 4  # up to this number of rows, more neighbours
MAX_CELLS = 3072  # a witness with more would be larger, and slower to fit, than the experts
SPREAD_ROWS = 100  # distant rows that decide together on the lengths of columns
PRIOR_SUBSET = 3  # places whose rows decide on the lengths and the noise ratio for all
LENGTH_ROWS = 160  # rows nearest to each of these places
TEST_PLACES, TEST_ROWS = 16, 512  # left-out rows choose between one length and one for each column
MAX_FACTOR = 8  # by which neighbours are increased, where left-out rows gain by it
NOISY_RATIO, NOISY_GAIN, MIN_GAIN = 1e-4, 0.02, 0.25  # gain in nats for a doubling: from it on, and below
MIN_STEP = 1e-6  # of the targets' spread: smaller differences are rounding
NEARBY_CELLS = 8  # from which a cell borrows
MAX_SPLIT_ROWS = 2**16  # a sample of so many rows decides which cells are split
REACH_QUANTILE = 0.95  # of left-out novelty: up to it the witness is trusted
CONSTANT = 1e-12  # times its mean: a column that varies by less is constant up to rounding
MIN_VARIANCE = 1e-8  # over that of the targets
NO_INFORMATION = 1e150  # the variance for constant outputs: finite, so that it can be saved
TINY = torch.finfo(torch.float64).tiny
MAX_FLOAT32_TARGET = 1e37  # larger ones are kept in float64: their differences may overflow
MAX_SHIFT = 1e-6  # of the length: points that float32 would move by more stay in float64
Members = list[tuple[Tensor, int]]  # the rows of each cell, its own first, and how many are its own


@torch.no_grad()
def find_witness(
    rows: Rows, setting: Witness | None, context: FitContext, room: int | None
) -> WitnessState | None:
    """Witness of the training rows; None where none applies, or where it does not fit into `room` bytes."""
    if setting is None or not witness_applies(len(rows), rows.first, setting):
        return None
    vectors, targets = vectors_of(rows.inputs).to(context.device), rows.targets.to(context.device)
    distinct = _taken(rows, vectors, targets)
    vectors, targets = vectors[distinct], targets[distinct]
    empty = _empty(vectors, targets.double(), setting)
    if not all(bool(torch.isfinite(scale).all()) for scale in (empty.offset, empty.spread, empty.floor)):
        return None  # the squares of inputs or targets overflow
    smooth, points = _smoothness(empty, vectors, targets.double(), setting, context)
    state = replace(smooth, centroids=_centroids(points, setting.rows, context.seed))
    members = _members(state, points, 2 * setting.rows, setting.borrowed, context)
    state = _fill(state, points, targets, members)
    state = replace(state, rows=distinct[state.rows])
    return None if room is not None and state.nbytes > room else state


def _taken(rows: Rows, vectors: Tensor, targets: Tensor) -> Tensor:
    """Indices of the rows of a witness: no duplicates, and none of small weight."""
    chosen = distinct_rows(Rows(vectors, targets))
    chosen = chosen if rows.weights is None else chosen & (rows.weights >= LEAST_WEIGHT)
    return chosen.nonzero().flatten().to(vectors.device)


def witness_applies(n: int, inputs: Inputs, setting: Witness) -> bool:
    """Whether a witness can be fitted: to neither too few nor too many rows n, of few real numbers each."""
    tensors = leaves(inputs)
    real = all(leaf.is_floating_point() and leaf.ndim <= 2 for leaf in tensors)
    few = sum(leaf[:1].numel() for leaf in tensors) <= setting.most_inputs
    return MIN_ROWS <= n <= MAX_CELLS * setting.rows and real and few


def witness_bytes(n: int, num_inputs: int, num_outputs: int, setting: Witness, *, double: bool) -> int:
    """Approximate bytes of a witness of n rows; `double`: whether the targets are in float64."""
    cells = math.ceil(n / setting.rows)
    rows = n * (1 + setting.borrowed) if cells > 1 else n
    each = 8 * (num_inputs + 2 * num_outputs + 2)  # centroid, centre, level, own, size
    row = 4 * num_inputs + (16 if double else 8) * num_outputs + 8
    return 8 * (2 * num_inputs + num_outputs + 5) + cells * each + rows * row


@torch.no_grad()
def update_witness(
    state: WitnessState, rows: Rows, setting: Witness, context: FitContext, room: int | None
) -> WitnessState:
    """Witness of all rows, the old ones first, with the cells, length and noise ratio of `state`.

    Cells keep fewer rows where the witness would exceed `room` bytes; None: no limit.
    """
    vectors, targets = vectors_of(rows.inputs).to(context.device), rows.targets.to(context.device)
    distinct = _taken(rows, vectors, targets)
    points, targets, most = state.scaled(vectors[distinct]), targets[distinct], 2 * setting.rows
    members = _members(state, points, most, setting.borrowed, context)
    filled = _fill(state, points, targets, members)
    if room is None or filled.nbytes <= room:
        return replace(filled, rows=distinct[filled.rows])
    each = (filled.points, filled.targets, filled.errors, filled.rows)
    row = sum(tensor.nbytes for tensor in each) // len(filled.rows)
    fixed, own, p = filled.nbytes - row * len(filled.rows), filled.own.tolist(), state.most_neighbours

    def nbytes(most: int) -> int:
        counts = (min(count, most) for count in own)
        return fixed + row * sum(count + max(setting.borrowed * count, p) for count in counts)

    most = max(1, bisect_right(range(1, most + 1), room, key=nbytes))  # the most that fit
    filled = _fill(state, points, targets, _members(state, points, most, setting.borrowed, context))
    return replace(filled, rows=distinct[filled.rows])


@torch.no_grad()
def extend_witness(
    state: WitnessState, added: Rows, first: int, setting: Witness, context: FitContext
) -> WitnessState:
    """Witness with new rows, numbered from `first` on, added to those that it already has."""
    positions, cell = _own_positions(state)
    new = state.scaled(vectors_of(added.inputs).to(context.device))
    numbers = torch.arange(first, first + len(new), device=new.device)
    points = torch.cat([state.points[positions].double(), new])
    before = state.targets[positions].double() + state.centre[cell]
    targets = torch.cat([before, added.targets.to(before)]).to(state.targets.dtype)
    members = _members(state, points, 2 * setting.rows, setting.borrowed, context)
    filled = _fill(state, points, targets, members)
    return replace(filled, rows=torch.cat([state.rows[positions], numbers])[filled.rows])


@torch.no_grad()
def groups_left_out(state: WitnessState, groups: Tensor, wanted: Tensor) -> WitnessPrediction:
    """Predictions for the `wanted` training rows [k] when the whole group of each, `groups` [n], is left out;
    all other rows have novelty 1."""
    positions, _, predicted = _left_out(state, groups.to(state.rows), wanted)
    rows, blank = state.rows[positions], state.floor.new_ones(len(groups), len(state.floor))
    # rows that are no cell's own have novelty 1
    each = {"mean": 0 * blank, "variance": blank.clone(), "noise": blank.clone()}
    each |= {"novelty": blank[:, 0].clone(), "distance": blank[:, 0].clone()}
    for name, value in each.items():
        value[rows] = getattr(predicted, name)
    return WitnessPrediction(**each, reach=state.reach)


def _left_out(
    state: WitnessState, groups: Tensor, wanted: Tensor | None = None
) -> tuple[Tensor, Tensor, WitnessPrediction]:
    """Positions of the cells' own rows [k], all or the `wanted` ones, their cells [k], and predictions for
    them without their group."""
    positions, cell = _own_positions(state)
    if wanted is not None:
        kept = torch.isin(state.rows[positions], wanted.to(state.rows))
        positions, cell = positions[kept], cell[kept]
    row_groups = groups[state.rows]
    excluded = ExcludedGroups(cell, row_groups[positions], row_groups)
    return positions, cell, state.predict_scaled(state.points[positions].double(), excluded)


def _own_positions(state: WitnessState) -> tuple[Tensor, Tensor]:
    """Positions of the cells' own rows, and their cells, [k] each."""
    cell = torch.arange(len(state.sizes), device=state.rows.device).repeat_interleave(state.sizes)
    first = (state.sizes.cumsum(dim=0) - state.sizes)[cell]
    positions = (torch.arange(len(cell), device=cell.device) - first < state.own[cell]).nonzero().flatten()
    return positions, cell[positions]


def _empty(vectors: Tensor, targets: Tensor, setting: Witness) -> WitnessState:
    """A witness without cells: scales of the inputs, and the floor of the variance."""
    offset, spread = vectors.mean(dim=0), vectors.std(dim=0)
    # any change of a constant input is novel
    spread = torch.where(spread > CONSTANT * offset.abs(), spread, 1e-3 * offset.abs().clamp_min(1.0))
    # constant outputs carry no information
    varied = targets.std(dim=0) > CONSTANT * targets.mean(dim=0).abs()
    variance = targets.var(dim=0)
    finest = torch.maximum(MIN_VARIANCE * variance, torch.minimum(_rounding(targets), variance))
    floor = torch.where(varied, finest.clamp_min(TINY), NO_INFORMATION)
    # few rows are distant from each other: a prediction uses more of them
    several = setting.neighbours * (FEW_ROWS_FACTOR if len(vectors) <= MAX_FEW_ROWS else 1)
    one, none = vectors.new_ones(()), torch.empty(0, dtype=torch.int64)
    rows = (vectors[:0], targets[:0], targets[:0])
    cells = (none, none, targets[:0], targets[:0])
    scales = (offset, spread, vectors[:0], one, one, torch.tensor(several), one, floor)
    return WitnessState(*scales, *rows, none, *cells)


def _rounding(targets: Tensor) -> Tensor:
    """Variance of the rounding of targets [n, C]: a twelfth of the squared smallest step, shape [C]."""
    steps = targets.sort(dim=0).values.diff(dim=0)
    least = MIN_STEP * targets.std(dim=0)
    return torch.where(steps > least, steps, torch.inf).amin(dim=0).square() / 12


def _centroids(points: Tensor, size: int, seed: int) -> Tensor:
    cells = math.ceil(len(points) / size)
    if cells == 1:
        return points.mean(dim=0, keepdim=True)
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    sizes = max(4096, 8 * cells), max(MAX_SPLIT_ROWS, 32 * cells)
    subset, sample = (points[order[:most].sort().values.to(points.device)] for most in sizes)
    return find_centroids(subset, sample, cells, seed=seed)


def _members(state: WitnessState, points: Tensor, most: int, borrowed: int, context: FitContext) -> Members:
    """Rows of every cell, at most `most` of them its own."""
    labels, count = nearest_two(points, state.centroids)[0], len(state.centroids)
    owned = labels.argsort(stable=True).split(labels.bincount(minlength=count).tolist())
    order = distances(state.centroids, state.centroids).argsort(dim=1, stable=True)
    close = order[:, : NEARBY_CELLS + 1].tolist()

    @torch.no_grad()
    def rows_of(number: int) -> tuple[Tensor, int]:
        own = owned[number]
        own = own[evenly(len(own), most).to(own.device)]
        others = [owned[other] for other in close[number] if other != number]
        if not others or borrowed == 0:
            return own, len(own)
        offered = torch.cat(others)
        closest = distances(points[own], points[offered]).amin(dim=0).argsort(stable=True)
        borrowed_rows = offered[closest[: max(borrowed * len(own), state.most_neighbours)]]
        return torch.cat([own, borrowed_rows.sort().values]), len(own)

    return context.map(rows_of, range(count), stage="witness", rows=lambda number: len(owned[number]))


def _smoothness(
    empty: WitnessState, vectors: Tensor, targets: Tensor, setting: Witness, context: FitContext
) -> tuple[WitnessState, Tensor]:
    """Witness without cells, with its lengths, noise ratio and neighbours chosen; and the scaled points.

    Relative lengths of columns come from distant rows: neighbours in a recording are of the same moment, and
    carry little information about the columns. The lengths are kept, as units of the columns, where they
    raise the log likelihood of left-out rows by more than half log n for each column. A few neighbours cannot
    average noise: their number is doubled as long as that likelihood gains by it.
    """
    size, generator = setting.rows, torch.Generator().manual_seed(context.seed)
    order = torch.randperm(len(vectors), generator=generator).to(vectors.device)
    states, views = [empty], [empty.scaled(vectors)]
    spread = order[: PRIOR_SUBSET * SPREAD_ROWS].split(SPREAD_ROWS)
    lots = _varying(views[0], targets, spread)
    if lots[0] and vectors.shape[1] > 1:
        states.append(replace(empty, spread=empty.spread * relative_lengths(*lots, _typical(views[0]))))
        views.append(states[1].scaled(vectors))
    centres = order[: min(TEST_PLACES, math.ceil(len(order) / size))]
    few = min(2 * size, len(order))
    nearest = [distances(view[centres], view).topk(few, dim=1, largest=False)[1] for view in views]
    tested = evenly(min(size, len(order)), TEST_ROWS // len(centres)).to(order.device)
    members = [_left_out_members(lots, tested) for lots in zip(*nearest, strict=True)]
    losses = []
    for k, (points, neighbours) in enumerate(zip(views, nearest, strict=True)):
        inputs, values = _varying(points, targets, [*neighbours[:, : min(size, LENGTH_ROWS)], *spread])
        typical, squares = _typical(points), [distances(rows, rows).square_() for rows in inputs]
        by_length = context.map(partial(length_losses, squares, values, typical), LENGTHS)
        length, ratio = best_length(by_length, typical)
        states[k] = replace(states[k], length=length, ratio=ratio)
        losses.append(float(_judged(states[k], points, targets, members)[1]))
    entries = min(len(order), len(centres) * len(tested)) * targets.shape[1]
    by_column = entries * (losses[0] - losses[-1]) > 0.5 * math.log(entries) * vectors.shape[1]
    state, points, loss = states[by_column], views[by_column], losses[by_column]
    gain = NOISY_GAIN if float(state.ratio) >= NOISY_RATIO else MIN_GAIN
    most = min(MAX_FACTOR * setting.neighbours // 2, max(len(rows) for rows, _ in members) - 1)
    while state.most_neighbours <= most:
        several = replace(state, neighbours=2 * state.neighbours)
        less = float(_judged(several, points, targets, members)[1])
        if loss - less < gain:
            break
        state, loss = several, less
    return state, points


def _left_out_members(views: Sequence[Tensor], tested: Tensor) -> tuple[Tensor, int]:
    """Rows near a place in any view, those to leave out (`tested` in the first view) first; their number."""
    own, every = views[0][tested], torch.cat(list(views)).unique()
    return torch.cat([own, every[~torch.isin(every, own)]]), len(own)


def _typical(points: Tensor) -> Tensor:
    """Median distance between rows that differ, a scalar."""
    sample = points[evenly(len(points), 1000).to(points.device)]
    positive = distances(sample, sample)
    positive = positive[positive > 0]
    return positive.median().clamp_min(1e-12) if len(positive) else points.new_ones(())


def _varying(points: Tensor, targets: Tensor, lots: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Points and standardised targets of the first sets of rows where any output varies."""
    inputs, values = [], []
    for rows in lots:
        centred = targets[rows] - targets[rows].mean(dim=0)
        unit = centred.square().mean(dim=0).sqrt()
        standardised = centred / torch.where(unit > 0, unit, 1.0)
        varied = standardised.square().sum(dim=0) > 0
        if len(inputs) < PRIOR_SUBSET and bool(varied.any()):
            inputs.append(points[rows])
            values.append(standardised[:, varied])
    return inputs, values


def _fill(state: WitnessState, points: Tensor, targets: Tensor, members: Members) -> WitnessState:
    """Witness whose cells have these rows; level and reach come from leave-one-out predictions."""
    return _judged(state, points, targets, members)[0]


def _judged(
    state: WitnessState, points: Tensor, targets: Tensor, members: Members
) -> tuple[WitnessState, Tensor]:
    """Witness as from `_fill`, and the mean negative log likelihood of the cells' own rows, each left out."""
    rows = torch.cat([part for part, _ in members])
    counts = [[len(part) for part, _ in members], [own for _, own in members]]
    sizes, own = torch.tensor(counts, device=rows.device)
    centre = torch.stack([targets[part].double().mean(dim=0) for part, _ in members])
    centred = targets[rows].double() - centre.repeat_interleave(sizes, dim=0)
    narrow = targets.dtype != torch.float64 and float(centred.abs().max()) < MAX_FLOAT32_TARGET
    exact, rounded = points[rows], points[rows].float()
    sharp = bool((rounded - exact).abs().median() <= MAX_SHIFT * state.length)
    kept, values = rounded if sharp else exact, centred.float() if narrow else centred
    cells = {"sizes": sizes, "own": own, "centre": centre, "level": torch.ones_like(centre)}
    state = replace(state, points=kept, targets=values, errors=torch.zeros_like(values), rows=rows, **cells)
    positions, cell, predicted = _left_out(state, torch.arange(len(points), device=rows.device))
    errors = centred[positions] + centre[cell] - predicted.mean
    ratios = errors.square() / (predicted.novelty + state.ratio)[:, None]
    level = torch.stack([part.mean(dim=0) for part in ratios.split(own.tolist())]).clamp_min(state.floor)
    steady, squared = steady_log_kappa(level.log(), own).exp(), errors.square()
    variance = torch.maximum(steady[cell] * (predicted.novelty + state.ratio)[:, None], state.floor)
    loss = (variance.log() + squared / variance).mean() / 2
    by_row = squared.mean(dim=0).repeat(len(points), 1)  # also of rows that are no cell's own
    by_row[rows[positions]] = squared
    largest = squared.amax(dim=0)
    safe = bool(((largest == 0) | (largest > MIN_FLOAT32) & (largest < MAX_FLOAT32)).all())
    squared = by_row[rows].to(values.dtype if safe else torch.float64)
    return replace(state, level=steady, errors=squared, reach=_reach(predicted.novelty)), loss


def _reach(novelty: Tensor) -> Tensor:
    """nu_0, a scalar: a quantile of the novelties [n] of left-out rows."""
    ordered = novelty.sort().values
    return ordered[min(len(ordered) - 1, int(REACH_QUANTILE * len(ordered)))].clamp_min(MIN_SUPPORT)
