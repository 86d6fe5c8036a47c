"""Backward operations of convolutions and pools, written as operations that every format has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

aten = torch.ops.aten

KNOWN = [  # torch knows how these are made of others
    aten.gelu_backward,
    aten.silu_backward,
    aten.tanh_backward,
    aten.sigmoid_backward,
    aten.threshold_backward,
    aten.hardtanh_backward,
    aten.leaky_relu_backward,
    aten.elu_backward,
    aten.softplus_backward,
    aten.hardswish_backward,
    aten.hardsigmoid_backward,
    aten.mish_backward,
    aten.mish,
    aten.log_sigmoid_backward,
    aten.log_sigmoid_forward,
    aten.native_layer_norm_backward,
    aten.native_group_norm_backward,
    aten.native_batch_norm_backward,
    aten._softmax_backward_data,
    aten._log_softmax_backward_data,
    aten.select_backward,
    aten.slice_backward,
    aten.unfold_backward,
    aten.upsample_nearest2d,
    aten.softplus,
    aten.hardswish,
    aten._prelu_kernel,
    aten._prelu_kernel_backward,
    aten.linalg_vector_norm,
    aten.logsumexp,
    aten.var.correction,
]


def convolution_backward(
    grad: Tensor,
    inputs: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """What comes back to the input: the adjoint of a convolution is the transposed one, and the reverse."""
    if output_mask[1] or output_mask[2]:
        return NotImplemented
    dims = weight.ndim - 2
    if transposed:
        zeros = [0] * dims
        found = aten.convolution(grad, weight, None, stride, padding, dilation, False, zeros, groups)
        return found, None, None
    extra = [
        inputs.shape[2 + i]
        - ((grad.shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (weight.shape[2 + i] - 1) + 1)
        for i in range(dims)
    ]
    return aten.convolution(grad, weight, None, stride, padding, dilation, True, extra, groups), None, None


def max_pool_backward(grad: Tensor, inputs: Tensor, *options: Any) -> Tensor:
    """Each number goes back to the place that it came from, which the last argument tells."""
    places = options[-1]
    dims = inputs.ndim - 2 if len(options) == 1 else len(options[0])
    lead = inputs.shape[: inputs.ndim - dims]
    flat = grad.flatten(len(lead))
    zeros = grad.new_zeros(inputs.shape).flatten(len(lead))
    return zeros.scatter_add(len(lead), places.flatten(len(lead)), flat).reshape(inputs.shape)


def average_pool_backward(
    grad: Tensor,
    inputs: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    """An average pool is a product with a constant matrix along each side; back with these transposed."""
    if divisor is not None or (any(padding) and count_include_pad and ceil_mode):
        return NotImplemented
    found = grad
    stride = stride or kernel
    for i in range(2):
        matrix = _averages(
            inputs.shape[-2 + i], grad.shape[-2 + i], kernel[i], stride[i], padding[i], count_include_pad
        )
        matrix = matrix.to(grad)
        found = torch.matmul(matrix.T, found) if i == 0 else torch.matmul(found, matrix)
    return found


def _averages(size: int, found: int, kernel: int, stride: int, padding: int, count_padding: bool) -> Tensor:
    """What each of `found` windows takes from each of `size` places, shape [found, size]."""
    start = torch.arange(found)[:, None] * stride - padding
    place = torch.arange(size)
    inside = ((place >= start) & (place < start + kernel)).double()
    return inside / (kernel if count_padding else inside.sum(dim=1, keepdim=True))


def _adaptive(size: int, found: int) -> Tensor:
    """The windows of an adaptive average, shape [found, size]."""
    place, number = torch.arange(size), torch.arange(found)[:, None]
    start, end = number * size // found, ((number + 1) * size + found - 1) // found
    inside = ((place >= start) & (place < end)).double()
    return inside / inside.sum(dim=1, keepdim=True)


def adaptive_average(inputs: Tensor, sizes: Sequence[int]) -> Tensor:
    """A X B^T with the averages of each side."""
    high, wide = (_adaptive(inputs.shape[-2 + i], sizes[i]).to(inputs) for i in range(2))
    return torch.matmul(torch.matmul(high, inputs), wide.T)


def adaptive_average_backward(grad: Tensor, inputs: Tensor) -> Tensor:
    """A^T G B."""
    high, wide = (_adaptive(inputs.shape[-2 + i], grad.shape[-2 + i]).to(grad) for i in range(2))
    return torch.matmul(torch.matmul(high.T, grad), wide)


def adaptive_max(inputs: Tensor, sizes: Sequence[int]) -> Any:
    """A max pool, where the windows are all of one size."""
    if any(inputs.shape[-2 + i] % sizes[i] for i in range(2)):
        return NotImplemented
    kernel = [inputs.shape[-2 + i] // sizes[i] for i in range(2)]
    return aten.max_pool2d_with_indices(inputs, kernel, kernel)


def unfold(inputs: Tensor, axis: int, size: int, step: int) -> Tensor:
    """Windows along a dimension, by index; the places in a window come last."""
    axis = axis % inputs.ndim
    count = (inputs.shape[axis] - size) // step + 1
    places = torch.arange(count, device=inputs.device)[:, None] * step + torch.arange(
        size, device=inputs.device
    )
    found = inputs.index_select(axis, places.flatten())
    return found.unflatten(axis, (count, size)).movedim(axis + 1, -1)


def table() -> dict[Any, Callable]:
    """What is taken apart while a graph is traced."""
    return get_decompositions(KNOWN) | {
        aten.convolution_backward.default: convolution_backward,
        aten.max_pool2d_with_indices_backward.default: max_pool_backward,
        aten.max_pool3d_with_indices_backward.default: max_pool_backward,
        aten.adaptive_max_pool2d_backward.default: max_pool_backward,
        aten.avg_pool2d_backward.default: average_pool_backward,
        aten._adaptive_avg_pool2d.default: adaptive_average,
        aten._adaptive_avg_pool2d_backward.default: adaptive_average_backward,
        aten.adaptive_max_pool2d.default: adaptive_max,
        aten.unfold.default: unfold,
    }
