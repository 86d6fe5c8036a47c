"""Three exact ways to the gradients of each row: tapped layers, torch.func, and a loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import vjp, vmap

from ..data import Inputs, copied, count, map_tensors, take
from .base import at_once
from .layers import GRADIENTS, Collector, Layout, LayoutError, Signals, gather
from .network import TangentNetwork, as_matrix, call, call_with, gradients_of
from .recorder import Recorder
from .unfused import PLAIN, SEEN, Unfused

MIXED = 16  # mixed outputs whose signals stand side by side
WORKSPACE = 64 * 2**20  # bytes for the windows, products or spectra of some rows of one layer


@dataclass(frozen=True)
class Ways:
    """How each parameter's gradient is made.

    Args:
        layouts: Of the layers whose gradient follows from what goes in and what comes back.
        tapped: Their parameters.
        mapped: Parameters that torch.func differentiates row by row.
        looped: The others: one ordinary backward pass for each row.
        row_bytes: What a row takes while this is done.
        reason: Why there are looped ones.
    """

    layouts: dict[tuple, Layout | None]
    tapped: frozenset[str]
    mapped: tuple[str, ...] = ()
    looped: tuple[str, ...] = ()
    row_bytes: int = 1
    reason: str = ""


def record(network: TangentNetwork, inputs: Inputs, rowless: Sequence[tuple] = ()) -> tuple[Tensor, Recorder]:
    """One forward pass with a probe at every chosen layer: the outputs [n, C], and what was noted."""
    recorder = Recorder(network, count(inputs), rowless)
    with recorder, Unfused(SEEN):
        outputs = as_matrix(call(network.twin, copied(network.ready(inputs))))
    return outputs, recorder


def tapped(network: TangentNetwork, ways: Ways, mix: Tensor, inputs: Inputs, into: Collector) -> Tensor:
    """One forward pass for all rows, and one backward pass for each mixed output; returns the outputs [n, C].

    Raises:
        LayoutError: Before anything is handed on, when the network treats these rows in another way than
            those it was probed with.
    """
    n, rowless = count(inputs), [key for key, layout in ways.layouts.items() if layout is None]
    try:
        with torch.enable_grad():
            outputs, recorder = record(network, inputs, rowless)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise LayoutError("what all rows share cannot be repeated here") from error
    lots = _sorted(recorder, ways, n)
    chosen = [place for lot in lots for place in lot]
    if not outputs.requires_grad or not chosen:
        return outputs.detach()  # nothing depends on these parameters
    calls, last = recorder.calls, len(mix) - 1
    soon = [lot for lot in lots if calls[lot[0]].reduces]
    late = [lot for lot in lots if not calls[lot[0]].reduces]

    def hand_on(some: list[list[int]], signals: dict[int, Tensor], group: slice) -> None:
        for lot in some:
            layout = ways.layouts[calls[lot[0]].key] or Layout()
            found = gather([calls[p] for p in lot], [signals.pop(p) for p in lot], layout, n)
            _hand_on(found, ways.tapped, into, group)

    for start in range(0, len(mix), MIXED):
        width, held = min(MIXED, len(mix) - start), {}
        for k in range(start, start + width):
            backs = _signals(outputs, [calls[p].probe for p in chosen], mix[k], keep=k < last)
            backs = dict(zip(chosen, backs, strict=True))
            hand_on(soon, backs, slice(k, k + 1))
            _hold(held, backs, k - start, width)
        hand_on(late, held, slice(start, start + width))
    return outputs.detach()


def _sorted(recorder: Recorder, ways: Ways, n: int) -> list[list[int]]:
    """The places of the calls that count, those of one layer and shape together."""
    lots: dict[tuple, list[int]] = defaultdict(list)
    if not ways.tapped.isdisjoint(recorder.strays):
        raise LayoutError("a parameter is used outside its layer")
    for place, one in enumerate(recorder.calls):
        if ways.tapped.isdisjoint((one.weight_name, one.bias_name)):
            continue
        if one.key not in ways.layouts:
            raise LayoutError(f"layer '{one.layer}' is called in another way")
        axis = (ways.layouts[one.key] or Layout()).axis
        if any(x.ndim <= axis or x.shape[axis] % n for x in (one.input, one.probe)):
            raise LayoutError(f"layer '{one.layer}' is called with other rows")
        lots[(one.key, one.input.shape, one.probe.shape)].append(place)
    return list(lots.values())


def _signals(outputs: Tensor, probes: list[Tensor], weights: Tensor, *, keep: bool) -> list[Tensor]:
    """What comes back to the probes from one mixed output of all rows, [1, *output] each."""
    found = torch.autograd.grad(
        outputs,
        probes,
        weights.to(outputs).expand_as(outputs),
        retain_graph=keep,
        allow_unused=True,
        materialize_grads=True,
    )
    return [signal[None] for signal in found]


def _hold(held: dict[int, Tensor], backs: dict[int, Tensor], k: int, width: int) -> None:
    """Put the signals of one mixed output beside those of the others, [width, *output]."""
    if width == 1:
        held.update(backs)
        return
    for place, back in backs.items():
        held.setdefault(place, back.new_empty(width, *back.shape[1:]))[k] = back[0]


def _hand_on(found: Signals, names: frozenset[str], into: Collector, group: slice) -> None:
    """One layer's gradients, in blocks of rows that fit the workspace."""
    kept = [name if name in names else None for name in (found.call.weight_name, found.call.bias_name)]
    found = replace(found, call=replace(found.call, weight_name=kept[0], bias_name=kept[1]))
    size = 0 if kept[0] is None else found.call.given["weight"].numel() * found.back.shape[1]
    room = (found.room() + into.room(size)) * found.back.element_size()
    space = at_once(WORKSPACE, found.back.device)
    rows, step = len(found.inputs), max(1, space // max(1, room))
    for start in range(0, rows, step):
        block = slice(start, start + step)
        GRADIENTS[found.call.kind](found.block(block), into.part(block, group))


def mixed_at_once(network: TangentNetwork, names: Sequence[str]) -> int:
    """How many mixed outputs' gradients of these parameters may stand side by side, for each row."""
    chosen = [value for name, value in network.parameters.items() if name in set(names)]
    size = sum(value.numel() * value.element_size() for value in chosen)
    return max(1, min(MIXED, WORKSPACE // max(1, size)))


def mapped(
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
            gradients = gradients_of(outputs[0] @ weights.to(outputs), parameters)
            part = into.part(slice(row, row + 1), slice(k, k + 1))
            for name, gradient in zip([n for n in network.names if n in set(names)], gradients, strict=True):
                part.plain(name, gradient.detach()[None, None])
