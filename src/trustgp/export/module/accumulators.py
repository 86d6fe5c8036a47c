"""Gradients put together without writing into place: as rows of kept columns, or as sketches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...tangents.jacobian.accumulators import DenseAccumulator, products
from ...tangents.rows import RowMap
from ...tangents.sketch import SketchMap


class Parts:
    """Takes gradients by parameter, [n, K, ...] each; what comes twice is added.

    Args:
        shapes: Of the parameters.
        signs: Of each parameter's entries along its first dimension [K, o] and all others [i]; None: none.
        kept: Which entries of each parameter are kept, as their lines and columns in [o, i]; None: all.
    """

    def __init__(
        self,
        shapes: dict[str, torch.Size],
        signs: dict[str, tuple[Tensor, Tensor]] | None = None,
        kept: dict[str, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.shapes, self.signs, self.kept = shapes, signs, kept
        self.found: dict[str, Tensor] = {}

    def part(self, rows: slice, mixed: slice) -> Parts:
        raise NotImplementedError("all rows and mixed outputs come at once.")

    def room(self, size: int) -> int:
        return size

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        if self.signs is not None:  # on the factors: there are fewer of them than products
            lines, columns = self.signs[name]
            groups = left.shape[2]
            left = left * lines.unflatten(1, (groups, 1, -1))
            right = right * columns
        if self.kept is not None and left.shape[2] == left.shape[3] == 1:
            lines, columns = self.kept[name]
            wanted = left[:, :, 0, 0].index_select(2, lines) * right[:, :, 0, 0].index_select(2, columns)
            self._add(name, wanted)
            return
        self._add(name, self._chosen(name, products(left, right).flatten(2)))

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        table = value.new_zeros(*value.shape[:2], *self.shapes[name])
        self.plain(name, table.scatter_add(2, index[:, None, :, None].expand_as(value), value))

    def plain(self, name: str, value: Tensor) -> None:
        value = value.reshape(*value.shape[:2], -1)
        if self.signs is not None:
            lines, columns = self.signs[name]
            value = value * (lines[:, :, None] * columns).flatten(1)
        self._add(name, self._chosen(name, value))

    def _chosen(self, name: str, value: Tensor) -> Tensor:
        if self.kept is None:
            return value
        lines, columns = self.kept[name]
        shape = self.shapes[name]
        long = shape.numel() // (shape[0] if shape else 1)
        return value.index_select(2, lines * long + columns)

    def _add(self, name: str, value: Tensor) -> None:
        self.found[name] = self.found[name] + value if name in self.found else value


def _shapes(tangents: RowMap | SketchMap) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tangents.network.parameters.items()}


class WrittenRows(nn.Module):
    """Gradient rows of the kept columns, [n, K * d]; see `tangents.collecting.Dense`."""

    def __init__(self, tangents: RowMap) -> None:
        super().__init__()
        self.shapes, self.mixed = _shapes(tangents), len(tangents.mix)
        self.every = len(tangents.kept) == tangents.network.num_parameters
        self.like = next(iter(tangents.network.parameters.values()))
        self.sizes = {name: shape.numel() for name, shape in self.shapes.items()}
        places = DenseAccumulator(tangents.network, 0, 1, tangents.kept)._places
        for number, (name, place) in enumerate(places.items()):
            assert place.inside is not None
            shape = self.shapes[name]
            long = shape.numel() // (shape[0] if shape else 1)
            self.register_buffer(f"lines_{number}", place.inside // long)
            self.register_buffer(f"columns_{number}", place.inside % long)
            self.sizes[name] = len(place.inside)

    def collector(self) -> Parts:
        """An empty one."""
        kept = {
            name: (getattr(self, f"lines_{i}"), getattr(self, f"columns_{i}"))
            for i, name in enumerate(self.shapes)
        }
        return Parts(self.shapes, kept=None if self.every else kept)

    def forward(self, collector: Parts, n: int) -> Tensor:
        """The rows of what was collected."""
        parts = [
            collector.found[name]
            if name in collector.found
            else torch.zeros(n, self.mixed, size, dtype=self.like.dtype, device=self.like.device)
            for name, size in self.sizes.items()
            if size
        ]
        return torch.cat(parts, dim=2).flatten(1)


class SketchedRows(nn.Module):
    """Sums of signed gradients in buckets, [n, D], the same as those of `tangents.hashing.Sketched`.

    A bucket's entries stand in a column of a table, filled up with the place of a zero: a gather and a sum.
    """

    table: Tensor  # [L, D]
    columns_0: Tensor

    def __init__(self, tangents: SketchMap) -> None:
        super().__init__()
        tables, self.shapes = tangents.tables, _shapes(tangents)
        self.mixed = len(tangents.mix)
        self.dim, places, start = tables.dim, [], 0
        for number, name in enumerate(self.shapes):
            left, right = tables.left[name], tables.right[name]
            place = (left.place + tables.mixed.place[:, None])[:, :, None] + right.place  # [K, o, i]
            places.append((place % tables.dim).flatten())
            self.register_buffer(f"lines_{number}", left.sign * tables.mixed.sign[:, None])
            self.register_buffer(f"columns_{number}", right.sign.clone())
            start += place.numel()
        self.register_buffer("table", _columns(torch.cat(places), tables.dim).to(torch.int32))

    def collector(self) -> Parts:
        """An empty one."""
        signs = {
            name: (getattr(self, f"lines_{i}"), getattr(self, f"columns_{i}"))
            for i, name in enumerate(self.shapes)
        }
        return Parts(self.shapes, signs=signs)

    def forward(self, collector: Parts, n: int) -> Tensor:
        """The sketches of what was collected."""
        like = self.columns_0
        parts = [
            collector.found[name].flatten(1)
            if name in collector.found
            else like.new_zeros(n, self.mixed * shape.numel())
            for name, shape in self.shapes.items()
        ]
        flat = torch.cat([*parts, like.new_zeros(n, 1)], dim=1)
        return flat.index_select(1, self.table.flatten()).unflatten(1, self.table.shape).sum(dim=1)


def _columns(places: Tensor, dim: int) -> Tensor:
    """The entries of each bucket, one below the other, [L, D]; places left over name the one after."""
    order = places.argsort(stable=True)
    sizes = torch.bincount(places, minlength=dim)
    starts = sizes.cumsum(0) - sizes
    rank = torch.arange(len(places), device=places.device) - starts[places[order]]
    table = torch.full((int(sizes.max()), dim), len(places), device=places.device)
    table[rank, places[order]] = order
    return table
