r"""The gradient of each kind of layer, row by row, from what went in and what comes back in one pass.

A gradient is handed on as it is cheapest to write down: as an outer product summed over positions,
:math:`\sum_t g_t a_t^\top`, as a lookup, or plainly. A new kind of layer is one function, and one line of
`LAYERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .accumulators import Collector


class LayoutError(RuntimeError):
    """A tensor does not hold the rows where they were when the network was probed."""


@dataclass(frozen=True)
class Layout:
    """Where the rows are in what a layer is given and gives."""

    axis: int = 0  # the dimension
    inner: bool = False  # where this dimension holds rows times positions: whether the rows run faster

    def rows(self, tensor: Tensor, n: int, *, skip: int = 0) -> Tensor:
        """The tensor as [n, positions, ...]; the first `skip` dimensions stay in front."""
        tensor = tensor.movedim(self.axis + skip, skip)
        positions, rest = divmod(tensor.shape[skip], n)
        if rest:
            raise LayoutError(f"{tensor.shape[skip]} is no multiple of the {n} rows")
        if self.inner:
            return tensor.unflatten(skip, (positions, n)).transpose(skip, skip + 1)
        return tensor.unflatten(skip, (n, positions))


def layout_of(few: Sequence[tuple[int, ...]], more: Sequence[tuple[int, ...]]) -> Layout | None:
    """Where the rows are, from a layer's shapes for two and for three rows; None: they are nowhere."""
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


@dataclass(frozen=True)
class LayerKind:
    """How torch calls a layer, and how its gradient is made; one line of `LAYERS`."""

    gradient: Callable[[Signals, Collector], None]  # hands a layer's gradients to a collector
    arguments: tuple[str, ...]  # names of the operation's arguments, in order
    applies: Callable[[Mapping[str, Any]], bool] = lambda given: True  # whether a call has this gradient
    # of an elementwise layer, output = weight * x + bias: makes x, from the operation and its arguments
    factor: Callable[[Callable, Mapping[str, Any]], Tensor] | None = None
    adjoint: bool = False  # whether it unfolds the signal instead of the input, as a transposed convolution

    @property
    def elementwise(self) -> bool:
        """Whether output = weight * x + bias, entry by entry."""
        return self.factor is not None


@dataclass(frozen=True, eq=False)  # no two are the same
class LayerCall:
    """One application of a layer."""

    kind: LayerKind
    weight_name: str | None  # its parameters, where they were chosen
    bias_name: str | None
    input: Tensor  # what went in; of an elementwise layer what its weight is multiplied by
    probe: Tensor  # the zero that was added to what came out
    given: Mapping[str, Any]  # its arguments, by name

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """The same for every call of a layer."""
        return self.kind.gradient.__name__, self.weight_name, self.bias_name

    @property
    def layer(self) -> str:
        """Its name."""
        return (self.weight_name or self.bias_name or "").rpartition(".")[0]

    @property
    def reduces(self) -> bool:
        """Whether its gradients are sums over positions: they are made at once, and the signals let go."""
        return self.kind.elementwise or self.weight_name is None


@dataclass(frozen=True)
class Signals:
    """A layer's calls in one pass, rows first."""

    call: LayerCall  # one of the calls; they differ in their inputs only
    inputs: Tensor  # [n, q, ...], the calls' positions side by side
    back: Tensor  # gradients with respect to the outputs, [n, K, q, ...]

    @classmethod
    def gather(cls, calls: Sequence[LayerCall], backs: Sequence[Tensor], layout: Layout, n: int) -> Signals:
        """Calls of one layer together, [K, *output] coming back to each; of an unrolled one many."""
        inputs = [layout.rows(call.input, n) for call in calls]
        back = [layout.rows(signal, n, skip=1).transpose(0, 1) for signal in backs]
        if len(calls) == 1:
            return cls(calls[0], inputs[0], back[0])
        return cls(calls[0], torch.cat(inputs, dim=1), torch.cat(back, dim=2))

    def room(self) -> int:
        """Numbers a row that the gradient needs on the way, beside what its collector needs."""
        ahead, back, weight = self.inputs[0].numel(), self.back[0].numel(), self.call.given["weight"]
        kernel = 1 if weight is None else weight.shape[2:].numel()
        return 2 * ahead + back * kernel if self.call.kind.adjoint else ahead * kernel + 2 * back

    def hand_on(self, into: Collector) -> None:
        """Give the layer's gradients to a collector."""
        self.call.kind.gradient(self, into)


def linear(s: Signals, into: Collector, *, turned: bool = False) -> None:
    """x W^T + b."""
    a, g = s.inputs.flatten(1, -2), s.back.flatten(2, -2)  # [n, t, i], [n, K, t, o]
    if s.call.weight_name is not None:
        sides = g[:, :, None], a[:, None, None]
        into.outer(s.call.weight_name, *(reversed(sides) if turned else sides))
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, g.sum(dim=2))


def matmul(s: Signals, into: Collector) -> None:
    """x W + b: as a Linear layer, its weight transposed."""
    linear(s, into, turned=True)


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


def convolution(s: Signals, into: Collector, *, turned: bool = False) -> None:
    """Windows of the input times the kernel."""
    given, groups = s.call.given, s.call.given.get("groups", 1)
    if s.call.bias_name is not None:
        into.plain(s.call.bias_name, s.back.flatten(4).sum(dim=(2, 4)))
    if s.call.weight_name is not None:
        kernel, most = given["weight"].shape[2:], s.inputs.shape[3:] if turned else ()
        a, g = s.inputs[:, None], s.back  # [n, 1, q, c, ...], [n, K, q, c', ...]
        a, g = (g, a) if turned else (a, g)
        seen = windows(a.flatten(0, 2), kernel, given, groups, most)  # [n * K * q, g, p, i]
        seen = seen.unflatten(0, a.shape[:3]).transpose(2, 3).flatten(3, 4)  # [n, K, g, q * p, i]
        g = g.flatten(4).unflatten(3, (groups, -1)).permute(0, 1, 3, 2, 5, 4)  # [n, K, g, q, p, o]
        into.outer(s.call.weight_name, g.flatten(3, 4), seen)


def transposed(s: Signals, into: Collector) -> None:
    """A transposed convolution is the convolution's adjoint: input and signal change places."""
    convolution(s, into, turned=True)


def windows(
    inputs: Tensor, kernel: Sequence[int], given: Mapping[str, Any], groups: int, most: Sequence[int] = ()
) -> Tensor:
    """What a convolution sees of [n, channels, ...]: [n, groups, positions, channels / groups * kernel].

    Of `given` stride, padding and dilation count; `most` limits the positions along each dimension.
    """
    dims = len(kernel)
    stride, dilation = (each_side(given.get(name, 1), dims) for name in ("stride", "dilation"))
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    padded = F.pad(inputs, _padding(given.get("padding", 0), reach))
    for j in range(dims):
        padded = padded.unfold(2 + j, reach[j] + 1, stride[j])[..., :: dilation[j]]
    for j, size in enumerate(most):
        padded = padded.narrow(2 + j, 0, size)
    padded = padded.unflatten(1, (groups, -1))  # [n, g, c, *positions, *kernel]
    order = [0, 1, *range(3, 3 + dims), 2, *range(3 + dims, 3 + 2 * dims)]
    return padded.permute(order).flatten(2, 1 + dims).flatten(3)


def each_side(value: Any, dims: int) -> list[int]:
    """A number for each dimension, from one of them or from all."""
    return list(value) * (dims // len(value)) if isinstance(value, (tuple, list)) else [value] * dims


def _padding(padding: Any, reach: Sequence[int]) -> list[int]:
    """Before and after, the last dimension first, as F.pad wants them."""
    if padding == "same":
        return [side for r in reversed(reach) for side in (r // 2, r - r // 2)]
    padding = 0 if padding == "valid" else padding
    return [side for p in reversed(each_side(padding, len(reach))) for side in (p, p)]


def _plain_product(given: Mapping[str, Any]) -> bool:
    weight, scales = given["weight"], (given.get("beta", 1), given.get("alpha", 1))
    return isinstance(weight, Tensor) and weight.ndim == 2 and scales == (1, 1)


def _has_rows(given: Mapping[str, Any]) -> bool:
    return given["input"].ndim == given["weight"].ndim


def _normalised(operation: Callable, given: Mapping[str, Any]) -> Tensor:
    """x in output = weight * x + bias: the operation without its parameters."""
    return operation(**{name: value for name, value in given.items() if name not in ("weight", "bias")})


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
    F.embedding: LayerKind(
        lookup, _TABLE, lambda given: not any(map(given.get, ("max_norm", "scale_grad_by_freq", "sparse")))
    ),
    F.batch_norm: _norm((*_STATISTICS, "training", "momentum", "eps")),
    F.instance_norm: _norm((*_STATISTICS, "use_input_stats", "momentum", "eps")),
    F.group_norm: _norm(("input", "num_groups", "weight", "bias", "eps")),
    F.layer_norm: _norm(("input", "normalized_shape", "weight", "bias", "eps")),
    F.rms_norm: _norm(("input", "normalized_shape", "weight", "eps")),
    F.prelu: LayerKind(product, ("input", "weight"), factor=lambda _, given: given["input"].clamp(max=0)),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _CONVOLUTION),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), _TRANSPOSED),
}
