"""Rows grouped by owner, an expert or a cell: on a CPU one owner after another, elsewhere in blocks, so that
batched products serve all owners at once.

Block sizes depend only on the numbers of rows and owners, as values may not be read in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def by_owner(
    work: Callable[[int, Any], tuple[Tensor, ...]], labels: Tensor, owners: int
) -> tuple[Tensor, ...]:
    """Results of `work`, called with each owner and an index of its rows, in the order of `labels` [n]."""
    if labels.shape[0] == 1:
        return work(labels.tolist()[0], slice(None))
    order, sizes = labels.argsort(stable=True), torch.bincount(labels, minlength=owners).tolist()
    lots = [(owner, rows) for owner, rows in enumerate(order.split(sizes)) if len(rows)]
    if len(lots) == 1:
        return work(lots[0][0], slice(None))
    parts, back = [work(*lot) for lot in lots], order.argsort()
    return tuple(torch.cat(lot).index_select(0, back) for lot in zip(*parts, strict=True))


def rows_at(table: Tensor, index: Any) -> Tensor:
    """Rows of an owner, by the index that `by_owner` passes to `work`."""
    return table if isinstance(index, slice) else table[index]


@dataclass(frozen=True)
class Blocks:
    """Positions of n rows in B blocks of b rows each, padded with zeros."""

    owner: Tensor  # of each block [B]
    slot: Tensor | None = None  # of each row in the B * b places [n]; None: each row is a block
    size: int = 1  # b

    @classmethod
    def of(cls, labels: Tensor, owners: int) -> Blocks:
        """Blocks for rows that belong to the owners `labels` [n]."""
        if type(labels) is not Tensor:  # a trace of any number of rows
            return cls(labels)
        n = labels.shape[0]
        if n <= 2 * owners:
            return cls(labels)
        size = 1 << ((n // owners).bit_length() - 1)
        counts = labels.new_zeros(owners).index_add_(0, labels, torch.ones_like(labels))
        blocks = (counts + (size - 1)) // size
        last, order = blocks.cumsum(dim=0), labels.argsort(stable=True)
        # rows of an owner are consecutive in this order, and those of the owners before it come first
        shift = size * (last - blocks) - (counts.cumsum(dim=0) - counts)
        ordered = torch.arange(n, device=labels.device) + shift[labels[order]]
        slot = torch.empty_like(order).scatter_(0, order, ordered)
        numbers = torch.arange(min(n, n // size + owners), device=labels.device)
        owner = torch.searchsorted(last, numbers, right=True).clamp_max_(owners - 1)
        return cls(owner, slot, size)

    def split(self, rows: Tensor) -> Tensor:
        """Rows [n, ...] as [B, b, ...]."""
        if self.slot is None:
            return rows[:, None]
        padded = rows.new_zeros(len(self.owner) * self.size, *rows.shape[1:])
        return padded.index_copy_(0, self.slot, rows).unflatten(0, (-1, self.size))

    def join(self, values: Tensor) -> Tensor:
        """Values [B, b, ...] in the order of the rows [n, ...]."""
        return values[:, 0] if self.slot is None else values.flatten(0, 1).index_select(0, self.slot)

    def pick(self, table: Tensor) -> Tensor:
        """Entry of each block's owner [B, ...] in a table [M, ...]."""
        return table.index_select(0, self.owner)
