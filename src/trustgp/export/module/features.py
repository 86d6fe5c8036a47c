"""Tangent features of a batch in one go, made by the model's own code, in a form that can be traced."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...data.trees import Inputs, count
from ...tangents.base import TangentMap
from ...tangents.factors import FactorMap
from ...tangents.jacobian.accumulators import DenseAccumulator, products
from ...tangents.jacobian.layer_io import record
from ...tangents.jacobian.strategies import GradientPlan, calls_by_layer
from ...tangents.rows import RowFeatures, RowMap
from ...tangents.sketch import SketchMap
from ..errors import refuse_parameters


def feature_maker(tangents: TangentMap, example: Inputs) -> Callable[[Inputs], Any]:
    """Makes the features of a mixture, all mixed outputs at once; `example` is looked at once."""
    if isinstance(tangents, FactorMap):
        return FactorMap(tangents.network, tangents.mix, tangents.row_bytes(), few_rows=sys.maxsize)
    assert isinstance(tangents, (RowMap, SketchMap))
    plan = tangents.gradients.plan(example)
    refuse_parameters(tangents.network, (*plan.vmapped, *plan.looped), plan.reason)
    return RowMaker(tangents, plan)


class RowMaker(nn.Module):
    """Gradient rows, written out or sketched; see `tangents.rows` and `tangents.sketch`."""

    def __init__(self, tangents: RowMap | SketchMap, plan: GradientPlan) -> None:
        super().__init__()
        self.network, self.mix, self.plan = tangents.network, tangents.mix, plan
        self.rows = SketchedRows(tangents) if isinstance(tangents, SketchMap) else WrittenRows(tangents)

    @torch.inference_mode(False)
    def forward(self, inputs: Inputs) -> RowFeatures:
        """As `strategies.layerwise`, all rows and all mixed outputs at once."""
        into: Any = self.rows.empty()
        n = count(inputs)
        with torch.enable_grad():
            outputs, recorder = record(self.network, inputs, self.plan.rowless)
        layers = calls_by_layer(recorder, self.plan, n)
        chosen = [call for calls in layers for call in calls]
        if outputs.requires_grad and chosen:
            probes, mix = [call.probe for call in chosen], self.mix.to(outputs)
            signals = self.network.mixed_gradients(outputs, probes, mix, at_once=True)
            backs = dict(zip(chosen, signals, strict=True))
            for calls in layers:
                self.plan.signals(calls, backs, n).hand_on(into)
        return RowFeatures(into(n))


class GraphRows(nn.Module):
    """A `Collector` that does not write into place; what comes twice is added."""

    def __init__(self, tangents: TangentMap) -> None:
        super().__init__()
        self.parameters_like = next(iter(tangents.network.parameters.values()))
        self.shapes = {name: value.shape for name, value in tangents.network.parameters.items()}
        self.sizes = {name: shape.numel() for name, shape in self.shapes.items()}  # of what is kept
        self.mixed = len(tangents.mix)
        self.found: dict[str, Tensor] = {}

    def empty(self) -> Self:
        """One that has taken none."""
        again = copy.copy(self)
        again.found = {}
        return again

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        self.add(name, products(left, right).flatten(2))

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        table = value.new_zeros(*value.shape[:2], *self.shapes[name])
        self.plain(name, table.scatter_add(2, index[:, None, :, None].expand_as(value), value))

    def plain(self, name: str, value: Tensor) -> None:
        self.add(name, value.reshape(*value.shape[:2], -1))

    def add(self, name: str, value: Tensor) -> None:
        """Numbers [n, K, d] of one parameter."""
        self.found[name] = self.found[name] + value if name in self.found else value

    def parts(self, n: int) -> list[Tensor]:
        """What was taken, [n, K, d] for each parameter of which something is kept."""
        zeros = self.parameters_like.new_zeros
        sizes = {name: size for name, size in self.sizes.items() if size}
        return [
            self.found[name] if name in self.found else zeros(n, self.mixed, size)
            for name, size in sizes.items()
        ]


class WrittenRows(GraphRows):
    """Gradient rows of the kept columns, [n, K * d]; see `accumulators.DenseAccumulator`."""

    def __init__(self, tangents: RowMap) -> None:
        super().__init__(tangents)
        self.kept: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # places, their lines and columns in [o, i]
        if len(tangents.kept) == tangents.network.num_parameters:
            return
        for name, place in DenseAccumulator(tangents.network, 0, 1, tangents.kept).places.items():
            assert place.inside is not None
            long = place.shape.numel() // (place.shape[0] if place.shape else 1)
            self.kept[name] = (place.inside, place.inside // long, place.inside % long)
            self.sizes[name] = len(place.inside)

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Of a single position only what is kept is multiplied."""
        if not self.kept or left.shape[2] * left.shape[3] > 1:
            super().outer(name, left, right)
            return
        _, lines, columns = self.kept[name]
        wanted = left[:, :, 0, 0].index_select(2, lines) * right[:, :, 0, 0].index_select(2, columns)
        super().add(name, wanted)

    def add(self, name: str, value: Tensor) -> None:
        """Numbers of one parameter, of which some are kept."""
        super().add(name, value.index_select(2, self.kept[name][0]) if self.kept else value)

    def forward(self, n: int) -> Tensor:
        """The rows of what was taken."""
        return torch.cat(self.parts(n), dim=2).flatten(1)


class SketchedRows(GraphRows):
    """Sums of signed gradients in buckets, [n, D], the same as those of `sketch.CountSketch`.

    A bucket's entries stand in a column of a table, filled up with the place of a zero: a gather and a sum.
    """

    def __init__(self, tangents: SketchMap) -> None:
        super().__init__(tangents)
        tables, places = tangents.tables, []
        self.signs: dict[str, tuple[Tensor, Tensor]] = {}  # along the first dimension [K, o], all others [i]
        for name in self.shapes:
            left, right = tables.left[name], tables.right[name]
            place = (left.place + tables.mixed.place[:, None])[:, :, None] + right.place  # [K, o, i]
            places.append((place % tables.dim).flatten())
            self.signs[name] = (left.sign * tables.mixed.sign[:, None], right.sign)
        self.table = _columns(torch.cat(places), tables.dim).to(torch.int32)  # [L, D]

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Signs on the factors: there are fewer of them than products."""
        lines, columns = self.signs[name]
        super().outer(name, left * lines.unflatten(1, (left.shape[2], 1, -1)), right * columns)

    def plain(self, name: str, value: Tensor) -> None:
        """With its signs."""
        lines, columns = self.signs[name]
        self.add(name, value.reshape(*value.shape[:2], -1) * (lines[:, :, None] * columns).flatten(1))

    def forward(self, n: int) -> Tensor:
        """The sketches of what was taken."""
        parts = [part.flatten(1) for part in self.parts(n)]
        flat = torch.cat([*parts, self.parameters_like.new_zeros(n, 1)], dim=1)
        return flat.index_select(1, self.table.flatten()).unflatten(1, self.table.shape).sum(dim=1)


def _columns(places: Tensor, dim: int) -> Tensor:
    """The entries of each bucket, one below the other, [L, D]; places left over name the one after."""
    buckets = places.argsort(stable=True).split(torch.bincount(places, minlength=dim).tolist())
    return pad_sequence(list(buckets), padding_value=len(places))
