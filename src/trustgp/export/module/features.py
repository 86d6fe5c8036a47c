"""Tangent features of a batch in one go, made by the model's own code, in a form that can be traced."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...data.trees import Inputs, count
from ...tangents.base import TangentMap
from ...tangents.factors import FactorMap
from ...tangents.jacobian.accumulators import Collector, DenseAccumulator
from ...tangents.jacobian.layer_gradients import LayerCall, Signals
from ...tangents.jacobian.layer_io import record
from ...tangents.jacobian.strategies import GradientPlan
from ...tangents.rows import RowFeatures, RowMap
from ...tangents.sketch import Projecting, SketchMap
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
        into, n = copy.copy(self.rows), count(inputs)
        into.found = {}
        with torch.enable_grad():
            outputs, recorder = record(self.network, inputs, self.plan.rowless)
        self.plan.check(recorder.unhandled)
        layers: dict[tuple, list[tuple[LayerCall, Tensor]]] = {}
        for call, probe in zip(recorder.calls, recorder.probes, strict=True):
            if not self.plan.layerwise.isdisjoint((call.weight_name, call.bias_name)):
                key = (call.key, call.input.shape, probe.shape, self.plan.layout(call, probe, n))
                layers.setdefault(key, []).append((call.among(self.plan.layerwise), probe))
        if outputs.requires_grad and layers:
            probes = [probe for pairs in layers.values() for _, probe in pairs]
            mix = self.mix.to(outputs)
            signals = iter(self.network.mixed_gradients(outputs, probes, mix, at_once=True))
            for (*_, layout), pairs in layers.items():
                calls = [call for call, _ in pairs]
                whole = Signals.gather(calls, [next(signals) for _ in pairs], layout, n)
                whole.reduced(into)
                whole.thinned(into).hand_on(into)
        return RowFeatures(into(n))


class GraphRows(nn.Module, Collector):
    """A `Collector` that does not write into place; what comes twice is added."""

    def __init__(self, tangents: TangentMap) -> None:
        super().__init__()
        self.parameters_like = next(iter(tangents.network.parameters.values()))
        self.shapes = {name: value.shape for name, value in tangents.network.parameters.items()}
        self.sizes = {name: shape.numel() for name, shape in self.shapes.items()}  # of what is kept
        self.mixed = len(tangents.mix)
        self.found: dict[str, Tensor] = {}

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        table = value.new_zeros(*value.shape[:2], *self.shapes[name])
        self.add(name, table.scatter_add(2, index[:, None, :, None].expand_as(value), value))

    def add(self, name: str, value: Tensor) -> None:
        """Numbers [n, K, ...] of one parameter."""
        value = value.reshape(*value.shape[:2], -1)
        self.found[name] = self.found[name] + value if name in self.found else value

    def parts(self, n: int) -> list[Tensor]:
        """What was taken, [n, K, d] for each parameter of which something is kept."""
        zeros, mixed = self.parameters_like.new_zeros, self.mixed
        kept = [(name, size) for name, size in self.sizes.items() if size]
        return [self.found[name] if name in self.found else zeros(n, mixed, size) for name, size in kept]


class WrittenRows(GraphRows):
    """Gradient rows of the kept columns, [n, K * d]; see `accumulators.DenseAccumulator`."""

    def __init__(self, tangents: RowMap) -> None:
        super().__init__(tangents)
        self.kept: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # places, their lines and columns in [o, i]
        if len(tangents.kept) == tangents.network.num_parameters:
            return
        for name, place in DenseAccumulator(tangents.network, 0, 1, tangents.kept).places.items():
            assert place.inside is not None
            long = self.shapes[name][1:].numel()
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
        value = value.reshape(*value.shape[:2], -1)
        super().add(name, value.index_select(2, self.kept[name][0]) if self.kept else value)

    def forward(self, n: int) -> Tensor:
        """The rows of what was taken."""
        return torch.cat(self.parts(n), dim=2).flatten(1)


class SketchedRows(Projecting, GraphRows):
    """Sketches [n, D], the same as those of `sketch.SketchCollector`."""

    def __init__(self, tangents: SketchMap) -> None:
        super().__init__(tangents)
        self.tables, self.shapes = tangents.tables, dict(tangents.tables.cores)
        self.sizes = {name: shape.numel() for name, shape in self.shapes.items()}

    def forward(self, n: int) -> Tensor:
        """The sketches of what was taken."""
        flat = torch.cat([*self.parts(n), self.parameters_like.new_zeros(n, self.mixed, 1)], dim=2)
        return self.tables.rows(flat)
