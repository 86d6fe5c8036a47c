"""The way back through a convolution as another convolution, with the kernel turned round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .layer_gradients import each_side, padding_of

_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)


class Turned(torch.autograd.Function):
    r"""A convolution of stride 1: the signal goes back through :math:`\sum_o g_o * \mathrm{flip}(W_o)`.

    Torch's own way back takes three to thirteen times as long as the convolution on CPUs that have no kernel
    for it; this takes as long. The weight gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, operation: Callable, given: Mapping[str, Any]) -> Tensor:
        ctx.operation, ctx.given = operation, given
        return operation(input=inputs, **given)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None, None]:
        (back,) = signals
        given, weight = ctx.given, ctx.given["weight"]
        dims, groups = weight.ndim - 2, given.get("groups", 1)
        dilation = each_side(given.get("dilation", 1), dims)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        before = padding_of(given.get("padding", 0), reach)  # the last dimension first
        sides = [r - b for r, b in zip([r for r in reversed(reach) for _ in range(2)], before, strict=True)]
        turned = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        turned = turned.flip(list(range(2, weight.ndim)))
        return ctx.operation(F.pad(back, sides), turned, dilation=dilation, groups=groups), None, None


def turns(operation: Callable, given: Mapping[str, Any]) -> bool:
    """Whether this is a call for it: on a CPU, with each place of the input seen in the same way."""
    if operation not in _CONVOLUTIONS or given["input"].device.type != "cpu":
        return False
    stride = given.get("stride", 1)
    return all(step == 1 for step in (stride if isinstance(stride, (tuple, list)) else [stride]))
