"""Which expert each training row belongs to, and what experts and gate hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import chunks, map_chunks, rows_at_once
from ..data.rows import Rows, mapped_rows
from ..executors import FitContext
from ..experts.features import NO_COLUMNS, chunk_rows, features_at
from ..experts.gate import Division, Gate, Partition, find_centroids, make_projection, nearest_two
from ..experts.neighbours import Patchwork, lend_rows, neighbour_lists
from ..math.evidence import FactorisationError
from ..math.low_rank import mass_between
from ..tangents.base import Features, TangentMap

EXACT_BOUND, SOME = 2048, 512  # rows up to which the bound of the division is exact, else how many are used
SPARE = 2 * 2**30  # bytes that torch may keep on a GPU for later, while experts are solved
FEWEST = 8  # an expert with fewer directions than this, if it has them, is not worth its gate
OVERHEAD = 64 * 2**10  # names, scales and settings
# Rows of experts over their mean, and experts over those asked for, since some are split: measured.
UNEVEN, SPLIT = (0.6, 0.8, 1.0, 1.2, 1.4), 1.02
Tell = Callable[[Tensor, Tensor], Any]  # is told the numbers of some rows, and their outputs


def precompute_features(
    tangents: TangentMap, rows: Rows, context: FitContext, *, mapped: bool, tell: Tell | None = None
) -> Features:
    """Features of all rows, made once, chunk by chunk: in memory, or in a mapped file.

    The outputs of the same pass go to `tell`, with the numbers of their rows.
    """
    size = min(chunk_rows(tangents), rows_at_once(rows.first, tangents.network.device))
    parts = list(chunks(len(rows), size))

    @torch.no_grad()
    def make(index: Tensor) -> tuple[Features, Tensor | None]:
        found = map_chunks(lambda some: tangents.features_and_outputs(rows.take(some)), index, len(index))
        features, outputs = zip(*found, strict=True)
        whole = features[0] if len(features) == 1 else tangents.kind.cat(features)
        if tell is None:
            return whole, None
        if any(one is None for one in outputs):
            return whole, tangents.network.matrix(rows.take(index)).cpu()
        return whole, torch.cat(outputs).cpu()

    table: dict[str, Tensor] = {}
    # written to their places as they come: they stand there once only
    made = context.inline().run(make, parts, stage="making the features", rows=len)
    for place, (found, outputs) in made:
        for name, value in found.tensors().items():
            if name not in table:
                shape = (len(rows), *value.shape[1:])
                table[name] = mapped_rows(len(rows), value) if mapped else value.new_empty(shape)
            table[name].narrow(0, int(parts[place][0]), len(value)).copy_(value)
        if tell is not None and outputs is not None:
            tell(parts[place], outputs)
    return tangents.kind.from_tensors(table)


def precompute_linear(tangents: TangentMap, rows: Rows, context: FitContext) -> Tensor | None:
    """J theta of all rows, [n, C], float64, made once; None where experts choose columns of their own.

    Not in the workers: torch has forward mode in one thread at a time, which may use all cores.
    """
    if tangents.num_columns(expert=True) != tangents.num_columns(expert=False):
        return None
    direction, network = tangents.direction(NO_COLUMNS), tangents.network
    parts = list(chunks(len(rows), network.pass_rows(rows.first)))
    tracked = context.report.track(parts, stage="linearising", total=len(parts), rows=len)
    return torch.cat([network.directional(rows.take(index), direction).double() for index in tracked])


def embed_rows(
    tangents: TangentMap, gate: Gate, rows: Rows, context: FitContext, known: Features | None = None
) -> Tensor:
    """Components of all rows, shape [n, q], chunk by chunk."""
    parts = list(chunks(len(rows), chunk_rows(tangents)))

    @torch.no_grad()
    def embed(index: Tensor) -> Tensor:
        return gate.embed(features_at(tangents, rows, index, NO_COLUMNS, known))

    return torch.cat(context.map(embed, parts, stage="dividing the rows", rows=len))


def divide(
    tangents: TangentMap,
    rows: Rows,
    num_experts: int,
    context: FitContext,
    *,
    division: Division,
    patchwork: Patchwork,
    known: Features | None = None,
) -> tuple[Partition, Tensor]:
    """The partition of the rows, and the bound of the approximation it brings."""
    generator = torch.Generator().manual_seed(context.seed)
    sizes = division.subset_size(len(rows), num_experts), division.clustered_size(len(rows), num_experts)
    order = torch.randperm(len(rows), generator=generator)
    subset, clustered = (order[:size].sort().values for size in sizes)
    device = tangents.network.device
    gate = Gate(None, torch.zeros(1, 0, dtype=torch.float64, device=device))
    points = torch.zeros(len(rows), 0, dtype=torch.float64, device=device)

    @torch.no_grad()
    def project(index: Tensor):
        features = features_at(tangents, rows, index, NO_COLUMNS, known)
        _require_finite_gradients(features.diag(), index)
        projection = make_projection(features, division.components)
        return projection, projection(features)

    if num_experts > 1:
        give_back(device)
        ((projection, chosen),) = context.inline().map(project, [subset])
        if chosen.shape[1]:  # else the rows do not differ: there is nothing to divide them by
            points = embed_rows(tangents, replace(gate, projection=projection), rows, context, known)
            give_back(device)
            _require_finite_gradients(points.sum(dim=1), torch.arange(len(rows)))
            chosen = points[clustered.to(device)] if len(clustered) > len(subset) else chosen
            gate = Gate(projection, find_centroids(chosen, points, num_experts, seed=context.seed))
    nearest, second = (labels.cpu() for labels in nearest_two(points, gate.centroids))
    lists = neighbour_lists(nearest, second, gate.centroids.cpu(), patchwork.neighbours)
    partition = Partition(gate, points.cpu(), nearest, tuple(map(tuple, lists)))
    if gate.projection is None:
        return partition, torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def mass_of(index: Tensor) -> Tensor:
        features = features_at(tangents, rows, index, NO_COLUMNS, known)
        gram = features.gram(features)
        return mass_between(gram, nearest[index].to(gram.device), len(rows)).cpu()

    some = torch.randperm(len(rows), generator=generator)[: bound_rows(len(rows))].sort().values
    (bound,) = context.inline().map(mass_of, [some])
    return partition, bound


def bound_rows(n: int) -> int:
    """On how many of n rows the share of squared kernel mass between experts is found."""
    return n if n <= EXACT_BOUND else SOME


def _require_finite_gradients(values: Tensor, rows: Tensor) -> None:
    """Raise where a row's kernel is NaN or infinite: it could not be assigned to any expert."""
    bad = rows[~torch.isfinite(values).cpu()]
    if len(bad):
        raise FactorisationError(
            f"the network's gradients overflow in {len(bad)} of {len(rows)} training rows, "
            f"first in row {int(bad[0])}; scale the inputs, or drop these rows."
        )


def give_back(device: torch.device) -> None:
    """Memory that torch keeps on a GPU in pieces that fit no other expert."""
    if device.type == "cuda":
        spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if spare > SPARE:
            torch.cuda.empty_cache()


def expert_bytes(tangents: TangentMap, rows: int, num_outputs: int, most: int | None = None) -> int:
    """What an expert of so many rows holds, which keeps at most so many directions; None: all."""
    width = tangents.num_columns(expert=True)
    numbers = 8 * (3 * num_outputs + 4)  # scales, noise, kappa, jitter, sizes
    if width is None:
        return numbers + rows * (tangents.row_bytes() + 8 * rows + 8 * num_outputs + 8)
    rank = min(rows, width, width if most is None else most)
    chosen = 8 if width != tangents.num_columns(expert=False) else 0  # which columns it keeps
    basis = width * (rank * tangents.network.dtype.itemsize + 8 * num_outputs + chosen)
    return numbers + basis + 8 * rank + 8 * rows


def gate_bytes(tangents: TangentMap, subset: int, components: int, num_experts: int) -> int:
    """What a gate holds, with what the kernel itself needs: the mix, and which parameters are kept."""
    kernel = sum(value.nbytes for value in tangents.state().values())
    if num_experts == 1:
        return kernel + 8
    width = tangents.num_columns(expert=False)
    projection = subset * (tangents.row_bytes() + 8 * components)
    if width is not None:
        projection = 8 * width * components
    return kernel + projection + 8 * components * (num_experts + 1)


@dataclass(frozen=True)
class Sizing:
    """What a model will hold whose experts keep directions, without a witness."""

    maps: list[TangentMap]  # one for each kernel
    rows: int  # n
    outputs: int  # that the experts of a kernel learn
    division: Division
    patchwork: Patchwork

    def expected(self, num_experts: int, rank: int | None) -> int:
        """About, with so many experts asked for, and so many directions in each at most; None: all."""
        rows, subset = self._rows(num_experts, num_experts), self.division.subset_size(self.rows, num_experts)
        uneven, split = (UNEVEN, SPLIT) if num_experts > 1 else ((1.0,), 1.0)
        total = 0.0
        for one in self.maps:
            sizes = [expert_bytes(one, ceil(share * rows), self.outputs, rank) for share in uneven]
            total += split * num_experts * sum(sizes) / len(sizes)
            total += gate_bytes(one, subset, self.division.components, num_experts)
        return int(total)

    def least(self, num_experts: int) -> int:
        """Memory with which it is possible for certain: every expert split, and few directions in each."""
        most = min(2 * num_experts, self.rows) if num_experts > 1 else 1
        rows, total = self._rows(num_experts, most), 0
        for one in self.maps:  # explicit: the gate holds no rows
            total += OVERHEAD + gate_bytes(one, 0, self.division.components, most)
            total += most * expert_bytes(one, rows, self.outputs, FEWEST)
        return total

    def _rows(self, num_experts: int, found: int) -> int:
        """Of an average expert, its neighbours' among them, where so many were asked for and found."""
        near = min(self.patchwork.neighbours, found - 1)
        return ceil(self.rows / found) + lend_rows(self.patchwork, self.rows, num_experts) * near
