r"""Per-sample gradients of each kind of layer, from its inputs and signals in one pass.

A collector receives a gradient in its cheapest form: as an outer product summed over positions, :math:`\sum_t
g_t a_t^\top`, as a lookup, or dense. A new kind of layer is one function and one line of `LAYERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product as combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .accumulators import Collector

CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED_CONVOLUTIONS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class LayoutError(RuntimeError):
    """A tensor's rows are not in the dimension in which they were when the network was probed."""


@dataclass(frozen=True)
class Layout:
    """Where the rows are in a layer's input and output."""

    axis: int = 0  # the dimension
    inner: bool = False  # whether the rows vary fastest in a dimension of rows times positions

    def rows(self, tensor: Tensor, n: int, *, skip: int = 0) -> Tensor:
        """The tensor as [n, positions, ...]; the first `skip` dimensions stay in front."""
        tensor = tensor.movedim(self.axis + skip, skip) if self.axis else tensor
        if tensor.shape[skip] == n:
            return tensor.unsqueeze(skip + 1)
        positions, remainder = divmod(tensor.shape[skip], n)
        if remainder:
            raise LayoutError(f"{tensor.shape[skip]} is not a multiple of the {n} rows")
        if self.inner:
            return tensor.unflatten(skip, (positions, n)).transpose(skip, skip + 1)
        return tensor.unflatten(skip, (n, positions))


def layout_of(few: Sequence[tuple[int, ...]], more: Sequence[tuple[int, ...]]) -> Layout | None:
    """Layout of the rows, from a layer's shapes for two and for three rows; None if no dimension has rows."""
    layouts = set()
    for two, three in zip(few, more, strict=True):
        axes = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
        if not axes:
            layouts.add(None)
        elif len(axes) == 1 and 3 * two[axes[0]] == 2 * three[axes[0]]:
            layouts.add(Layout(axes[0]))
        else:
            raise LayoutError(f"shapes {two} for two rows and {three} for three")
    if len(layouts) != 1:
        raise LayoutError("its calls differ")
    return layouts.pop()


@dataclass(frozen=True)
class LayerKind:
    """A layer's arguments and gradient; one line of `LAYERS`."""

    gradient: Callable[[Signals, Collector], None]  # passes a layer's gradients to a collector
    arguments: tuple[str, ...]  # names of the operation's arguments, in order
    applies: Callable[[Mapping[str, Any]], bool] = lambda given: True  # whether a call has this gradient
    # for an elementwise layer, output = weight * x + bias: computes x from the operation and its arguments
    factor: Callable[[Callable, Mapping[str, Any]], Tensor] | None = None
    channels: int = -1  # the dimension of the channels
    transposed: bool = False  # whether the first dimension of the weight is that of the input
    either: bool = False  # whether the parameter may be the first of two operands

    @property
    def elementwise(self) -> bool:
        """Whether output = weight * x + bias, entry by entry."""
        return self.factor is not None

    @property
    def mixes(self) -> bool:
        """Whether each output is a sum over channels of the input: not a table, nor elementwise."""
        return self.factor is None and self.gradient is not lookup and "input" in self.arguments

    def vectors(self, inputs: Tensor) -> Tensor:
        """Channels [n, d] of a layer's input, averaged over its positions."""
        if inputs.ndim == 2:
            return inputs
        return inputs.flatten(2).mean(dim=2) if self.channels == 1 else inputs.flatten(1, -2).mean(dim=1)

    @property
    def name(self) -> str:
        return self.gradient.__name__ + (", transposed" if self.transposed else "")

    def sides(self) -> tuple[str, str]:
        """Sides of the weight that belong to the input and to the signal."""
        return ("left", "right") if self.transposed else ("right", "left")


@dataclass(eq=False, slots=True)  # compared by identity
class LayerCall:
    """One application of a layer."""

    kind: LayerKind
    weight_name: str | None  # names of its parameters; None if not chosen
    bias_name: str | None
    input: Tensor  # for an elementwise layer, the factor of its weight
    given: Mapping[str, Any]  # its other arguments, by name

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """Identity of the layer: its kind and parameters."""
        return self.kind.name, self.weight_name, self.bias_name

    @property
    def layer(self) -> str:
        """Name of the layer."""
        return (self.weight_name or self.bias_name or "").rpartition(".")[0]

    def restricted(self, names: Container[str | None]) -> LayerCall:
        """Copy of the call, with only those parameters that are in `names`."""
        weight, bias = (name if name in names else None for name in (self.weight_name, self.bias_name))
        return LayerCall(self.kind, weight, bias, self.input, self.given)

    def thinned(self, values: Tensor, into: Collector, side: str, *, skip: int = 0) -> Tensor:
        """Input or signal of the layer, with `skip` leading dimensions, projected by the collector."""
        if self.weight_name is None or self.kind.elementwise or not values.is_floating_point():
            return values
        axis = self.kind.channels + skip if self.kind.channels > 0 else -1
        return into.thin(self.weight_name, side, values, axis, self.given.get("groups", 1))

    def sums(self, dims: int, axis: int) -> list[tuple[str, bool, torch.Size, list[int]]]:
        """Name of each parameter that acts elementwise, whether it multiplies, its shape, and the dimensions
        of the output (of `dims`, without the rows in `axis`) along which it is repeated. A parameter that
        differs between rows is left out, and differentiated in another way."""
        weight, sums = (self.weight_name if self.kind.elementwise else None), []
        for name, key in ((weight, "weight"), (self.bias_name, "bias")):
            if name is None:
                continue
            shape = self.given[key].shape
            along = [1] * (dims - 2) if self.kind.channels > 0 and shape.numel() > 1 else []
            wide = [*[1] * (dims - len(shape) - len(along)), *shape, *along]
            if wide.pop(axis) == 1:
                repeated = [place for place, size in enumerate(wide) if size == 1]
                sums.append((name, key == "weight", shape, repeated))
        return sums


@dataclass(frozen=True)
class Signals:
    """Inputs and signals of a layer's calls in one pass, rows first."""

    call: LayerCall  # one of the calls; they differ in their inputs only
    inputs: Tensor  # [n, q, ...], the positions of all calls
    back: Tensor  # gradients with respect to the outputs, [n, K, q, ...]
    axis: int = 0  # where the rows were in the output

    @classmethod
    def gather(cls, calls: Sequence[LayerCall], backs: Sequence[Tensor], layout: Layout, n: int) -> Signals:
        """Join all calls of a layer (an unrolled one has many) and the signals [K, *output] of each."""
        inputs = [layout.rows(call.input, n) for call in calls]
        back = [layout.rows(signal, n, skip=1).transpose(0, 1) for signal in backs]
        if len(calls) == 1:
            return cls(calls[0], inputs[0], back[0], layout.axis)
        return cls(calls[0], torch.cat(inputs, dim=1), torch.cat(back, dim=2), layout.axis)

    def room(self) -> int:
        """Working memory per row, in numbers, for the gradient, without that of its collector."""
        ahead, back, weight = self.inputs[0].numel(), self.back[0].numel(), self.call.given["weight"]
        kernel = weight.shape[2:].numel()
        if kernel == 1 or self.depthwise:
            return ahead + 2 * back
        one, other = (self.back, self.inputs) if self.call.kind.transposed else (self.inputs, self.back)
        axis = 1 - weight.ndim  # a window of all channels of one for each position of the other
        return ahead + 2 * back + kernel * one.shape[axis] * other[0].numel() // other.shape[axis]

    @property
    def depthwise(self) -> bool:
        """Whether this is a convolution with one input and output channel per group, for one mixed output."""
        single = self.call.given["weight"].shape[:2] == (self.call.given.get("groups", 1), 1)
        return single and not self.call.kind.transposed and self.back.shape[1] == 1

    def reduced(self, into: Collector) -> None:
        """Pass on the gradients of biases and elementwise parameters, summed where these are repeated."""
        for name, multiplies, shape, repeated in self.call.sums(self.back.ndim - 2, self.axis):
            value = self.back * self.inputs[:, None] if multiplies else self.back  # [n, K, q, ...]
            value = value.sum(dim=[2, *(3 + place for place in repeated)])
            into.plain(name, value.reshape(*value.shape[:2], *shape))

    def thinned(self, into: Collector) -> Signals:
        """Inputs and signals projected by the collector."""
        ahead, behind = self.call.kind.sides()
        inputs = self.call.thinned(self.inputs, into, ahead, skip=1)
        return replace(self, inputs=inputs, back=self.call.thinned(self.back, into, behind, skip=2))

    def hand_on(self, into: Collector) -> None:
        """Pass the gradient of a weight that mixes channels to a collector."""
        if self.call.weight_name is not None and not self.call.kind.elementwise:
            self.call.kind.gradient(self, into)


def linear(s: Signals, into: Collector) -> None:
    """Pass on the gradient for W in x W^T + b or, transposed, x W + b."""
    a, g = s.inputs.flatten(1, -2), s.back.flatten(2, -2)  # [n, t, i], [n, K, t, o]
    sides = g[:, :, None], a[:, None, None]
    into.outer(s.call.weight_name or "", *(reversed(sides) if s.call.kind.transposed else sides))


def lookup(s: Signals, into: Collector) -> None:
    """Pass on the gradient for a table, whose rows are selected by index."""
    index, g = s.inputs.flatten(1), s.back.flatten(2, -2)  # [n, t], [n, K, t, d]
    if (padding := s.call.given.get("padding_idx")) is not None:  # torch gives this row no gradient
        padding += len(s.call.given["weight"]) if padding < 0 else 0
        g = g * (index != padding)[:, None, :, None]
    into.lookup(s.call.weight_name or "", index, g)


def convolution(s: Signals, into: Collector) -> None:
    """Pass on the gradient for a kernel: windows of the input times the signal; transposed, the reverse."""
    given, groups, transposed = s.call.given, s.call.given.get("groups", 1), s.call.kind.transposed
    kernel, limits = given["weight"].shape[2:], s.inputs.shape[3:] if transposed else ()
    a, g = s.inputs[:, None], s.back  # [n, 1, q, c, ...], [n, K, q, c', ...]
    a, g = (g, a) if transposed else (a, g)
    if s.depthwise:
        gradient = depthwise(a.flatten(0, 2), g.flatten(0, 2), kernel, given, len(a))
        return into.plain(s.call.weight_name or "", gradient)
    if a.shape[4:] == g.shape[4:] and kernel.numel() == 1 and not transposed:  # windows of one position
        patches = _by_position(a, groups)
    else:
        patches = windows(a.flatten(0, 2), kernel, given, groups, limits)  # [n * K * q, g, p, i]
        patches = patches.unflatten(0, a.shape[:3]).transpose(2, 3).flatten(3, 4)  # [n, K, g, q * p, i]
    into.outer(s.call.weight_name or "", _by_position(g, groups), patches)


def _by_position(values: Tensor, groups: int) -> Tensor:
    """Values [n, K, q, c, ...] as [n, K, g, q * p, c / g]."""
    return values.flatten(4).unflatten(3, (groups, -1)).permute(0, 1, 3, 2, 5, 4).flatten(3, 4)


def depthwise(a: Tensor, g: Tensor, kernel: Sequence[int], given: Mapping[str, Any], n: int) -> Tensor:
    """Gradient [n, 1, c, 1, *kernel] for one channel a group, from input and signal [n * q, c, ...]."""
    stride, dilation, _, padding = geometry(given, kernel)
    a = F.pad(a, padding)
    if a.is_cuda:
        operation, channels = CONVOLUTIONS[len(kernel) - 1], a.shape[0] * a.shape[1]
        a, by = a.flatten(0, 1)[None], g.flatten(0, 1)[:, None]
        gradient = operation(a, by, stride=dilation, dilation=stride, groups=channels)[0]
        gradient = gradient[(slice(None), *map(slice, kernel))]
    else:  # so many small convolutions would take longer than a loop over the kernel
        ends = [s * (size - 1) + 1 for s, size in zip(stride, g.shape[2:], strict=True)]
        sums = []
        for place in combinations(*map(range, kernel)):
            begins = [d * j for d, j in zip(dilation, place, strict=True)]
            window = (slice(b, b + e, s) for b, e, s in zip(begins, ends, stride, strict=True))
            sums.append((a[(..., *window)] * g).flatten(2).sum(dim=2))
        gradient = torch.stack(sums, dim=2).flatten(0, 1).unflatten(1, tuple(kernel))
    return gradient.unflatten(0, (n, 1, -1, g.shape[1])).sum(dim=2).unsqueeze(3)


def windows(
    inputs: Tensor, kernel: Sequence[int], given: Mapping[str, Any], groups: int, limits: Sequence[int] = ()
) -> Tensor:
    """Windows of a convolution of [n, channels, ...]: [n, groups, positions, channels / groups * kernel],
    with at most `limits` positions along each dimension."""
    dims, (stride, dilation, reach, padding) = len(kernel), geometry(given, kernel)
    padded = F.pad(inputs, padding)
    for j in range(dims):
        padded = padded.unfold(2 + j, reach[j] + 1, stride[j])[..., :: dilation[j]]
    for j, size in enumerate(limits):
        padded = padded.narrow(2 + j, 0, size)
    padded = padded.unflatten(1, (groups, -1))  # [n, g, c, *positions, *kernel]
    order = [0, 1, *range(3, 3 + dims), 2, *range(3 + dims, 3 + 2 * dims)]
    return padded.permute(order).flatten(2, 1 + dims).flatten(3)


def each_side(value: Any, dims: int) -> list[int]:
    """Numbers for each dimension, from one number or several."""
    return list(value) * (dims // len(value)) if isinstance(value, (tuple, list)) else [value] * dims


def geometry(given: Mapping[str, Any], kernel: Sequence[int]) -> tuple[list[int], ...]:
    """Stride, dilation and reach of a convolution in each dimension; its padding in the order of F.pad."""
    stride, dilation = (each_side(given.get(name, 1), len(kernel)) for name in ("stride", "dilation"))
    reach, padding = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)], given.get("padding", 0)
    if padding == "same":
        sides = [(r // 2, r - r // 2) for r in reach]
    else:
        sides = [(p, p) for p in each_side(0 if padding == "valid" else padding, len(kernel))]
    return stride, dilation, reach, [side for both in reversed(sides) for side in both]


def _plain_product(given: Mapping[str, Any]) -> bool:
    weight, scales = given["weight"], (given.get("beta", 1), given.get("alpha", 1))
    return isinstance(weight, Tensor) and weight.ndim == 2 and scales == (1, 1)


def _two_tensors(given: Mapping[str, Any]) -> bool:
    both = given.get("input"), given["bias"] if given["weight"] is None else given["weight"]
    return all(isinstance(one, Tensor) for one in both) and given.get("alpha", 1) == 1


def _normalised(operation: Callable, given: Mapping[str, Any]) -> Tensor:
    """Factor x in output = weight * x + bias: the operation without its parameters."""
    return operation(**{name: value for name, value in given.items() if name not in ("weight", "bias")})


_AFFINE = ("input", "weight", "bias")
_STATISTICS = ("input", "running_mean", "running_var", "weight", "bias")
_TABLE = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_PLAIN_TABLE = ("max_norm", "scale_grad_by_freq", "sparse")  # options without which the gradient is a lookup
_MATMUL = LayerKind(linear, ("input", "weight"), _plain_product, transposed=True)
_TRANSPOSED = (*_AFFINE, "stride", "padding", "output_padding", "groups", "dilation")
_BATCHED = {"channels": 1, "applies": lambda given: given["input"].ndim == given["weight"].ndim}
_convolution = partial(LayerKind, convolution, **_BATCHED)
_product = partial(LayerKind, Signals.reduced)
_norm = partial(_product, factor=_normalised)
_SCALE = _product(_AFFINE[:2], _two_tensors, lambda _, given: given["input"], either=True)
_shift = partial(_product, factor=lambda _, given: given["bias"].new_ones(()))  # no factor
_SHIFT = _shift(("input", "bias"), _two_tensors, either=True)

LAYERS: Mapping[Any, LayerKind] = {
    F.linear: LayerKind(linear, _AFFINE),
    torch.addmm: LayerKind(linear, ("bias", "input", "weight"), _plain_product, transposed=True),
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__), _MATMUL),
    F.embedding: LayerKind(lookup, _TABLE, lambda g: not any(map(g.get, _PLAIN_TABLE)), transposed=True),
    F.batch_norm: _norm((*_STATISTICS, "training", "momentum", "eps"), channels=1),
    F.instance_norm: _norm((*_STATISTICS, "use_input_stats", "momentum", "eps"), channels=1),
    F.group_norm: _norm(("input", "num_groups", "weight", "bias", "eps"), channels=1),
    F.layer_norm: _norm(("input", "normalized_shape", "weight", "bias", "eps")),
    F.rms_norm: _norm(("input", "normalized_shape", "weight", "eps")),
    F.prelu: _product(_AFFINE[:2], factor=lambda _, given: given["input"].clamp(max=0), channels=1),
    **dict.fromkeys(CONVOLUTIONS, _convolution((*_AFFINE, "stride", "padding", "dilation", "groups"))),
    **dict.fromkeys(TRANSPOSED_CONVOLUTIONS, _convolution(_TRANSPOSED, transposed=True)),
    # parameters outside of layers: a scale, a shift, a token shared by all rows
    **dict.fromkeys((torch.mul, torch.Tensor.mul), _SCALE),
    **dict.fromkeys((torch.add, torch.Tensor.add), _SHIFT),
    **dict.fromkeys((torch.Tensor.expand, torch.Tensor.repeat), _shift(("bias",))),
}
