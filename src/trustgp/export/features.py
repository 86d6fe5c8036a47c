"""Tangent features of a batch in one go, made by the model's own code, in a form that can be traced."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import vmap

from ..data import Inputs, count
from ..tangents.base import TangentMap
from ..tangents.factors import FactorFeatures, FactorMap
from ..tangents.layers import GRADIENTS, Layout, gather
from ..tangents.network import TangentNetwork
from ..tangents.passes import Ways, _sorted, record
from ..tangents.rows import RowMap
from ..tangents.sketch import SketchMap
from .collecting import SketchedRows, WrittenRows
from .refusing import refuse_parameters


def feature_maker(tangents: TangentMap, example: Inputs) -> nn.Module:
    """The module that makes the features of a mixture; `example` is looked at once."""
    if isinstance(tangents, FactorMap):
        return FactorMaker(tangents)
    assert isinstance(tangents, (RowMap, SketchMap))
    ways = tangents.gradients.ways(example)
    refuse_parameters(tangents.network, (*ways.mapped, *ways.looped), ways.reason)
    return RowMaker(tangents, ways)


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

    def __init__(self, tangents: RowMap | SketchMap, ways: Ways) -> None:
        super().__init__()
        self.network, self.mix, self.ways = tangents.network, tangents.mix, ways
        self.rows = SketchedRows(tangents) if isinstance(tangents, SketchMap) else WrittenRows(tangents)

    def forward(self, inputs: Inputs) -> Tensor:
        """Of the rows."""
        collector = self.rows.collector()
        collect(self.network, self.ways, self.mix, inputs, collector)
        return self.rows(collector, count(inputs))


@torch.inference_mode(False)
def collect(network: TangentNetwork, ways: Ways, mix: Tensor, inputs: Inputs, into) -> None:
    """As `passes.tapped`, all rows and all mixed outputs at once."""
    n, rowless = count(inputs), [key for key, layout in ways.layouts.items() if layout is None]
    with torch.enable_grad():
        outputs, recorder = record(network, inputs, rowless)
    lots = _sorted(recorder, ways, n)
    chosen, calls = [place for lot in lots for place in lot], recorder.calls
    if not outputs.requires_grad or not chosen:
        return
    signals = together(outputs, [calls[place].probe for place in chosen], mix.to(outputs))
    backs = dict(zip(chosen, signals, strict=True))
    for lot in lots:
        layout = ways.layouts[calls[lot[0]].key] or Layout()
        found = gather([calls[place] for place in lot], [backs[place] for place in lot], layout, n)
        names = (found.call.weight_name, found.call.bias_name)
        weight, bias = (name if name in ways.tapped else None for name in names)
        call = replace(found.call, weight_name=weight, bias_name=bias)
        GRADIENTS[call.kind](replace(found, call=call), into)


def together(outputs: Tensor, probes: list[Tensor], mix: Tensor) -> list[Tensor]:
    """What comes back to the probes from all mixed outputs at once, [K, *output] each."""

    def back(weights: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            outputs,
            probes,
            weights.expand_as(outputs),
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )

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
