"""What takes gradients: what all of it has in common, and gradient rows written out, or the kept columns."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from ..network import TangentNetwork


class Collector(Protocol):
    """Takes the gradients of n rows and K mixed outputs, by parameter; what comes twice is added.

    One that says nothing else writes each gradient out, and adds it.
    """

    together: bool = True  # whether it takes products, by `add`: those of layers of one shape come together

    def part(self, rows: slice, mixed: slice) -> Self:
        """The same, for some of the rows and some of the mixed outputs; itself where it takes any."""
        return self

    def room(self, size: int) -> int:
        """Numbers a row that it needs on the way for an outer product of `size` numbers."""
        return size

    def thin(self, name: str, side: str, values: Tensor, axis: int, groups: int) -> Tensor:
        """Inputs or signals of a weight's layer, with the channels of each group, along `axis`, projected as
        it wants them along the "left" (first) or "right" side of the weight, or as they are."""
        return values

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """sum_t left_t right_t^T: [n, K, g, t, o] and [n, K, g, t, i] (one K may be 1) for a [g * o, i]."""
        self.add(name, products(left, right))

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        """sum_t of value_t [n, K, t, d] in line index_t [n, t] of a [v, d]."""

    def plain(self, name: str, value: Tensor) -> None:
        """The gradient itself, [n, K, ...]."""
        self.add(name, value)

    def add(self, name: str, value: Tensor) -> None:
        """The gradient, made of what was thinned, [n, K, ...]."""


class Shared:
    """Hands what comes for the rows of several weights, one lot below the other, to each of them."""

    def __init__(self, into: Collector, names: Sequence[str], rows: int) -> None:
        self.into, self.names, self.rows = into, names, rows

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        for one, value in zip(self.names, products(left, right).split(self.rows), strict=True):
            self.into.add(one, value)

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        lots = zip(self.names, index.split(self.rows), value.split(self.rows), strict=True)
        for one, lines, values in lots:
            self.into.lookup(one, lines, values)

    def plain(self, name: str, value: Tensor) -> None:
        for one, values in zip(self.names, value.split(self.rows), strict=True):
            self.into.plain(one, values)


@dataclass(frozen=True)
class Place:
    """Where a parameter's gradient goes, and which part of it, if not all."""

    columns: slice
    inside: Tensor | None


class DenseAccumulator(Collector):
    """Collects gradients of shape [n, K, d]: all parameters one after another, or those that are kept.

    These are places in the vector of all chosen parameters, ascending; None keeps all.
    """

    def __init__(self, network: TangentNetwork, n: int, mixed: int, kept: Tensor | None = None) -> None:
        self.places: dict[str, Place] = {}
        self.shapes: Mapping[str, torch.Size] = {k: value.shape for k, value in network.parameters.items()}
        start = filled = 0
        for name, value in network.parameters.items():
            stop, inside, taken = start + value.numel(), None, value.numel()
            if kept is not None:
                inside = kept[(kept >= start) & (kept < stop)] - start
                taken = len(inside)
            self.places[name] = Place(slice(filled, filled + taken), inside)
            start, filled = stop, filled + taken
        self.values = torch.zeros(n, mixed, filled, dtype=network.dtype, device=network.device)

    def part(self, rows: slice, mixed: slice) -> DenseAccumulator:
        part = copy.copy(self)
        part.values = self.values[rows, mixed]
        return part

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        table = value.new_zeros(*value.shape[:2], *self.shapes[name])
        self.add(name, table.scatter_add_(2, index[:, None, :, None].expand_as(value), value))

    def add(self, name: str, value: Tensor) -> None:
        """Numbers of one parameter, in the order in which they are kept."""
        place, value = self.places[name], value.reshape(*value.shape[:2], -1)
        self.values[:, :, place.columns] += value if place.inside is None else value[:, :, place.inside]

    def rows(self) -> Tensor:
        """For each mixed output in turn, the kept parameters, [n, K * d]."""
        return self.values.flatten(1)

    def agreeing(self, other: DenseAccumulator, names: Container[str]) -> list[str]:
        """The parameters, among `names`, whose gradients are the same to rounding."""
        # loose: parts of a network may compute in less than its precision; what is wrong is wrong by far
        tolerance, floor = (1e-5, 1e-9) if self.values.dtype == torch.float64 else (1e-2, 1e-4)
        least, same = floor * _size(self.values), []
        for name, place in self.places.items():  # in the network's order
            mine, theirs = self.values[:, :, place.columns], other.values[:, :, place.columns]
            if name in names and _size(mine - theirs) <= tolerance * _size(mine) + least:
                same.append(name)
        return same


def _size(values: Tensor) -> float:
    """Norm of what is finite."""
    return float(torch.where(torch.isfinite(values), values, 0.0).norm())


def products(left: Tensor, right: Tensor) -> Tensor:
    """sum_t left_t right_t^T: [n, K, g, t, o] and [n, K, g, t, i], one K may be 1, give [n, K, g, o, i]."""
    mixed, wide, long = max(left.shape[1], right.shape[1]), left.shape[4], right.shape[4]
    if mixed == 1:
        return left.mT @ right
    if right.shape[1] == 1:  # K beside o, so that what is not mixed is not repeated
        folded = left.permute(0, 2, 1, 4, 3).flatten(2, 3) @ right[:, 0]  # [n, g, K * o, i]
        return folded.unflatten(2, (mixed, wide)).transpose(1, 2)
    folded = left[:, 0].transpose(-2, -1) @ right.permute(0, 2, 3, 1, 4).flatten(3)  # [n, g, o, K * i]
    return folded.unflatten(3, (mixed, long)).permute(0, 3, 1, 2, 4)
