"""Collectors of gradients: the interface, and a collector of dense rows or of selected columns."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import Self

from ..network import TangentNetwork


class Collector(Protocol):
    """Receives the gradients of n rows and K mixed outputs by parameter, and sums those of one parameter."""

    def part(self, rows: slice, mixed: slice) -> Self:
        """View of the collector for a part of the rows and mixed outputs; by default the collector itself."""
        return self

    def room(self, size: int) -> int:
        """Working memory per row, in numbers, for an outer product of `size` numbers."""
        return size

    def thin(self, name: str, side: str, values: Tensor, axis: int, groups: int) -> Tensor:
        """Inputs or signals of a layer, projected along the channels (`axis`, in groups), which belong to
        the "left" (first) or "right" side of the weight; unchanged by default."""
        return values

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add sum_t left_t right_t^T of a [g * o, i]: [n, K, g, t, o] and [n, K, g, t, i], one K is 1."""
        self.add(name, products(left, right))

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        """Add sum_t of value_t [n, K, t, d] in row index_t [n, t] of a table [v, d]."""

    def plain(self, name: str, value: Tensor) -> None:
        """Add the gradient itself, [n, K, ...]."""
        self.add(name, value)

    def add(self, name: str, value: Tensor) -> None:
        """Add the gradient of projected inputs and signals, [n, K, ...]."""


class DenseAccumulator(Collector):
    """Collects gradients [n, K, d] of all parameters, or of the `kept` indices of their flat vector."""

    def __init__(self, network: TangentNetwork, n: int, mixed: int, kept: Tensor | None = None) -> None:
        self.slots: dict[str, tuple[slice, Tensor | None]] = {}  # columns, and kept entries; None: all
        self.shapes: Mapping[str, torch.Size] = {k: value.shape for k, value in network.parameters.items()}
        start = filled = 0
        for name, value in network.parameters.items():
            stop, inside, taken = start + value.numel(), None, value.numel()
            if kept is not None:
                taken = len(inside := kept[(kept >= start) & (kept < stop)] - start)
            self.slots[name] = slice(filled, filled + taken), inside
            start, filled = stop, filled + taken
        self.values = torch.zeros(n, mixed, filled, dtype=network.dtype, device=network.device)

    def part(self, rows: slice, mixed: slice) -> Self:
        part = copy.copy(self)
        part.values = self.values[rows, mixed]
        return part

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        table = value.new_zeros(*value.shape[:2], *self.shapes[name])
        self.add(name, table.scatter_add(2, index[:, None, :, None].expand_as(value), value))

    def add(self, name: str, value: Tensor) -> None:
        kept, value = self.slots[name][1], value.reshape(*value.shape[:2], -1)
        self.put(name, value if kept is None else value[:, :, kept])

    def put(self, name: str, value: Tensor) -> None:
        """Add the gradient of the kept entries, [n, K, ...]."""
        self.values[:, :, self.slots[name][0]] += value

    def rows(self) -> Tensor:
        """Gradient rows [n, K * d]: the kept parameters for each mixed output in turn."""
        return self.values.flatten(1)

    def agreeing(self, other: DenseAccumulator, names: Container[str]) -> list[str]:
        """Parameters among `names` whose gradients are the same up to rounding."""
        # loose: parts of a network may compute in lower precision; errors are far larger
        tolerance, floor = (1e-5, 1e-9) if self.values.dtype == torch.float64 else (1e-2, 1e-4)
        minimum, same = floor * _size(self.values), []
        for name, (columns, _) in self.slots.items():  # in the network's order
            one, two = self.values[:, :, columns], other.values[:, :, columns]
            if name in names and _size(one - two) <= tolerance * _size(one) + minimum:
                same.append(name)
        return same


def _size(values: Tensor) -> float:
    """Norm of the finite entries."""
    return float(torch.where(torch.isfinite(values), values, 0.0).norm())


def products(left: Tensor, right: Tensor) -> Tensor:
    """Sum of left_t right_t^T over t [n, K, g, o, i], of [n, K, g, t, o] and [n, K, g, t, i]; one K is 1."""
    mixed, wide, long = max(left.shape[1], right.shape[1]), left.shape[4], right.shape[4]
    if mixed == 1:
        return left.mT @ right
    if right.shape[1] == 1:  # K beside o, so that `right` is not repeated
        folded = left.permute(0, 2, 1, 4, 3).flatten(2, 3) @ right[:, 0]  # [n, g, K * o, i]
        return folded.unflatten(2, (mixed, wide)).transpose(1, 2)
    folded = left[:, 0].transpose(-2, -1) @ right.permute(0, 2, 3, 1, 4).flatten(3)  # [n, g, o, K * i]
    return folded.unflatten(3, (mixed, long)).permute(0, 3, 1, 2, 4)
