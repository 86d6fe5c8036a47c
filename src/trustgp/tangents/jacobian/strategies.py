"""Three exact ways to the gradients of each row: layer by layer, by torch.func, and by a loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import vjp, vmap

from ...data.chunking import at_once
from ...data.trees import Inputs, copied, count, map_tensors, take
from ..decompose import PLAIN, Unfused
from ..network import TangentNetwork, as_matrix, call_with, gradients_of
from .accumulators import Collector
from .layer_gradients import LayerCall, Layout, LayoutError, Signals
from .layer_io import LayerIORecorder, record

MIXED = 16  # mixed outputs whose signals stand side by side
WORKSPACE = 64 * 2**20  # bytes for the windows, products or spectra of some rows of one layer


@dataclass(frozen=True)
class GradientPlan:
    """How each parameter's gradient is made."""

    layouts: dict[tuple, Layout | None]  # of layers whose gradient follows from what goes in and comes back
    layerwise: frozenset[str]  # their parameters
    vmapped: tuple[str, ...] = ()  # parameters that torch.func differentiates row by row
    looped: tuple[str, ...] = ()  # the others: one ordinary backward pass for each row
    row_bytes: int = 1  # what a row takes while this is done
    reason: str = ""  # why there are looped ones

    @property
    def rowless(self) -> list[tuple]:
        """The layers whose output has no rows."""
        return [key for key, layout in self.layouts.items() if layout is None]

    def signals(self, calls: Sequence[LayerCall], backs: dict[LayerCall, Tensor], n: int) -> Signals:
        """What went into the calls of one layer and what came back, without parameters of other ways."""
        layout = self.layouts[calls[0].key] or Layout()
        found = Signals.gather(calls, [backs.pop(call) for call in calls], layout, n)
        names = (found.call.weight_name, found.call.bias_name)
        weight, bias = (name if name in self.layerwise else None for name in names)
        return replace(found, call=replace(found.call, weight_name=weight, bias_name=bias))


def layerwise(
    network: TangentNetwork, plan: GradientPlan, mix: Tensor, inputs: Inputs, into: Collector
) -> Tensor:
    """One forward pass for all rows, and one backward pass for each mixed output; returns the outputs [n, C].

    A `LayoutError` comes before anything is handed on, when the network treats these rows in another way than
    those it was probed with.
    """
    n = count(inputs)
    try:
        with torch.enable_grad():
            outputs, recorder = record(network, inputs, plan.rowless)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise LayoutError("what all rows share cannot be repeated here") from error
    layers = calls_by_layer(recorder, plan, n)
    chosen = [call for calls in layers for call in calls]
    if not outputs.requires_grad or not chosen:
        return outputs.detach()  # nothing depends on these parameters
    probes = [call.probe for call in chosen]

    def hand_on(backs: dict[LayerCall, Tensor], group: slice, *, reduces: bool) -> None:
        for calls in layers:
            if calls[0].reduces == reduces:
                _hand_on(plan.signals(calls, backs, n), into, group)

    for start in range(0, len(mix), MIXED):
        width, held = min(MIXED, len(mix) - start), {}  # signals beside each other, [width, *output]
        for k in range(start, start + width):
            weights = mix[k].to(outputs).expand_as(outputs)
            found = gradients_of(outputs, probes, weights, keep=k < len(mix) - 1)
            backs = {call: back[None] for call, back in zip(chosen, found, strict=True)}
            hand_on(backs, slice(k, k + 1), reduces=True)
            for call, back in backs.items():
                if width == 1:
                    held[call] = back
                else:
                    held.setdefault(call, back.new_empty(width, *back.shape[1:]))[k - start] = back[0]
        hand_on(held, slice(start, start + width), reduces=False)
    return outputs.detach()


def calls_by_layer(recorder: LayerIORecorder, plan: GradientPlan, n: int) -> list[list[LayerCall]]:
    """The calls that count, those of one layer and shape together."""
    layers: dict[tuple, list[LayerCall]] = defaultdict(list)
    if not plan.layerwise.isdisjoint(recorder.unhandled):
        raise LayoutError("a parameter is used outside its layer")
    for one in recorder.calls:
        if plan.layerwise.isdisjoint((one.weight_name, one.bias_name)):
            continue
        if one.key not in plan.layouts:
            raise LayoutError(f"layer '{one.layer}' is called in another way")
        axis = (plan.layouts[one.key] or Layout()).axis
        if any(x.ndim <= axis or x.shape[axis] % n for x in (one.input, one.probe)):
            raise LayoutError(f"layer '{one.layer}' is called with other rows")
        layers[(one.key, one.input.shape, one.probe.shape)].append(one)
    return list(layers.values())


def _hand_on(found: Signals, into: Collector, group: slice) -> None:
    """One layer's gradients, in blocks of rows that fit the workspace."""
    size = found.call.given["weight"].numel() * found.back.shape[1] if found.call.weight_name else 0
    room = (found.room() + into.room(size)) * found.back.element_size()
    step = max(1, at_once(WORKSPACE, found.back.device) // max(1, room))
    for start in range(0, len(found.inputs), step):
        block = slice(start, start + step)
        some = replace(found, inputs=found.inputs[block], back=found.back[block])
        some.hand_on(into.part(block, group))


def mixed_at_once(network: TangentNetwork, names: Sequence[str]) -> int:
    """How many mixed outputs' gradients of these parameters may stand side by side, for each row."""
    chosen = [value for name, value in network.parameters.items() if name in set(names)]
    size = sum(value.numel() * value.element_size() for value in chosen)
    return max(1, min(MIXED, WORKSPACE // max(1, size)))


def vmapped(
    network: TangentNetwork, names: Sequence[str], mix: Tensor, inputs: Inputs, into: Collector
) -> None:
    """The named parameters' gradients by torch.func, all rows at once, a few mixed outputs at a time."""
    module = network.clone()
    chosen = {name: value for name, value in network.parameters.items() if name in set(names)}
    inputs = copied(network.ready(inputs))

    def one_row(parameters: dict[str, Tensor], row: Inputs, weights: Tensor) -> list[dict[str, Tensor]]:
        single = map_tensors(lambda leaf: leaf[None].clone(), row)
        pull = vjp(lambda p: as_matrix(call_with(module, p, single))[0], parameters)[1]
        # a loop, not a second vmap: rules that mix up two batch dimensions cannot do harm
        return [pull(one)[0] for one in weights]

    step = mixed_at_once(network, names)
    for start in range(0, len(mix), step):
        group = slice(start, start + step)
        with Unfused(PLAIN):
            lots = vmap(one_row, in_dims=(None, 0, None))(chosen, inputs, mix[group])
        for name in chosen:
            into.part(slice(None), group).plain(name, torch.stack([lot[name] for lot in lots], dim=1))


@torch.enable_grad()
def looped(
    network: TangentNetwork, names: Sequence[str], mix: Tensor, inputs: Inputs, into: Collector
) -> None:
    """The named parameters' gradients by ordinary backward passes, for one row after another."""
    for row in range(count(inputs)):
        outputs, parameters = network.traced(take(inputs, torch.tensor([row])), names)
        for k, weights in enumerate(mix):
            gradients = gradients_of(outputs[0] @ weights.to(outputs), list(parameters.values()))
            part = into.part(slice(row, row + 1), slice(k, k + 1))
            for name, gradient in zip(parameters, gradients, strict=True):
                part.plain(name, gradient.detach()[None, None])
