"""Which expert each training row belongs to."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.chunking import chunks
from ..data.rows import Rows
from ..executors import FitContext
from ..experts.features import NO_COLUMNS, chunk_rows, features_at
from ..experts.gate import Division, Gate, Partition, find_centroids, make_projection, nearest_two
from ..experts.neighbours import Patchwork, neighbour_lists
from ..math.evidence import FactorisationError
from ..math.kernel_pca import mass_between
from ..tangents.base import Features, TangentMap

EXACT_BOUND = 2048  # rows up to which the bound of the division is computed exactly
SPARE = 2 * 2**30  # bytes that torch may keep on a GPU for later, while experts are solved


def precompute_features(tangents: TangentMap, rows: Rows, context: FitContext) -> Features:
    """Features of all rows, made once, chunk by chunk."""
    parts = list(chunks(len(rows), chunk_rows(tangents)))

    @torch.no_grad()
    def make(index: Tensor) -> Features:
        return features_at(tangents, rows, index, NO_COLUMNS, None)

    table: dict[str, Tensor] = {}
    # written to their places as they come: they stand there once only
    for place, found in context.run(make, parts, stage="making the features", rows=len):
        for name, value in found.tensors().items():
            whole = table.setdefault(name, value.new_empty(len(rows), *value.shape[1:]))
            whole[parts[place].to(value.device)] = value
    return tangents.kind.from_tensors(table)


def precompute_linear(tangents: TangentMap, rows: Rows, context: FitContext) -> Tensor | None:
    """J theta of all rows, [n, C], float64, made once; None where experts choose columns of their own.

    Not in the workers: torch has forward mode in one thread at a time, which may use all cores.
    """
    if tangents.num_columns(expert=True) != tangents.num_columns(expert=False):
        return None
    direction, network = tangents.direction(NO_COLUMNS), tangents.network
    parts = list(chunks(len(rows), network.pass_rows(rows.inputs)))
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
    size = division.subset_size(len(rows), num_experts)
    subset = torch.randperm(len(rows), generator=generator)[:size].sort().values
    device = tangents.network.device
    single = Gate(None, torch.zeros(1, 0, dtype=torch.float64, device=device))

    def alone() -> tuple[Partition, Tensor]:
        zeros = torch.zeros(len(rows), 0, dtype=torch.float64, device=device)
        return _partition(single, zeros, patchwork), torch.zeros((), dtype=torch.float64)

    if num_experts == 1:
        return alone()
    give_back(device)

    @torch.no_grad()
    def project(index: Tensor):
        features = features_at(tangents, rows, index, NO_COLUMNS, known)
        _require_finite_gradients(features.diag(), index)
        projection = make_projection(features, division.components)
        return projection, projection(features)

    ((projection, subset_points),) = context.map(project, [subset])
    if subset_points.shape[1] == 0:  # the rows do not differ: there is nothing to divide them by
        return alone()
    gate = Gate(projection, single.centroids)
    points = embed_rows(tangents, gate, rows, context, known)
    give_back(device)
    _require_finite_gradients(points.sum(dim=1), torch.arange(len(rows)))
    centroids = find_centroids(subset_points, points, num_experts, seed=context.seed)
    partition = _partition(Gate(projection, centroids), points, patchwork)
    return partition, _bound(tangents, rows, partition.nearest, generator, context, known)


def _require_finite_gradients(values: Tensor, rows: Tensor) -> None:
    """Raise where a row's kernel is NaN or infinite: it could not be assigned to any expert."""
    bad = rows[~torch.isfinite(values).cpu()]
    if len(bad):
        raise FactorisationError(
            f"the network's gradients overflow in {len(bad)} of {len(rows)} training rows, "
            f"first in row {int(bad[0])}; scale the inputs, or drop these rows."
        )


def _partition(gate: Gate, points: Tensor, patchwork: Patchwork) -> Partition:
    nearest, second = (labels.cpu() for labels in nearest_two(points, gate.centroids))
    lists = neighbour_lists(nearest, second, gate.centroids.cpu(), patchwork.neighbours)
    return Partition(gate, points.cpu(), nearest, tuple(map(tuple, lists)))


def _bound(
    tangents: TangentMap,
    rows: Rows,
    labels: Tensor,
    generator: torch.Generator,
    context: FitContext,
    known: Features | None,
) -> Tensor:
    """Share of squared kernel mass between experts: exact for few rows, else on a random subset."""
    limit = EXACT_BOUND if len(rows) <= EXACT_BOUND else 512
    sample = torch.randperm(len(rows), generator=generator)[:limit].sort().values

    @torch.no_grad()
    def measure(index: Tensor) -> Tensor:
        features = features_at(tangents, rows, index, NO_COLUMNS, known)
        gram = features.gram(features)
        return mass_between(gram, labels[index].to(gram.device)).cpu()

    (bound,) = context.map(measure, [sample])
    return bound


def give_back(device: torch.device) -> None:
    """Memory that torch keeps on a GPU in pieces that fit no other expert."""
    if device.type == "cuda":
        spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if spare > SPARE:
            torch.cuda.empty_cache()
