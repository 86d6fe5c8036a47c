"""Features of the training rows, and which expert each row belongs to."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import chunks, map_chunks, rows_at_once
from ..data.rows import Rows, mapped_rows
from ..executors import FitContext
from ..experts.expert import Problem
from ..experts.features import NO_COLUMNS, chunk_rows, features_at
from ..experts.gate import Gate, Partition, find_centroids, make_projection, nearest_two
from ..experts.neighbours import neighbour_lists
from ..math.evidence import FactorisationError
from ..math.low_rank import mass_between
from ..tangents.base import Features, TangentMap
from .options import FitOptions

EXACT_BOUND_ROWS, SAMPLED_BOUND_ROWS = 2048, 512  # up to how many rows the bound is exact; else its sample
MAX_CACHED_BYTES = 2 * 2**30  # bytes that torch may cache on a GPU while experts are solved
MIN_RECORDED = 16  # passes from which they are recorded: a recording costs a few


class FeatureTable:
    """Features of n rows, written chunk by chunk: in memory, or in a memory-mapped file."""

    def __init__(self, tangents: TangentMap, n: int, *, mapped: bool) -> None:
        self._tangents, self._n, self._mapped = tangents, n, mapped
        self._tensors: dict[str, Tensor] = {}

    def write(self, index: Tensor, features: Features) -> None:
        """Store the features of rows `index`, ascending."""
        first, last = int(index[0]), int(index[-1]) + 1
        for name, value in features.tensors().items():
            if name not in self._tensors:
                new = mapped_rows if self._mapped else lambda n, value: value.new_empty(n, *value.shape[1:])
                self._tensors[name] = new(self._n, value)
            table = self._tensors[name]
            if last - first == len(index):
                table[first:last] = value
            else:
                table[index.to(table.device)] = value

    def features(self) -> Features:
        """Features of all rows."""
        return self._tangents.kind.from_tensors(self._tensors)


def run_tangents(
    tangents: TangentMap,
    rows: Rows,
    context: FitContext,
    *,
    outputs: bool = False,
    index: Tensor | None = None,
    also: Callable[[Tensor, Sequence[Features]], Any] = lambda *_: None,
) -> Iterator[tuple[Tensor, Features, Tensor, Any]]:
    """Yield, chunk by chunk in order, row indices (all, or those of an ascending `index`), the features of
    these rows, outputs [k, C] of the same pass through the network ([k, 0] unless `outputs`), and the result
    of `also` for the indices and the parts of the features, which still have all their extra fields."""
    network = tangents.network
    size = min(chunk_rows(tangents), rows_at_once(rows.first, network.device))
    if network.recording and network.device.type == "cuda" and size > 1:  # a recording has its own memory
        size = 1 << (size.bit_length() - 2)
    parts = list((torch.arange(len(rows)) if index is None else index).split(size))

    @torch.no_grad()
    def make(index: Tensor) -> tuple[Features, Tensor, Any]:
        pieces = map_chunks(lambda part: tangents.features_and_outputs(rows.take(part)), index, len(index))
        lots, values = zip(*pieces, strict=True)
        reduced = also(index, lots)
        whole = tangents.kind.from_tensors(lots[0].tensors()) if len(lots) == 1 else tangents.kind.cat(lots)
        if not outputs:
            return whole, torch.empty(len(index), 0), reduced
        if any(one is None for one in values):
            return whole, network.matrix(rows.take(index)).cpu(), reduced
        return whole, torch.cat(values).cpu(), reduced

    waiting, turn = {}, 0
    for place, made in context.inline().run(make, parts, stage="making the features", rows=len):
        waiting[place] = made
        while turn in waiting:  # in order: sums must not depend on which thread is faster
            yield parts[turn], *waiting.pop(turn)
            turn += 1


@contextmanager
def recorded(passes: Sequence[tuple[TangentMap, Tensor]]) -> Iterator[None]:
    """On a GPU, record the passes of each map over its rows, if there are many passes."""
    network = passes[0][0].network
    many = sum(len(index) // chunk_rows(tangents) for tangents, index in passes) >= MIN_RECORDED
    network.recording = many and network.device.type == "cuda"
    try:
        yield
    finally:
        network.recording = False
        for tangents, _ in passes:
            tangents.release_buffers()


def precompute_features(tangents: TangentMap, rows: Rows, context: FitContext, *, mapped: bool) -> Features:
    """Features of all rows, computed once."""
    table = FeatureTable(tangents, len(rows), mapped=mapped)
    for index, features, *_ in run_tangents(tangents, rows, context):
        table.write(index, features)
    return table.features()


def precompute_linear(tangents: TangentMap, rows: Rows, context: FitContext) -> Tensor | None:
    """J theta of all rows, [n, C], float64, computed once; None if each expert chooses its own columns.

    Workers do not compute it: torch has forward mode in one thread at a time, which may use all cores.
    """
    if tangents.num_columns(expert=True) != tangents.num_columns(expert=False):
        return None
    direction, network = tangents.direction(NO_COLUMNS), tangents.network
    parts = list(chunks(len(rows), network.pass_rows(rows.first)))
    tracked = context.report.track(parts, stage="linearising", total=len(parts), rows=len)
    return torch.cat([network.directional(rows.take(index), direction).double() for index in tracked])


def embed_rows(
    tangents: TangentMap, gate: Gate, rows: Rows, context: FitContext, cached: Features | None = None
) -> Tensor:
    """Components of all rows, shape [n, q], computed in chunks."""
    parts = list(chunks(len(rows), chunk_rows(tangents)))

    @torch.no_grad()
    def embed(index: Tensor) -> Tensor:
        return gate.embed(features_at(tangents, rows, index, NO_COLUMNS, cached))

    return torch.cat(context.map(embed, parts, stage="dividing the rows", rows=len))


def divide(
    problem: Problem, num_experts: int, options: FitOptions, context: FitContext
) -> tuple[Partition, Tensor]:
    """Partition of the rows, and the bound of its error: the share of squared kernel mass between experts."""
    tangents, rows, division, n = problem.tangents, problem.rows, options.division, len(problem.rows)
    generator, device = torch.Generator().manual_seed(context.seed), tangents.network.device
    sizes = division.subset_size(n, num_experts), division.clustered_size(n, num_experts)
    order = torch.randperm(n, generator=generator)
    subset, clustered = (order[:size].sort().values for size in sizes)
    gate = Gate(None, torch.zeros(1, 0, dtype=torch.float64, device=device))
    points = torch.zeros(n, 0, dtype=torch.float64, device=device)

    @torch.no_grad()
    def project(index: Tensor):
        features = features_at(tangents, rows, index, NO_COLUMNS, problem.cached)
        _require_finite_gradients(features.diag(), index)
        projection = make_projection(features, division.components)
        return projection, projection(features)

    if num_experts > 1:
        empty_cuda_cache(device)
        ((projection, chosen),) = context.inline().map(project, [subset])
        if chosen.shape[1]:  # else the rows do not differ: there is nothing to divide them by
            points = embed_rows(tangents, replace(gate, projection=projection), rows, context, problem.cached)
            empty_cuda_cache(device)
            _require_finite_gradients(points.sum(dim=1), torch.arange(n))
            chosen = points[clustered.to(device)] if len(clustered) > len(subset) else chosen
            gate = Gate(projection, find_centroids(chosen, points, num_experts, seed=context.seed))
    nearest, second = (labels.cpu() for labels in nearest_two(points, gate.centroids))
    lists = neighbour_lists(nearest, second, gate.centroids.cpu(), options.patchwork.neighbours)
    partition = Partition(gate, points.cpu(), nearest, tuple(map(tuple, lists)))
    if gate.projection is None:
        return partition, torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def mass_of(index: Tensor) -> Tensor:
        features = features_at(tangents, rows, index, NO_COLUMNS, problem.cached)
        gram = features.gram(features)
        return mass_between(gram, nearest[index].to(gram.device), n).cpu()

    sample = torch.randperm(n, generator=generator)[: bound_rows(n)].sort().values
    (bound,) = context.inline().map(mass_of, [sample])
    return partition, bound


def bound_rows(n: int) -> int:
    """Number of rows, of n, on which the share of squared kernel mass between experts is computed."""
    return n if n <= EXACT_BOUND_ROWS else SAMPLED_BOUND_ROWS


def _require_finite_gradients(values: Tensor, rows: Tensor) -> None:
    """Raise FactorisationError if a row's kernel is NaN or infinite: no expert could be chosen for it."""
    bad = rows[~torch.isfinite(values).cpu()]
    if len(bad):
        raise FactorisationError(
            f"the network's gradients overflow in {len(bad)} of {len(rows)} training rows, "
            f"first in row {int(bad[0])}; scale the inputs, or drop these rows."
        )


def empty_cuda_cache(device: torch.device) -> None:
    """Release GPU memory that torch caches in blocks whose sizes suit no other expert."""
    reserved, used = torch.cuda.memory_reserved, torch.cuda.memory_allocated
    if device.type == "cuda" and reserved(device) - used(device) > MAX_CACHED_BYTES:
        torch.cuda.empty_cache()
