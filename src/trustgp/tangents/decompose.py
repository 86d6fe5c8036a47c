"""Fused operations as compositions of simple ones, for vmap, forward mode, and recording of inner layers."""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

State = tuple[Tensor, ...]  # h, or h and c: each [n, hidden]; the first is the output
Weights = Sequence[Any]  # tensors, or None for those that a layer lacks
Step = Callable[[Tensor, State, Weights], State]


class Unfused(TorchFunctionMode):
    """Within this block, in this thread, the listed operations run as compositions of simple ones.

    The values are the same to rounding. torch's recurrent kernels have no rule for vmap, its attention none
    for forward mode, and its PReLU a wrong one for vmap (torch 2.13). The table maps operation names to
    replacements; where a replacement returns None, the operation itself is called.
    """

    def __init__(self, table: Mapping[str, Callable]) -> None:
        super().__init__()
        self._table = table

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if (replacement := self._table.get(getattr(func, "__name__", ""))) is not None:
            with self:  # operations inside it may be listed, too
                result = replacement(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)


def prelu(inputs: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else w x, with w along the channels, dimension 1."""
    if weight.numel() > 1 and inputs.ndim > 2:
        weight = weight.reshape(-1, *[1] * (inputs.ndim - 2))
    return torch.where(inputs > 0, inputs, weight * inputs)


def attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
) -> Tensor | None:
    """F.scaled_dot_product_attention: softmax(q k^T / sqrt(d) + mask) v."""
    if dropout_p:
        return None
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~ones.tril(), -torch.inf)
    if attn_mask is not None:
        barred = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if barred else scores + attn_mask
    return torch.softmax(scores, dim=-1) @ value


def weight_norm(value: Tensor, gain: Tensor, dim: int = 0) -> Tensor:
    """Weight g v / |v|, with the norm over all dimensions but `dim`, or over all if `dim` is -1."""
    others = [d for d in range(value.ndim) if d != dim]
    return value * (gain / value.square().sum(dim=others, keepdim=True).sqrt())


def packed_projection(q: Tensor, k: Tensor, v: Tensor, w: Tensor, b: Tensor | None = None) -> list[Tensor]:
    """Queries, keys and values from the whole weight, split afterwards: the layer has to use it whole."""
    whole = {id(x): F.linear(x, w, b) for x in (q, k, v)}
    return [whole[id(x)].chunk(3, dim=-1)[place].contiguous() for place, x in enumerate((q, k, v))]


def _opened(function: Callable, projection: Callable) -> Callable:
    """Copy of a Python function with another `_in_projection_packed`; active modes intercept its calls."""
    instead = {"has_torch_function": lambda _: False, "_in_projection_packed": projection}
    globals_ = {**function.__globals__, **instead}
    again = types.FunctionType(function.__code__, globals_, function.__name__, function.__defaults__)
    again.__kwdefaults__ = function.__kwdefaults__
    return again


def lstm_step(inward: Tensor, state: State, weights: Weights) -> State:
    """One step of an LSTM from W_ih x + b_ih [n, 4 h]; `weights` are W_hh, b_hh and, if projected, W_hr."""
    (hidden, cell), (recurrent, bias, projection) = state, weights
    enter, forget, content, leave = (inward + F.linear(hidden, recurrent, bias)).chunk(4, dim=-1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(content)
    hidden = torch.sigmoid(leave) * torch.tanh(cell)
    return hidden if projection is None else F.linear(hidden, projection), cell


def gru_step(inward: Tensor, state: State, weights: Weights) -> State:
    """One step of a GRU from W_ih x + b_ih [n, 3 h]."""
    (hidden,), (recurrent, bias, _) = state, weights
    reset, update, content = F.linear(hidden, recurrent, bias).chunk(3, dim=-1)
    reset_x, update_x, content_x = inward.chunk(3, dim=-1)
    new = torch.tanh(content_x + torch.sigmoid(reset_x + reset) * content)
    return (new + torch.sigmoid(update_x + update) * (hidden - new),)


def plain_step(activation: Callable, inward: Tensor, state: State, weights: Weights) -> State:
    """One step of an Elman network from W_ih x + b_ih [n, h]."""
    recurrent, bias, _ = weights
    return (activation(inward + F.linear(state[0], recurrent, bias)),)


def unrolled(step: Step, *args: Any) -> tuple[Tensor, ...] | None:
    """torch.lstm, torch.gru, ... as a loop over time; None for packed sequences and active dropout."""
    if len(args) != 9 or not isinstance(args[3], bool) or args[0].ndim != 3 or (args[5] and args[6]):
        return None
    inputs, start, parameters, has_bias, layers, _, _, both_ways, batch_first = args
    states, ways = list(start) if isinstance(start, (tuple, list)) else [start], 2 if both_ways else 1
    each = len(parameters) // (layers * ways)
    rows = inputs if batch_first else inputs.transpose(0, 1)  # [n, t, d]
    ends: list[State] = []
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            place = layer * ways + way
            # W_ih, W_hh, b_ih and b_hh, and W_hr; the last three may be missing
            inner, recurrent, *others = parameters[place * each : (place + 1) * each]
            biases = (others.pop(0), others.pop(0)) if has_bias else (None, None)
            weights = recurrent, biases[1], others[0] if others else None
            state, moments = tuple(state[place] for state in states), []
            for inward in F.linear(rows.flip(1) if way else rows, inner, biases[0]).unbind(dim=1):
                state = step(inward, state, weights)
                moments.append(state[0])
            output = torch.stack(moments, dim=1)  # [n, t, h]
            outputs.append(output.flip(1) if way else output)
            ends.append(state)
        rows = torch.cat(outputs, dim=2) if both_ways else outputs[0]
    last = tuple(torch.stack(lot) for lot in zip(*ends, strict=True))
    return (rows if batch_first else rows.transpose(0, 1), *last)


def single(step: Step, inputs, start, inner, recurrent, bias=None, recurrent_bias=None):
    """torch.lstm_cell, torch.gru_cell, ...: one step."""
    states = tuple(start) if isinstance(start, (tuple, list)) else (start,)
    state = step(F.linear(inputs, inner, bias), states, (recurrent, recurrent_bias, None))
    return state[0] if len(state) == 1 else state


_elman = {f"rnn_{by.__name__}": partial(plain_step, by) for by in (torch.tanh, torch.relu)}
STEPS: Mapping[str, Step] = {"lstm": lstm_step, "gru": gru_step, **_elman}
RECORDABLE: Mapping[str, Callable] = {  # so that the layers inside can be recorded
    **{name: partial(unrolled, step) for name, step in STEPS.items()},
    **{f"{name}_cell": partial(single, step) for name, step in STEPS.items()},
    "multi_head_attention_forward": _opened(F.multi_head_attention_forward, packed_projection),
}
PLAIN: Mapping[str, Callable] = {  # which vmap and forward mode support
    **RECORDABLE,
    "prelu": prelu,
    "_weight_norm": weight_norm,
    "scaled_dot_product_attention": attention,
}
