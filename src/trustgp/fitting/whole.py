"""Posterior of all rows, and hidden vectors, from the same pass as features and outputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import evenly, map_chunks
from ..data.rows import Rows
from ..executors import FitContext
from ..experts.features import chunk_rows
from ..experts.hidden import MIN_PER_CLASS, HiddenRows, rows_per_class
from ..experts.mixture import Mixture
from ..experts.whole import MAX_DIM
from ..tangents.base import TangentMap, gram_blocks
from ..tangents.jacobian.layer_io import hidden_rows
from ..tangents.network import TangentNetwork
from ..tangents.sketch import OutputSketchMap, SketchMap
from .divide import run_tangents
from .prepare import Prepared

MAX_ROWS = 2**14  # evenly spread rows whose gradients are summed
MAX_OUTPUTS = 16  # each needs a backward pass of its own
MIN_BUDGET = 8  # budget over the size of an optional part; a smaller budget has no room for it
MAX_KEPT_BYTES = 2**27  # bytes of gradients by output that are cached for left-out rows
Reduced = tuple[Tensor | None, Tensor | None, Tensor | None]


class RowSums:
    """Sums of gradients by output, and hidden vectors of a few rows, gathered chunk by chunk."""

    def __init__(self, ready: Prepared, rows: Rows) -> None:
        self._rows, self._network, self._likelihood = rows, ready.network, ready.options.likelihood
        self.tangents = output_map(ready)
        self.sample = evenly(len(rows), MAX_ROWS) if self.tangents else torch.arange(0)
        self._moments: Tensor | None = None
        self.by_output: Tensor | None = None  # gradients of all rows [n, C, D], if these are few
        if self.tangents is not None and kept_bytes(ready, len(rows)):
            shape = len(rows), self.tangents.num_outputs, self.tangents.sketch.dim
            self.by_output = torch.empty(shape, dtype=ready.network.dtype, device=ready.network.device)
        self._wanted, width = _hidden_index(ready, rows)
        hidden = {"dtype": torch.float32, "device": ready.network.device}
        self._hidden = torch.empty(len(self._wanted), width, **hidden)
        self._filled = torch.zeros(len(self._wanted), dtype=torch.bool)

    def passes(self, plain: TangentMap) -> list[tuple[TangentMap, Tensor]]:
        """Maps and the indices of their rows, for one pass over all rows."""
        others = torch.ones(len(self._rows), dtype=torch.bool)
        others[self.sample] = False
        both = [(self.tangents or plain, self.sample), (plain, others.nonzero().flatten())]
        return [(tangents, index) for tangents, index in both if len(index)]

    def reduced(self, index: Tensor, lots: Sequence[Any]) -> Reduced:
        """Weighted sums of phi phi^T by output [C, D, D], hidden vectors [k, h] and gradients phi [k, C, D]
        of rows `index`, from the parts `lots` of their features; None where these lack them."""
        each, hidden = ([getattr(lot, name, None) for lot in lots] for name in ("by_output", "hidden"))
        kept, vectors = ([one for one in lot if one is not None] for lot in (each, hidden))
        hidden = torch.cat(vectors) if len(vectors) == len(lots) else None
        if not kept:
            return None, hidden, None
        by_output, weights = torch.cat(kept), self._rows.weights_at(index)
        each = by_output.double()
        each = each if weights is None else each * weights.sqrt()[:, None, None].to(each)
        return _second_moments(each.transpose(0, 1)), hidden, by_output

    def add(self, index: Tensor, reduced: Reduced) -> None:
        """Add the result of `reduced` for rows `index`, ascending."""
        moments, hidden, by_output = reduced
        if moments is not None:
            self._moments = moments if self._moments is None else self._moments.add_(moments)
            if self.by_output is not None and by_output is not None:
                self.by_output[index] = by_output
        if hidden is not None and len(self._wanted):
            place = torch.searchsorted(index, self._wanted).clamp_max(len(index) - 1)
            here = (index[place] == self._wanted).nonzero().flatten()
            self._hidden[here.to(hidden.device)] = hidden[place[here].to(hidden.device)].to(self._hidden)
            self._filled[here] = True

    def complete(self, context: FitContext) -> None:
        """Compute what is still missing, in separate passes."""
        if self.tangents is not None and self._moments is None:
            made = run_tangents(self.tangents, self._rows, context, index=self.sample, also=self.reduced)
            for index, _, _, reduced in made:
                self.add(index, reduced)
        if not bool(self._filled.all()):
            left = (~self._filled).nonzero().flatten()
            vectors = _hidden_at(self._network, self._rows, self._wanted[left])
            self._hidden[left.to(vectors.device)] = vectors.to(self._hidden)

    def fields(self, residual: Tensor) -> dict[str, Any]:
        """Fields of a mixture, from the residuals [n, C] of the rows."""
        hidden, moments, kind = None, self._moments, self._likelihood.whole_kind
        if len(self._wanted):
            labels = _class_labels(self._rows)[self._wanted]
            hidden = HiddenRows.of(self._hidden, labels.to(self._network.device))
        if kind is None or moments is None or not bool(torch.isfinite(moments).all()):  # an overflow
            return {"hidden": hidden}
        weights, squared = self._rows.weights, residual.square()
        squared = squared if weights is None else squared * weights[:, None].to(squared)
        noise = squared.mean(dim=0).to(moments)
        whole = kind.of(moments, noise, len(self.sample), self._network.dtype)
        # without errors or gradients there is no posterior
        own = {"tangents": self.tangents, "whole": whole} if float(whole.values[-1]) > 0 else {}
        return {"hidden": hidden, **own}


def _second_moments(each: Tensor) -> Tensor:
    """Sums of phi phi^T over rows [C, n, D], shape [C, D, D]: symmetric, so the lower blocks are computed."""
    size = each.shape[2]
    total, blocks = each.new_empty(len(each), size, size), gram_blocks(size, size, same=True, min_rows=128)
    for rows, columns in blocks:
        product = each[:, :, rows].mT @ each[:, :, columns]
        total[:, rows, columns], total[:, columns, rows] = product, product.mT
    return total


def output_map(ready: Prepared) -> OutputSketchMap | None:
    """Map that also returns the gradients of each output; None without a sketch, or with many outputs."""
    tangents, likelihood, size = ready.maps[0][0], ready.options.likelihood, ready.options.budget.size
    if not isinstance(tangents, SketchMap) or len(ready.maps) > 1 or likelihood.whole_kind is None:
        return None
    dim = tangents.sketch.dim
    if len(tangents.mix) > 1 or dim > MAX_DIM or tangents.slow_reason:
        return None
    per_output = likelihood.output_map(tangents)
    if per_output.num_outputs > MAX_OUTPUTS or (size is not None and size < MIN_BUDGET * 4 * dim**2):
        return None
    return per_output


def kept_bytes(ready: Prepared, n: int) -> int:
    """Bytes of the gradients by output of n rows that a fit caches; 0 if it caches none."""
    tangents = output_map(ready)
    if tangents is None or n > MAX_ROWS or not ready.options.likelihood.leaves_out:
        return 0
    size = n * tangents.num_outputs * tangents.sketch.dim * ready.network.dtype.itemsize
    return size if size <= MAX_KEPT_BYTES else 0


def left_out_leverage(mixture: Mixture, rows: Rows, index: Tensor, kept: Tensor | None) -> Tensor:
    """Log leverages log h [k, C] of training rows `index` [k], each left out, on the CPU; 0 without the
    posterior. `kept` are cached gradients of all rows [n, C, D], if there are any."""
    if mixture.whole is None:
        return torch.zeros(len(index), len(mixture.outputs), dtype=torch.float64)
    lots = index.split(chunk_rows(mixture.tangents))
    parts = (_gradients(mixture.tangents, rows, lot) if kept is None else kept[lot] for lot in lots)
    weighted = zip(parts, map(rows.weights_at, lots), strict=True)
    return torch.cat([mixture.whole.left_out(*pair).cpu() for pair in weighted])


def extended(mixture: Mixture, rows: Rows) -> Mixture:
    """Mixture with these rows added to its posterior of all rows and to its hidden vectors."""
    hidden, whole, every = mixture.hidden, mixture.whole, torch.arange(len(rows))
    if hidden is not None:
        hidden = hidden.extended(_hidden_at(mixture.tangents.network, rows, every), _class_labels(rows))
    if whole is not None:
        for index in every.split(chunk_rows(mixture.tangents)):
            whole = whole.extended(_gradients(mixture.tangents, rows, index))
    return replace(mixture, hidden=hidden, whole=whole)


@torch.no_grad()
def _gradients(tangents: Any, rows: Rows, index: Tensor) -> Tensor:
    """Gradient sketches of each output for rows `index`, shape [k, C, D]."""
    return torch.cat(map_chunks(lambda part: tangents(rows.take(part)).by_output, index, len(index)))


def _hidden_index(ready: Prepared, rows: Rows) -> tuple[Tensor, int]:
    """Ascending indices of a few rows of each class [k], and the length of a hidden vector; no rows and 0 if
    the network has no head, or the budget no room."""
    network, options = ready.network, ready.options
    if not network.head:
        return torch.arange(0), 0
    labels = _class_labels(rows)
    width = hidden_rows(network, rows.first).shape[1]
    classes = len(labels.unique())
    most = min(rows_per_class(classes, width), max(MIN_PER_CLASS, options.hidden_rows // classes))
    each = [(labels == label).nonzero().flatten() for label in labels.unique()]
    index = torch.cat([own[evenly(len(own), most)] for own in each]).sort().values
    size = options.budget.size
    short = size is not None and size < MIN_BUDGET * 4 * width * len(index)
    return (torch.arange(0), 0) if short else (index, width)


def _class_labels(rows: Rows) -> Tensor:
    """Class of each row, int64 [n] on the CPU; 0 if targets are not one class number per row."""
    targets: Any = rows.targets.cpu()
    single = targets.shape[1] == 1 and not targets.is_floating_point()
    return targets[:, 0].long() if single else torch.zeros(len(targets), dtype=torch.int64)


@torch.no_grad()
def _hidden_at(network: TangentNetwork, rows: Rows, index: Tensor) -> Tensor:
    """Hidden vectors of rows `index`, shape [k, h]."""
    size = network.pass_rows(rows.first)
    return torch.cat(map_chunks(lambda part: hidden_rows(network, rows.take(part)), index, size))
