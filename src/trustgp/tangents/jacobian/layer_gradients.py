r"""The gradient of each kind of layer, row by row, from what went in and what comes back.

A gradient is handed on as it is cheapest to write down: as an outer product summed over positions,
:math:`\sum_t g_t a_t^\top`, as a lookup, or plainly. A new kind of layer is one function, and one line of
`LAYERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .accumulators import Collector
from .layer_calls import LayerKind, Signals


def linear(s: Signals, into: Collector) -> None:
    """x W^T + b."""
    a, g = s.inputs.flatten(1, -2), s.back.flatten(2, -2)  # [n, t, i], [n, K, t, o]
    if s.call.weight_name is not None:
        into.outer(s.call.weight_name, g[:, :, None], a[:, None, None])
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, g.sum(dim=2))


def matmul(s: Signals, into: Collector) -> None:
    """x W + b: as a Linear layer, its weight transposed."""
    a, g = s.inputs.flatten(1, -2), s.back.flatten(2, -2)
    if s.call.weight_name is not None:
        into.outer(s.call.weight_name, a[:, None, None], g[:, :, None])
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, g.sum(dim=2))


def lookup(s: Signals, into: Collector) -> None:
    """Lines of a table, by number."""
    index, g = s.inputs.flatten(1), s.back.flatten(2, -2)  # [n, t], [n, K, t, d]
    padding = s.call.given.get("padding_idx")
    if padding is not None:  # torch gives this line no gradient
        padding += len(s.call.given["weight"]) if padding < 0 else 0
        g = g * (index != padding)[:, None, :, None]
    if s.call.weight_name is not None:
        into.lookup(s.call.weight_name, index, g)


def product(s: Signals, into: Collector) -> None:
    """output = weight * x + bias, elementwise along the channels or the last dimensions."""
    shape, weight = s.call.given.get("normalized_shape"), s.call.given["weight"]
    names = {s.call.weight_name: s.back * s.inputs[:, None], s.call.bias_name: s.back}  # [n, K, q, c, ...]
    for name, value in names.items():
        if name is None:
            continue
        if shape is not None:
            value = value.flatten(2, -len(shape) - 1).sum(dim=2)
        else:
            value = value.flatten(4).sum(dim=4) if value.ndim > 4 else value
            value = value.sum(dim=2)
            if weight is not None and weight.numel() == 1:
                value = value.sum(dim=2, keepdim=True)
        into.plain(name, value)


def convolution(s: Signals, into: Collector) -> None:
    """Windows of the input times the kernel."""
    given, groups = s.call.given, s.call.given.get("groups", 1)
    g = s.back.flatten(4)  # [n, K, q, c', p]
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, g.sum(dim=(2, 4)))
    if s.call.weight_name is not None:
        a = windows(s.inputs.flatten(0, 1), given["weight"].shape[2:], given, groups)  # [n * q, g, p, i]
        a = a.unflatten(0, s.inputs.shape[:2]).transpose(1, 2).flatten(2, 3)  # [n, g, q * p, i]
        g = g.unflatten(3, (groups, -1)).permute(0, 1, 3, 2, 5, 4).flatten(3, 4)  # [n, K, g, q * p, o]
        into.outer(s.call.weight_name, g, a[:, None])


def transposed(s: Signals, into: Collector) -> None:
    """A transposed convolution is the convolution's adjoint: input and signal change places."""
    given, groups = s.call.given, s.call.given.get("groups", 1)
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, s.back.flatten(4).sum(dim=(2, 4)))
    if s.call.weight_name is not None:
        kernel, most = given["weight"].shape[2:], s.inputs.shape[3:]
        g = windows(s.back.flatten(0, 2), kernel, given, groups, most)  # [n * K * q, g, p, i]
        g = g.unflatten(0, s.back.shape[:3]).transpose(2, 3).flatten(3, 4)  # [n, K, g, q * p, i]
        a = s.inputs.flatten(3).unflatten(2, (groups, -1))  # [n, q, g, o, p]
        a = a.permute(0, 2, 1, 4, 3).flatten(2, 3)  # [n, g, q * p, o]
        into.outer(s.call.weight_name, a[:, None], g)


def windows(
    inputs: Tensor, kernel: Sequence[int], given: Mapping[str, Any], groups: int, most: Sequence[int] = ()
) -> Tensor:
    """What a convolution sees at each position, [n, groups, positions, channels / groups * kernel].

    Args:
        inputs: Shape [n, channels, ...].
        kernel: Its sizes.
        given: Holds stride, padding and dilation.
        groups: Of channels.
        most: At most so many positions along each dimension; empty: all.
    """
    dims = len(kernel)
    stride, dilation = (_each(given.get(name, 1), dims) for name in ("stride", "dilation"))
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    padded = F.pad(inputs, _padding(given.get("padding", 0), reach))
    for j in range(dims):
        padded = padded.unfold(2 + j, reach[j] + 1, stride[j])[..., :: dilation[j]]
    for j, size in enumerate(most):
        padded = padded.narrow(2 + j, 0, size)
    padded = padded.unflatten(1, (groups, -1))  # [n, g, c, *positions, *kernel]
    order = [0, 1, *range(3, 3 + dims), 2, *range(3 + dims, 3 + 2 * dims)]
    return padded.permute(order).flatten(2, 1 + dims).flatten(3)


def _each(value: Any, dims: int) -> list[int]:
    return list(value) * (dims // len(value)) if isinstance(value, (tuple, list)) else [value] * dims


def _padding(padding: Any, reach: Sequence[int]) -> list[int]:
    """Before and after, the last dimension first, as F.pad wants them."""
    if padding == "same":
        return [side for r in reversed(reach) for side in (r // 2, r - r // 2)]
    padding = 0 if padding == "valid" else padding
    return [side for p in reversed(_each(padding, len(reach))) for side in (p, p)]


def _plain_product(given: Mapping[str, Any]) -> bool:
    weight, scales = given["weight"], (given.get("beta", 1), given.get("alpha", 1))
    return isinstance(weight, Tensor) and weight.ndim == 2 and scales == (1, 1)


def _plain_lookup(given: Mapping[str, Any]) -> bool:
    return not any(given.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse"))


def _has_rows(given: Mapping[str, Any]) -> bool:
    return given["input"].ndim == given["weight"].ndim


def _normalised(operation: Callable, given: Mapping[str, Any]) -> Tensor:
    """x in output = weight * x + bias: the operation without its parameters."""
    return operation(**{name: value for name, value in given.items() if name not in ("weight", "bias")})


def _negative(operation: Callable, given: Mapping[str, Any]) -> Tensor:
    """x in output = weight * x + ..., of a PReLU."""
    return given["input"].clamp(max=0)


_AFFINE = ("input", "weight", "bias")
_STATISTICS = ("input", "running_mean", "running_var", "weight", "bias")
_TABLE = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_MATMUL = LayerKind(matmul, ("input", "weight"), _plain_product)
_CONVOLUTION = LayerKind(convolution, (*_AFFINE, "stride", "padding", "dilation", "groups"), _has_rows)
_TRANSPOSED = LayerKind(
    transposed,
    (*_AFFINE, "stride", "padding", "output_padding", "groups", "dilation"),
    _has_rows,
    adjoint=True,
)
_norm = partial(LayerKind, product, factor=_normalised)

LAYERS: Mapping[Any, LayerKind] = {
    F.linear: LayerKind(linear, _AFFINE),
    torch.addmm: LayerKind(matmul, ("bias", "input", "weight"), _plain_product),
    torch.matmul: _MATMUL,
    torch.Tensor.matmul: _MATMUL,
    torch.Tensor.__matmul__: _MATMUL,
    F.embedding: LayerKind(lookup, _TABLE, _plain_lookup),
    F.batch_norm: _norm((*_STATISTICS, "training", "momentum", "eps")),
    F.instance_norm: _norm((*_STATISTICS, "use_input_stats", "momentum", "eps")),
    F.group_norm: _norm(("input", "num_groups", "weight", "bias", "eps")),
    F.layer_norm: _norm(("input", "normalized_shape", "weight", "bias", "eps")),
    F.rms_norm: _norm(("input", "normalized_shape", "weight", "eps")),
    F.prelu: LayerKind(product, ("input", "weight"), factor=_negative),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _CONVOLUTION),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), _TRANSPOSED),
}
