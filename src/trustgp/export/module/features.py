"""Tangent features of a batch in one go, made by the model's own code, in a form that can be traced."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import vmap

from ...data.trees import Inputs, count
from ...tangents.base import TangentMap
from ...tangents.factors import FactorFeatures, FactorMap
from ...tangents.jacobian.layer_io import record
from ...tangents.jacobian.strategies import GradientPlan, calls_by_layer
from ...tangents.network import TangentNetwork, gradients_of
from ...tangents.rows import RowMap
from ...tangents.sketch import SketchMap
from ..errors import refuse_parameters
from .accumulators import SketchedRows, WrittenRows


def feature_maker(tangents: TangentMap, example: Inputs) -> nn.Module:
    """The module that makes the features of a mixture; `example` is looked at once."""
    if isinstance(tangents, FactorMap):
        return FactorMaker(tangents)
    assert isinstance(tangents, (RowMap, SketchMap))
    plan = tangents.gradients.plan(example)
    refuse_parameters(tangents.network, (*plan.vmapped, *plan.looped), plan.reason)
    return RowMaker(tangents, plan)


class FactorMaker(nn.Module):
    """Factors; see `tangents.factors`."""

    def __init__(self, tangents: FactorMap) -> None:
        super().__init__()
        self.tangents = _TogetherMap(tangents.network, tangents.mix, tangents.row_bytes())

    def forward(self, inputs: Inputs) -> FactorFeatures:
        """Of the rows."""
        return self.tangents(inputs)


class RowMaker(nn.Module):
    """Gradient rows, written out or sketched, [n, d]; see `tangents.rows` and `tangents.sketch`."""

    def __init__(self, tangents: RowMap | SketchMap, plan: GradientPlan) -> None:
        super().__init__()
        self.network, self.mix, self.plan = tangents.network, tangents.mix, plan
        self.rows = SketchedRows(tangents) if isinstance(tangents, SketchMap) else WrittenRows(tangents)

    def forward(self, inputs: Inputs) -> Tensor:
        """Of the rows."""
        collector = self.rows.collector()
        collect(self.network, self.plan, self.mix, inputs, collector)
        return self.rows(collector, count(inputs))


@torch.inference_mode(False)
def collect(network: TangentNetwork, plan: GradientPlan, mix: Tensor, inputs: Inputs, into) -> None:
    """As `strategies.layerwise`, all rows and all mixed outputs at once."""
    with torch.enable_grad():
        outputs, recorder = record(network, inputs, plan.rowless)
    layers = calls_by_layer(recorder, plan, count(inputs))
    chosen = [place for places in layers for place in places]
    if not outputs.requires_grad or not chosen:
        return
    signals = together(outputs, [recorder.calls[place].probe for place in chosen], mix.to(outputs))
    backs = dict(zip(chosen, signals, strict=True))
    for places in layers:
        plan.signals(recorder, places, backs, count(inputs)).hand_on(into)


def together(outputs: Tensor, probes: list[Tensor], mix: Tensor) -> list[Tensor]:
    """What comes back to the probes from all mixed outputs at once, [K, *output] each."""

    def back(weights: Tensor) -> tuple[Tensor, ...]:
        return gradients_of(outputs, probes, weights.expand_as(outputs))

    if len(mix) == 1:
        return [signal[None] for signal in back(mix[0])]
    try:
        return list(vmap(back)(mix))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # vmap does not know some operation of this network
        return [torch.stack(lot) for lot in zip(*(back(row) for row in mix), strict=True)]


class _TogetherMap(FactorMap):
    """Factors whose signals come back from all mixed outputs at once: fewer and larger operations."""

    def _signals(self, outputs: Tensor, probes: list[Tensor], mix: Tensor) -> list[Tensor]:
        return [signal.transpose(0, 1) for signal in together(outputs, probes, mix)]
