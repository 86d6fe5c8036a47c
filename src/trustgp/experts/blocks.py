"""Rows in blocks of one owner each, an expert or a cell: batched products serve all owners at once.

Sizes depend on the numbers of rows and owners only where values may not be read, as in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.torch_modes import readable

MIN_BLOCK = 4  # rows of a block on a CPU, where tables are copied


@dataclass(frozen=True)
class Blocks:
    """Where n rows lie in B blocks of b rows; places without a row are zeros."""

    owner: Tensor  # of each block [B]
    slot: Tensor | None = None  # of each row in the B * b places [n]; None: each row is a block
    size: int = 1  # b
    single: int | None = None  # the owner of the one block, where its value may be read

    @classmethod
    def of(cls, labels: Tensor, owners: int) -> Blocks:
        """Of rows that belong to the owners `labels` [n]."""
        if type(labels) is not Tensor:  # a trace of any number of rows
            return cls(labels)
        n, read = labels.shape[0], readable(labels)
        if n == 1:
            return cls(labels, single=labels.tolist()[0] if read else None)
        if not read and n <= 2 * owners:
            return cls(labels)
        size = max(MIN_BLOCK, 1 << max(0, (n // owners).bit_length() - 1))
        counts = labels.new_zeros(owners).index_add_(0, labels, torch.ones_like(labels))
        blocks = (counts + (size - 1)) // size
        last, order = blocks.cumsum(dim=0), labels.argsort(stable=True)
        # rows of an owner are consecutive in this order, and those of the owners before it come first
        shift = size * (last - blocks) - (counts.cumsum(dim=0) - counts)
        ordered = torch.arange(n, device=labels.device) + shift[labels[order]]
        slot = torch.empty_like(order).scatter_(0, order, ordered)
        used = int(last[-1]) if read else min(n, n // size + owners)
        numbers = torch.arange(used, device=labels.device)
        owner = torch.searchsorted(last, numbers, right=True).clamp_max_(owners - 1)
        return cls(owner, slot, size)

    def split(self, rows: Tensor) -> Tensor:
        """Rows [n, ...] as [B, b, ...]."""
        if self.slot is None:
            return rows[:, None]
        padded = rows.new_zeros(len(self.owner) * self.size, *rows.shape[1:])
        return padded.index_copy_(0, self.slot, rows).unflatten(0, (-1, self.size))

    def join(self, values: Tensor) -> Tensor:
        """Values [B, b, ...] of the rows, [n, ...]."""
        return values[:, 0] if self.slot is None else values.flatten(0, 1).index_select(0, self.slot)

    def pick(self, table: Tensor) -> Tensor:
        """The owners' entries [B, ...] of a table [M, ...]."""
        if self.single is not None:
            return table.narrow(0, self.single, 1)
        return table.index_select(0, self.owner)
