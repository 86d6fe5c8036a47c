"""Fused operations taken apart, where they cannot be differentiated row by row, forward, or seen into."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .recurrent import gru_step, lstm_step, plain_step, single, unrolled


class Unfused(TorchFunctionMode):
    """Within this block, in this thread, the listed operations run as compositions of simple ones.

    The values are the same to rounding. torch's recurrent kernels have no rule for vmap, its attention none
    for forward mode, and its PReLU a wrong one for vmap (torch 2.13).

    Args:
        table: What replaces which operation, by the operation's name. A replacement that gives None does not
            know the case: the operation itself is called.
    """

    def __init__(self, table: Mapping[str, Callable]) -> None:
        super().__init__()
        self._table = table

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        instead = self._table.get(getattr(func, "__name__", ""))
        if instead is not None:
            with self:  # what stands inside it may be listed, too
                found = instead(*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)


def prelu(inputs: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else w x, with w along the channels, dimension 1."""
    if weight.numel() > 1 and inputs.ndim > 2:
        weight = weight.reshape(-1, *[1] * (inputs.ndim - 2))
    return torch.where(inputs > 0, inputs, weight * inputs)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    r"""softmax(q k^T / sqrt(d) + mask) v."""
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
    """g v / |v|, the norm over all dimensions but one; over all where that is -1."""
    others = [d for d in range(value.ndim) if d != dim]
    return value * (gain / value.square().sum(dim=others, keepdim=True).sqrt())


def _opened(function: Callable) -> Callable:
    """The same Python code, which then hands the operations inside it to the modes that are active."""
    inside = {**function.__globals__, "has_torch_function": lambda _: False}
    again = types.FunctionType(function.__code__, inside, function.__name__, function.__defaults__)
    again.__kwdefaults__ = function.__kwdefaults__
    return again


SEEN: Mapping[str, Callable] = {  # so that the layers inside can be seen
    "lstm": unrolled(lstm_step),
    "gru": unrolled(gru_step),
    "rnn_tanh": unrolled(plain_step(torch.tanh)),
    "rnn_relu": unrolled(plain_step(torch.relu)),
    "lstm_cell": single(lstm_step),
    "gru_cell": single(gru_step),
    "rnn_tanh_cell": single(plain_step(torch.tanh)),
    "rnn_relu_cell": single(plain_step(torch.relu)),
    "multi_head_attention_forward": _opened(F.multi_head_attention_forward),
}
PLAIN: Mapping[str, Callable] = {  # so that vmap and forward mode can go through
    **SEEN,
    "prelu": prelu,
    "_weight_norm": weight_norm,
    "scaled_dot_product_attention": attention,
}
