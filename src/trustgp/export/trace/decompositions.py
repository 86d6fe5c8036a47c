"""Normalisations, and gradients of convolutions and pools, in operations that every format has."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten  # its schemas define the order of arguments here
TORCH_DECOMPOSES = """
    gelu_backward silu_backward tanh_backward sigmoid_backward threshold_backward hardtanh_backward
    leaky_relu_backward elu_backward softplus_backward hardswish_backward hardsigmoid_backward mish_backward
    log_sigmoid_backward native_layer_norm_backward native_group_norm_backward native_batch_norm_backward
    _softmax_backward_data _log_softmax_backward_data _prelu_kernel_backward select_backward slice_backward
    unfold_backward glu_backward select_scatter
    hardtanh hardsigmoid leaky_relu log_sigmoid_forward _prelu_kernel masked_fill rsub linalg_vector_norm
    logsumexp var celu glu softshrink hardshrink threshold
    t transpose stack split upsample_nearest2d
    isinf zeros ones zeros_like ones_like new_zeros new_ones new_full
"""


def layer_norm(x: Tensor, shape: Sequence[int], weight, bias, epsilon: float) -> tuple[Tensor, ...]:
    """Rows standardised along their last dimensions, their means, and their inverse standard deviations."""
    rows, mean, inverse = _standardised(x, list(range(-len(shape), 0)), epsilon)
    return _with_gain(rows, weight, bias), mean, inverse


def group_norm(x: Tensor, weight, bias, rows: int, channels: int, size: int, groups: int, epsilon: float):
    """Rows standardised by groups of channels, with means and inverse deviations of shape [n, groups]."""
    values, mean, inverse = _standardised(x.reshape(rows, groups, channels // groups * size), [-1], epsilon)
    shape = (channels, *[1] * (x.ndim - 2))
    gain = [None if value is None else value.reshape(shape) for value in (weight, bias)]
    return _with_gain(values.reshape(x.shape), *gain), mean.squeeze(2), inverse.squeeze(2)


def _standardised(x: Tensor, axes: list[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    r"""(x - mean) / sqrt(variance + epsilon), the mean, and one over that root.

    Where a square overflows, torch's kernels differ: depending on whether the row fills one of the
    processor's vectors, the variance is infinite and the row a harmless 0, or it is NaN. Here it is NaN
    wherever any order of summation may overflow: all squares, also of differences of two means, are at most
    :math:`4 \sum x^2`.
    """
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    overflow = 4.0 * x.square().sum(axes, keepdim=True) * 0.0  # 0 or NaN
    inverse = (centred.square().mean(axes, keepdim=True) + epsilon + overflow).rsqrt()
    return centred * inverse, mean, inverse


def _with_gain(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def convolution_backward(
    grad: Tensor, inputs: Tensor, weight: Tensor, _, stride, padding, dilation, transposed, __, groups, wanted
) -> Any:
    """The gradient of the input: the adjoint of a convolution is the transposed one, and vice versa."""
    if wanted[1] or wanted[2]:
        return NotImplemented
    sides = zip(inputs.shape[2:], grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    extra = [size - ((out - 1) * s - 2 * p + d * (kernel - 1) + 1) for size, out, kernel, s, p, d in sides]
    extra = [0] * len(extra) if transposed else extra
    options = (stride, padding, dilation, not transposed, extra, groups)
    return aten.convolution(grad, weight, None, *options), None, None


def max_pool_backward(grad: Tensor, inputs: Tensor, *options: Any) -> Tensor:
    """Gradient of the input: each value is added at its index, which is in the last argument."""
    first = 2 if len(options) == 1 else inputs.ndim - len(options[0])  # of the pooled dimensions
    flat = grad.new_zeros(inputs.shape).flatten(first)
    return flat.scatter_add(first, options[-1].flatten(first), grad.flatten(first)).reshape(inputs.shape)


def average_pool_backward(grad: Tensor, inputs: Tensor, kernel, stride, padding, ceil, padded, divisor):
    """An average pool is a product with a constant matrix along each side; its adjoint transposes them."""
    if divisor is not None or (any(padding) and padded and ceil):
        return NotImplemented
    matrices = []
    for i in range(2):
        start = torch.arange(grad.shape[-2 + i])[:, None] * (stride or kernel)[i] - padding[i]
        end, count = start + kernel[i], kernel[i] if padded else None
        matrices.append(_averages(start, end, inputs.shape[-2 + i], count).to(grad))
    return torch.matmul(torch.matmul(matrices[0].T, grad), matrices[1])


def _averages(start: Tensor, end: Tensor, size: int, count: int | None = None) -> Tensor:
    """Weights of `size` positions in each of m windows [m, size], from their starts and ends [m, 1]."""
    position = torch.arange(size)
    inside = ((position >= start) & (position < end)).double()
    return inside / (count or inside.sum(dim=1, keepdim=True))


def _adaptive(inputs: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Weights of an adaptive average in each window along the last two sides, shape [count, size] each."""
    sides = []
    for size, windows in zip(inputs.shape[-2:], counts, strict=True):
        number = torch.arange(windows)[:, None]
        start, end = number * size // windows, ((number + 1) * size + windows - 1) // windows
        sides.append(_averages(start, end, size).to(inputs))
    return sides


def adaptive_average(inputs: Tensor, sizes: Sequence[int]) -> Tensor:
    """Adaptive average pool A X B^T, with the weights A and B along each side."""
    left, right = _adaptive(inputs, sizes)
    return torch.matmul(torch.matmul(left, inputs), right.T)


def adaptive_average_backward(grad: Tensor, inputs: Tensor) -> Tensor:
    """Gradient A^T G B of the adaptive average pool."""
    left, right = _adaptive(inputs, grad.shape[-2:])
    return torch.matmul(torch.matmul(left.T, grad), right)


def adaptive_max(inputs: Tensor, sizes: Sequence[int]) -> Any:
    """Adaptive max pool as a plain max pool, if all windows have one size."""
    if any(inputs.shape[-2 + i] % sizes[i] for i in range(2)):
        return NotImplemented
    kernel = [inputs.shape[-2 + i] // sizes[i] for i in range(2)]
    return aten.max_pool2d_with_indices(inputs, kernel, kernel)


def smaller(x: Tensor, y: Tensor) -> Tensor:
    """Smaller number, or the other one where one is NaN: torch.fmin."""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.minimum(x, y)))


def euclidean(x: Tensor, y: Tensor, p: float, _: Any) -> Any:
    """Euclidean distances [..., n, m] between [..., n, d] and [..., m, d]."""
    return (x[..., None, :] - y[..., None, :, :]).square().sum(dim=-1).sqrt() if p == 2 else NotImplemented


def unfold(inputs: Tensor, axis: int, size: int, step: int) -> Tensor:
    """Windows along a dimension, by index; the last dimension is the position in a window."""
    axis = axis % inputs.ndim
    count = (inputs.shape[axis] - size) // step + 1
    positions = torch.arange(count)[:, None] * step + torch.arange(size)
    windows = inputs.index_select(axis, positions.flatten().to(inputs.device))
    return windows.unflatten(axis, (count, size)).movedim(axis + 1, -1)


def slice_scatter(inputs: Tensor, source: Tensor, dim: int = 0, start=None, end=None, step: int = 1) -> Any:
    """The inputs with a slice of them replaced: what precedes it, the source, and what follows."""
    size = inputs.shape[dim]
    first, last, _ = slice(start, end).indices(size)
    last = max(first, last)
    if step != 1:
        return NotImplemented
    source = source.to(inputs.dtype).expand_as(inputs.narrow(dim, first, last - first))
    parts = (inputs.narrow(dim, 0, first), source, inputs.narrow(dim, last, size - last))
    return torch.cat([part for part in parts if part.shape[dim]] or [inputs], dim=dim)


def table() -> dict[Any, Callable]:
    """The decompositions that apply while a graph is traced."""
    return get_decompositions([getattr(aten, name) for name in TORCH_DECOMPOSES.split()]) | {
        aten.full_like.default: lambda x, value, dtype=None, **_: x.new_full(x.shape, value, dtype=dtype),
        aten.native_layer_norm.default: layer_norm,
        aten.native_group_norm.default: group_norm,
        aten.convolution_backward.default: convolution_backward,
        aten.max_pool2d_with_indices_backward.default: max_pool_backward,
        aten.max_pool3d_with_indices_backward.default: max_pool_backward,
        aten.adaptive_max_pool2d_backward.default: max_pool_backward,
        aten.avg_pool2d_backward.default: average_pool_backward,
        aten._adaptive_avg_pool2d.default: adaptive_average,
        aten._adaptive_avg_pool2d_backward.default: adaptive_average_backward,
        aten.adaptive_max_pool2d.default: adaptive_max,
        aten._cdist_forward.default: euclidean,
        aten.fmin.default: smaller,
        aten.unfold.default: unfold,
        aten.slice_scatter.default: slice_scatter,
    }


def aten_graph(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
    """A function of tensors as a graph of the remaining operations, none of them in place."""
    options = {"tracing_mode": "fake", "_allow_non_fake_inputs": True}
    module = make_fx(function, table(), **options)(*inputs)
    schemas = [getattr(node.target, "_schema", None) for node in module.graph.nodes]
    if any(schema.is_mutable for schema in schemas if schema is not None):
        module = make_fx(functionalize(module, remove="mutations"), table(), **options)(*inputs)
    return module
