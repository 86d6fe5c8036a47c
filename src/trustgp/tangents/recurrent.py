"""Recurrent layers step by step: what torch's fused kernels compute, in operations that anything can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

State = tuple[Tensor, ...]  # h, or h and c: each [n, hidden]; the first is the output
Step = Callable[[Tensor, State, Sequence[Tensor | None]], State]


def lstm_step(inward: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    """One step of an LSTM from W_ih x + b_ih [n, 4 h]; `weights` are W_hh, b_hh and, if projected, W_hr."""
    hidden, cell = state
    recurrent, bias, projection = weights
    assert recurrent is not None
    enter, forget, content, leave = (inward + F.linear(hidden, recurrent, bias)).chunk(4, dim=-1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(content)
    hidden = torch.sigmoid(leave) * torch.tanh(cell)
    return hidden if projection is None else F.linear(hidden, projection), cell


def gru_step(inward: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    """One step of a GRU from W_ih x + b_ih [n, 3 h]."""
    (hidden,) = state
    recurrent, bias, _ = weights
    assert recurrent is not None
    reset, update, content = F.linear(hidden, recurrent, bias).chunk(3, dim=-1)
    reset_x, update_x, content_x = inward.chunk(3, dim=-1)
    new = torch.tanh(content_x + torch.sigmoid(reset_x + reset) * content)
    return (new + torch.sigmoid(update_x + update) * (hidden - new),)


def plain_step(activation: Callable[[Tensor], Tensor]) -> Step:
    """One step of an Elman network from W_ih x + b_ih [n, h]."""

    def step(inward: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
        recurrent, bias, _ = weights
        assert recurrent is not None
        return (activation(inward + F.linear(state[0], recurrent, bias)),)

    return step


def unrolled(step: Step) -> Callable:
    """torch.lstm, torch.gru, ... as a loop over time; None where this case is not known here.

    A padded sequence [n, t, d] or [t, n, d] is; a packed one is not, nor is dropout while training.
    """

    def run(*args) -> tuple[Tensor, ...] | None:
        if len(args) != 9 or not isinstance(args[3], bool) or args[0].ndim != 3 or (args[5] and args[6]):
            return None
        inputs, start, parameters, has_bias, layers, _, _, both_ways, batch_first = args
        states = list(start) if isinstance(start, (tuple, list)) else [start]
        ways = 2 if both_ways else 1
        each = len(parameters) // (layers * ways)
        rows = inputs if batch_first else inputs.transpose(0, 1)  # [n, t, d]
        ends: list[State] = []
        for layer in range(layers):
            outputs = []
            for way in range(ways):
                place = layer * ways + way
                weights = _named(parameters[place * each : (place + 1) * each], has_bias)
                begin = tuple(state[place] for state in states)
                found, end = _through_time(step, rows.flip(1) if way else rows, begin, weights)
                outputs.append(found.flip(1) if way else found)
                ends.append(end)
            rows = torch.cat(outputs, dim=2) if both_ways else outputs[0]
        last = tuple(torch.stack(lot) for lot in zip(*ends, strict=True))
        return (rows if batch_first else rows.transpose(0, 1), *last)

    return run


def single(step: Step) -> Callable:
    """torch.lstm_cell, torch.gru_cell, ...: one step."""

    def run(inputs, start, inner, recurrent, bias=None, recurrent_bias=None):
        states = tuple(start) if isinstance(start, (tuple, list)) else (start,)
        found = step(F.linear(inputs, inner, bias), states, (recurrent, recurrent_bias, None))
        return found[0] if len(found) == 1 else found

    return run


def _named(weights: Sequence[Tensor], has_bias: bool) -> tuple[Tensor | None, ...]:
    """W_ih, b_ih, W_hh, b_hh, W_hr of one layer and direction; None for what it has not."""
    inner, recurrent, *rest = weights
    biases = (rest.pop(0), rest.pop(0)) if has_bias else (None, None)
    return inner, biases[0], recurrent, biases[1], rest[0] if rest else None


def _through_time(
    step: Step, rows: Tensor, state: State, weights: Sequence[Tensor | None]
) -> tuple[Tensor, State]:
    """One layer in one direction over [n, t, d]: its outputs [n, t, h] and its last state."""
    inner, bias, *others = weights
    assert inner is not None
    inward = F.linear(rows, inner, bias)
    outputs = []
    for moment in inward.unbind(dim=1):
        state = step(moment, state, others)
        outputs.append(state[0])
    return torch.stack(outputs, dim=1), state
