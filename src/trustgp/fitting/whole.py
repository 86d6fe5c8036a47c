"""The posterior of all rows, from one pass over them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import chunks, evenly, map_chunks
from ..data.rows import Rows
from ..executors import FitContext
from ..experts.features import chunk_rows
from ..experts.mixture import Mixture
from ..experts.whole import MAX_DIM
from ..tangents.sketch import SketchMap
from .options import FitOptions
from .prepare import Prepared

MAX_ROWS = 2**14  # evenly spread, whose gradients are summed
MAX_OUTPUTS = 16  # each needs a backward pass of its own
MIN_BUDGET = 8  # over its size: within a smaller budget there is none


def whole_posterior(
    ready: Prepared, rows: Rows, residual: Tensor, options: FitOptions, context: FitContext
) -> dict[str, Any]:
    """The map that gives the gradients of each output, and the posterior of all rows with residuals [n, C]:
    fields of a mixture. Empty where it has no sketch, or many outputs."""
    tangents, likelihood = ready.maps[0][0], options.likelihood
    if not isinstance(tangents, SketchMap) or len(ready.maps) > 1 or likelihood.whole_kind is None:
        return {}
    size, dim = options.budget.size, tangents.sketch.dim
    if len(tangents.mix) > 1 or dim > MAX_DIM or tangents.slow_reason:
        return {}
    per_output, sample = likelihood.output_map(tangents), evenly(len(rows), MAX_ROWS)
    if per_output.num_outputs > MAX_OUTPUTS or (size is not None and size < MIN_BUDGET * 4 * dim**2):
        return {}
    moments = torch.zeros(
        per_output.num_outputs, dim, dim, dtype=torch.float64, device=tangents.network.device
    )
    parts = [sample[part] for part in chunks(len(sample), chunk_rows(per_output))]
    for index in context.report.track(parts, stage="summing gradients", total=len(parts), rows=len):
        each = _gradients(per_output, rows, index).double().transpose(0, 1)  # [C, k, D]
        moments += each.mT @ each
    if not bool(torch.isfinite(moments).all()):
        return {}  # an overflow
    noise, dtype = residual.square().mean(dim=0).to(moments), tangents.network.dtype
    whole = likelihood.whole_kind.of(moments, noise, len(sample), dtype)
    # without errors or gradients there is none
    return {"tangents": per_output, "whole": whole} if float(whole.values[-1]) > 0 else {}


def left_out_leverage(mixture: Mixture, rows: Rows, index: Tensor) -> Tensor:
    """log h of training rows `index` [k], each left out, on the CPU, [k, C]; 0 without the posterior."""
    if mixture.whole is None:
        return torch.zeros(len(index), len(mixture.outputs), dtype=torch.float64)
    parts = (_gradients(mixture.tangents, rows, part) for part in index.split(chunk_rows(mixture.tangents)))
    return torch.cat([mixture.whole.left_out(part).cpu() for part in parts])


def extend_whole(mixture: Mixture, rows: Rows) -> Mixture:
    """The mixture whose posterior of all rows has these rows, too."""
    if (whole := mixture.whole) is None:
        return mixture
    for index in chunks(len(rows), chunk_rows(mixture.tangents)):
        whole = whole.extended(_gradients(mixture.tangents, rows, index))
    return replace(mixture, whole=whole)


@torch.no_grad()
def _gradients(tangents: Any, rows: Rows, index: Tensor) -> Tensor:
    """The sketches of each output of rows `index`, [k, C, D]."""
    return torch.cat(map_chunks(lambda part: tangents(rows.take(part)).by_output, index, len(index)))
