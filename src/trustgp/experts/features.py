"""Features of rows, computed in chunks or taken from a cache."""

import torch
from torch import Tensor

from ..data.chunking import map_chunks, most_rows, rows_at_once
from ..data.rows import Rows
from ..data.trees import moved
from ..tangents.base import Features, TangentMap, chunk_bytes

# Over the outputs' average: an output whose own gradient vanishes at x is not certain there.
MIN_AMPLITUDE = 1e-2
NO_COLUMNS = torch.empty(0, dtype=torch.int64)


def features_at(
    tangents: TangentMap, rows: Rows, index: Tensor, columns: Tensor, cached: Features | None
) -> Features:
    """Features of the rows `index`, columns selected: from the cache, or computed in chunks."""
    device = tangents.network.device
    if cached is not None:
        chosen = cached.take(index.to(next(iter(cached.tensors().values())).device))
        return moved(chosen, lambda kept: kept.to(device)).select(columns)
    size = min(chunk_rows(tangents), rows_at_once(rows.take(index[:1]), device))
    parts = map_chunks(lambda part: tangents(rows.take(part)).select(columns), index, size)
    # without what was computed along with them
    return tangents.kind.from_tensors(parts[0].tensors()) if len(parts) == 1 else tangents.kind.cat(parts)


def amplitudes(tangents: TangentMap, features: Features, *, blended: bool = False) -> Tensor:
    r"""Prior variance of each output at x over the average of the outputs, shape [n, B] or [n, 1].

    .. math:: \alpha_c(x) = |J_c(x)|^2 \Big/ \tfrac1C \sum_{c'} |J_{c'}(x)|^2

    A kernel that all outputs share gives the share of the prior variance that the rows leave at x. The prior
    differs between outputs: output c has its own gradient. The ratio is 1 for a kernel of one output, and
    where experts learn one combination of outputs, `blended`. The features have an expert's columns selected.
    """
    parts = tangents.diag_per_output(features) if len(tangents.mix) > 1 and not blended else None
    if parts is None:
        return torch.ones(len(features), 1, dtype=torch.float64, device=tangents.network.device)
    mean = parts.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, parts / mean, 1.0).clamp_min(MIN_AMPLITUDE)


def chunk_rows(tangents: TangentMap) -> int:
    """Number of rows whose features are computed at a time."""
    room = chunk_bytes(tangents) // max(1, tangents.working_bytes())
    return max(1, min(most_rows(tangents.network.device), room))
