r"""The gradient of each kind of layer, row by row, from what went in and what comes back.

A gradient is handed on as it is cheapest to write down: as an outer product summed over positions,
:math:`\sum_t g_t a_t^\top`, as a lookup, or plainly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .recorder import LayerCall


class Collector(Protocol):
    """Takes the gradients of n rows and K mixed outputs, by parameter; what comes twice is added."""

    def part(self, rows: slice, mixed: slice) -> Collector:
        """The same, for some of the rows and some of the mixed outputs."""
        ...

    def room(self, size: int) -> int:
        """Numbers a row that it needs on the way for an outer product of `size` numbers."""
        ...

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """sum_t left_t right_t^T: [n, K, g, t, o] and [n, K, g, t, i] (one K may be 1) for a [g * o, i]."""
        ...

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        """sum_t of value_t [n, K, t, d] in line index_t [n, t] of a [v, d]."""
        ...

    def plain(self, name: str, value: Tensor) -> None:
        """The gradient itself, [n, K, ...]."""
        ...


class LayoutError(RuntimeError):
    """A tensor does not hold the rows where they were when the network was probed."""


@dataclass(frozen=True)
class Layout:
    """Where the rows are in what a layer is given and gives.

    Args:
        axis: The dimension.
        inner: Where this dimension holds rows times positions: whether the rows run faster.
    """

    axis: int = 0
    inner: bool = False

    def rows(self, tensor: Tensor, n: int, *, skip: int = 0) -> Tensor:
        """The tensor as [n, positions, ...]; the first `skip` dimensions stay in front."""
        tensor = tensor.movedim(self.axis + skip, skip)
        positions, rest = divmod(tensor.shape[skip], n)
        if rest:
            raise LayoutError(f"{tensor.shape[skip]} is no multiple of the {n} rows")
        if self.inner:
            return tensor.unflatten(skip, (positions, n)).transpose(skip, skip + 1)
        return tensor.unflatten(skip, (n, positions))


@dataclass(frozen=True)
class Signals:
    """A layer's calls in one pass, rows first.

    Args:
        call: One of the calls; they differ in their inputs only.
        inputs: [n, q, ...], the calls' positions side by side.
        back: Gradients with respect to the outputs, [n, K, q, ...].
    """

    call: LayerCall
    inputs: Tensor
    back: Tensor

    def block(self, rows: slice) -> Signals:
        """Some of the rows."""
        return Signals(self.call, self.inputs[rows], self.back[rows])

    def room(self) -> int:
        """Numbers a row that the gradient needs on the way, beside what its collector needs."""
        ahead, back = self.inputs[0].numel(), self.back[0].numel()
        kernel = self.call.given["weight"].shape[2:].numel() if self.call.given["weight"] is not None else 1
        if self.call.kind == "transposed":
            return 2 * ahead + back * kernel
        return ahead * kernel + 2 * back


def gather(calls: Sequence[LayerCall], backs: Sequence[Tensor], layout: Layout, n: int) -> Signals:
    """Calls of one layer together: those of an unrolled recurrent layer are many and small.

    Args:
        calls: With inputs and outputs of one shape each.
        backs: For each call, [K, *output].
    """
    inputs = [layout.rows(call.input, n) for call in calls]
    back = [layout.rows(signal, n, skip=1).transpose(0, 1) for signal in backs]
    if len(calls) == 1:
        return Signals(calls[0], inputs[0], back[0])
    return Signals(calls[0], torch.cat(inputs, dim=1), torch.cat(back, dim=2))


def _linear(s: Signals, into: Collector) -> None:
    a, g = s.inputs.flatten(1, -2), s.back.flatten(2, -2)  # [n, t, i], [n, K, t, o]
    if s.call.weight_name is not None:
        into.outer(s.call.weight_name, g[:, :, None], a[:, None, None])
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, g.sum(dim=2))


def _matmul(s: Signals, into: Collector) -> None:
    """x W: as a Linear layer, its weight transposed."""
    a, g = s.inputs.flatten(1, -2), s.back.flatten(2, -2)
    if s.call.weight_name is not None:
        into.outer(s.call.weight_name, a[:, None, None], g[:, :, None])
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, g.sum(dim=2))


def _lookup(s: Signals, into: Collector) -> None:
    index, g = s.inputs.flatten(1), s.back.flatten(2, -2)  # [n, t], [n, K, t, d]
    padding = s.call.given.get("padding_idx")
    if padding is not None:  # torch gives this line no gradient
        padding += len(s.call.given["weight"]) if padding < 0 else 0
        g = g * (index != padding)[:, None, :, None]
    if s.call.weight_name is not None:
        into.lookup(s.call.weight_name, index, g)


def _product(s: Signals, into: Collector) -> None:
    """output = weight * x + bias, elementwise along the channels or the last dimensions."""
    shape = s.call.given.get("normalized_shape")
    names = {s.call.weight_name: s.back * s.inputs[:, None], s.call.bias_name: s.back}  # [n, K, q, c, ...]
    for name, value in names.items():
        if name is None:
            continue
        if shape is not None:
            value = value.flatten(2, -len(shape) - 1).sum(dim=2)
        else:
            value = value.flatten(4).sum(dim=4) if value.ndim > 4 else value
            value = value.sum(dim=2)
            if s.call.given["weight"] is not None and s.call.given["weight"].numel() == 1:
                value = value.sum(dim=2, keepdim=True)
        into.plain(name, value)


def _convolution(s: Signals, into: Collector) -> None:
    given, weight = s.call.given, s.call.given["weight"]
    groups = given.get("groups", 1)
    g = s.back.flatten(4)  # [n, K, q, c', p]
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, g.sum(dim=(2, 4)))
    if s.call.weight_name is not None:
        a = windows(s.inputs.flatten(0, 1), weight.shape[2:], given, groups)  # [n * q, g, p, i]
        a = a.unflatten(0, s.inputs.shape[:2]).transpose(1, 2).flatten(2, 3)  # [n, g, q * p, i]
        g = g.unflatten(3, (groups, -1)).permute(0, 1, 3, 2, 5, 4).flatten(3, 4)  # [n, K, g, q * p, o]
        into.outer(s.call.weight_name, g, a[:, None])


def _transposed(s: Signals, into: Collector) -> None:
    """A transposed convolution is the convolution's adjoint: input and signal change places."""
    given, weight = s.call.given, s.call.given["weight"]
    groups = given.get("groups", 1)
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, s.back.flatten(4).sum(dim=(2, 4)))
    if s.call.weight_name is not None:
        n, mixed, q = s.back.shape[:3]
        most = s.inputs.shape[3:]
        g = windows(s.back.flatten(0, 2), weight.shape[2:], given, groups, most)  # [n * K * q, g, p, i]
        g = g.unflatten(0, (n, mixed, q)).transpose(2, 3).flatten(3, 4)  # [n, K, g, q * p, i]
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
    if padding == "valid":
        padding = 0
    if padding == "same":
        return [side for r in reversed(reach) for side in (r // 2, r - r // 2)]
    return [side for p in reversed(_each(padding, len(reach))) for side in (p, p)]


GRADIENTS: Mapping[str, Callable[[Signals, Collector], None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "lookup": _lookup,
    "product": _product,
    "convolution": _convolution,
    "transposed": _transposed,
}


def layout_of(few: Sequence[tuple[int, ...]], more: Sequence[tuple[int, ...]]) -> Layout | None:
    """Where the rows are, from a layer's shapes for two and for three rows; None: they are nowhere.

    Raises:
        LayoutError: When that cannot be told.
    """
    found = set()
    for two, three in zip(few, more, strict=True):
        grown = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
        if not grown:
            found.add(None)
        elif len(grown) == 1 and 3 * two[grown[0]] == 2 * three[grown[0]]:
            found.add(Layout(grown[0]))
        else:
            raise LayoutError(f"shapes {two} for two rows and {three} for three")
    if len(found) != 1:
        raise LayoutError("its calls differ")
    return found.pop()
