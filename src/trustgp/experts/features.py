"""Features of rows, made chunk by chunk or taken from those that are known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..data.chunking import map_chunks, most_rows, rows_at_once
from ..data.rows import Rows
from ..data.trees import Inputs, count, take
from ..tangents.base import Features, TangentMap, chunk_bytes

# Of the outputs' average: one whose own gradient vanishes here is not certain for that.
LEAST_AMPLITUDE = 1e-2


NO_COLUMNS = torch.empty(0, dtype=torch.int64)


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
    parts = map_chunks(make, index, size)
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
    parts = tangents.diag_per_output(features) if len(tangents.mix) > 1 and not blended else None
    if parts is None:
        return torch.ones(len(features), 1, dtype=torch.float64, device=tangents.network.device)
    mean = parts.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, parts / mean, 1.0).clamp_min(LEAST_AMPLITUDE)


def chunk_rows(tangents: TangentMap) -> int:
    """Rows whose features are made at a time."""
    room = chunk_bytes(tangents) // max(1, tangents.working_bytes())
    return max(1, min(most_rows(tangents.network.device), room))
