"""Three exact strategies for per-sample gradients: layer by layer, by torch.func, and by a loop."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp, vmap

from ...data.chunking import at_once
from ...data.trees import Inputs, copied, count, map_tensors, take
from ..decompose import PLAIN, Unfused
from ..network import Mix, TangentNetwork, as_matrix, call_with, gradients_of, signal_weights
from .accumulators import Collector
from .layer_gradients import CONVOLUTIONS, LayerCall, Layout, LayoutError, Signals, geometry
from .layer_io import LayerIORecorder, with_hidden

MAX_MIXED = 16  # mixed outputs whose gradients are in memory at once
MIN_VECTORS = 64  # below which the transposed copy of a weight does not pay
MAX_CACHED_CALLS = 2**14  # of layers, by shape
WORKSPACE = 64 * 2**20  # bytes for the windows or products of a block of rows of one layer


@dataclass(frozen=True)
class GradientPlan:
    """The strategy of each parameter."""

    layouts: dict[tuple, Layout | None]  # of layers whose gradient follows from inputs and signals
    layerwise: frozenset[str]  # their parameters
    vmapped: tuple[str, ...] = ()  # parameters that torch.func differentiates row by row
    looped: tuple[str, ...] = ()  # the others: one ordinary backward pass for each row
    row_bytes: int = 1  # working memory of a row
    reason: str = ""  # why some are looped
    call_cache: dict[tuple, tuple] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rowless(self) -> list[tuple]:
        """Keys of the layers whose output is shared by all rows."""
        return [key for key, layout in self.layouts.items() if layout is None]

    def layout(self, call: LayerCall, output: Tensor, n: int) -> Layout:
        """Layout of the rows in a call; raises LayoutError if it does not fit the probed calls."""
        if call.key not in self.layouts:
            raise LayoutError(f"layer '{call.layer}' is called in another way")
        layout = self.layouts[call.key] or Layout()
        if any(x.ndim <= layout.axis or x.shape[layout.axis] % n for x in (call.input, output)):
            raise LayoutError(f"layer '{call.layer}' is called with other rows")
        return layout

    def check(self, unhandled: Sequence[str]) -> None:
        """Raise LayoutError if a parameter is used outside of its layer."""
        if not self.layerwise.isdisjoint(unhandled):
            raise LayoutError("a parameter is used outside its layer")


class FlippedConvBackward(torch.autograd.Function):
    r"""A convolution of stride 1 whose backward pass is the convolution :math:`\sum_o g_o *
    \mathrm{flip}(W_o)`.

    It takes as long as the forward pass; torch's own takes three to thirteen times as long on CPUs that have
    no kernel for it. The weight gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, operation: Callable, given: Mapping[str, Any]) -> Tensor:
        ctx.operation, ctx.given = operation, given
        return operation(input=inputs, **given)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None, None]:
        weight, groups = ctx.given["weight"], ctx.given.get("groups", 1)
        _, dilation, reach, before = geometry(ctx.given, weight.shape[2:])
        sides = [r - b for r, b in zip([r for r in reversed(reach) for _ in range(2)], before, strict=True)]
        flipped = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        flipped = flipped.flip(list(range(2, weight.ndim)))
        return ctx.operation(F.pad(signals[0], sides), flipped, dilation=dilation, groups=groups), None, None


class TransposedLinearBackward(torch.autograd.Function):
    """F.linear whose backward pass is F.linear with the transposed weight, for which some CPUs have faster
    kernels than for the plain product. The weight gets no gradient."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, given: Mapping[str, Any]) -> Tensor:
        ctx.weight = given["weight"]
        return F.linear(inputs, **given)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None]:
        return F.linear(signals[0], ctx.weight.T.contiguous()), None


class Gelu(torch.autograd.Function):
    r"""F.gelu with the explicit derivative :math:`\Phi(x) + x \varphi(x)`: torch's own takes 25 times as long
    as the forward pass on some CPUs."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return F.gelu(inputs)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        density = (x.square() * -0.5).exp_().mul_(x).mul_(1.0 / math.sqrt(2.0 * math.pi))
        return (x * math.sqrt(0.5)).erf_().add_(1.0).mul_(0.5).add_(density).mul_(signals[0])


def can_flip(operation: Callable, given: Mapping[str, Any]) -> bool:
    """Whether `FlippedConvBackward` applies: a convolution of stride 1 on a CPU."""
    stride = given.get("stride", 1)
    steps = stride if isinstance(stride, (tuple, list)) else [stride]
    return operation in CONVOLUTIONS and given["input"].device.type == "cpu" and set(steps) == {1}


def _plain_float(tensor: Any) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


class SignalStream(LayerIORecorder):
    """Computes each layer's gradient during one backward pass; only projected tensors are kept.

    A layer's input is projected in the forward pass, its signal by a hook on its output. A zero probe is
    added only where the graph begins.
    """

    def __init__(self, network: TangentNetwork, plan: GradientPlan, into: Collector, rows: int) -> None:
        super().__init__(network, rows, plan.rowless)
        self.plan, self.into = plan, into
        self._signals: dict[tuple, list[tuple[LayerCall, Tensor]]] = defaultdict(list)
        self._sums: dict[str, Tensor] = {}

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], given: dict[str, Any]) -> Tensor:
        inputs: Any = given.get("input")
        others = {name: value for name, value in given.items() if name != "input"}
        if func is F.linear and _plain_float(inputs) and inputs.numel() >= MIN_VECTORS * inputs.shape[-1]:
            return TransposedLinearBackward.apply(inputs, others)
        flip = can_flip(func, given)
        return FlippedConvBackward.apply(inputs, func, others) if flip else func(*args, **kwargs)

    def _other(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        exact = func is F.gelu and len(args) == 1 and kwargs.get("approximate", "none") == "none"
        return Gelu.apply(args[0]) if exact and _plain_float(args[0]) else super()._other(func, args, kwargs)

    def watch(self, call: LayerCall, output: Tensor) -> Tensor:
        key, cache = (call.key, call.input.shape, output.shape, self.rows), self.plan.call_cache
        if key not in cache:
            if len(cache) >= MAX_CACHED_CALLS:
                cache.clear()
            cache[key] = self._analyse(call, output)
        layer, layout, mixes, sums = cache[key]
        if not mixes and not sums:
            return output
        call, whole = call.restricted(self.plan.layerwise), layout.axis == 0 and len(output) == self.rows
        if mixes:
            thin = call.thinned(call.input, self.into, call.kind.sides()[0])
            # cloned where it is not projected: an in-place operation may still change it
            call.input = thin.clone() if thin is call.input else thin
        if not output.requires_grad:
            self.probes.append(output.new_zeros((), requires_grad=True))
            output = output + self.probes[-1]
        node, place = output.grad_fn, output.output_nr
        if node is None:
            raise LayoutError(f"layer '{call.layer}' is called without gradients")
        factor = call.input if whole or not call.kind.elementwise else layout.rows(call.input, self.rows)

        def receive(signals: tuple[Tensor | None, ...]) -> None:
            if (signal := signals[place]) is None:
                return
            back = signal if whole or not sums else layout.rows(signal, self.rows)  # [n, ...] or [n, q, ...]
            for name, multiplies, over in sums:
                value = back * factor if multiplies else back
                value = (value.sum(over) if over else value).reshape(self.rows, 1, -1)
                self._sums[name] = self._sums[name] + value if name in self._sums else value
            if mixes:
                self._signals[layer].append((call, call.thinned(signal, self.into, call.kind.sides()[1])))

        node.register_prehook(receive)
        return output

    def _analyse(self, call: LayerCall, output: Tensor) -> tuple[tuple, Layout, bool, list]:
        """Properties shared by calls of these shapes: the layer, the layout of its rows, whether its weight
        mixes channels, and the parameters that are summed over positions, with the dimensions."""
        chosen = call.restricted(self.plan.layerwise)
        if chosen.weight_name is None and chosen.bias_name is None:
            return (), Layout(), False, []
        layout = self.plan.layout(call, output, self.rows)
        first = 1 if layout.axis == 0 and len(output) == self.rows else 2
        sums = chosen.sums(output.ndim, layout.axis)
        sums = [(name, by, [*range(1, first), *(first + j for j in over)]) for name, by, _, over in sums]
        mixes = chosen.weight_name is not None and not call.kind.elementwise
        return (call.key, call.input.shape, output.shape, layout), layout, mixes, sums

    def finish(self, part: Collector) -> None:
        """Pass on the gradients of one mixed output, each parameter's once."""
        for name, value in self._sums.items():
            part.plain(name, value)
        self._sums.clear()
        for (*_, layout), pairs in self._signals.items():
            calls, backs = zip(*pairs, strict=True)
            _hand_on(Signals.gather(calls, [back[None] for back in backs], layout, self.rows), part)
        self._signals.clear()


def _hand_on(one: Signals, into: Collector) -> None:
    """Pass on the gradient of a layer, in blocks of rows that fit the workspace."""
    n, room = len(one.inputs), one.room() + into.room(one.call.given["weight"].numel())
    step = max(1, at_once(WORKSPACE, one.back.device) // max(1, room * one.back.element_size()))
    for start in range(0, n, step):
        block = slice(start, start + step)
        part = into if step >= n else into.part(block, slice(None))
        replace(one, inputs=one.inputs[block], back=one.back[block]).hand_on(part)


def layerwise(net: TangentNetwork, plan: GradientPlan, mix: Mix, inputs: Inputs, into: Collector) -> Tensor:
    """Pass on gradients by one forward pass for all rows, and one backward pass for each mixed output. Return
    the outputs [n, C] and, in further columns, the inputs of the network's head if it has one.

    Raises a `LayoutError`, before any gradient is passed on, if these rows take another path through the
    network than the rows with which it was probed.
    """
    stream = SignalStream(net, plan, into, count(inputs))
    try:
        with torch.enable_grad(), stream:
            outputs = net.float32_matrix(inputs)
    except (torch.OutOfMemoryError, LayoutError):
        raise
    except RuntimeError as error:
        raise LayoutError("a tensor that all rows share cannot be repeated here") from error
    plan.check(stream.unhandled)
    result = with_hidden(outputs.detach(), stream.hidden)
    if not outputs.requires_grad or not stream.probes:
        return result  # nothing depends on these parameters
    every = signal_weights(mix, outputs)
    for k, weights in enumerate(every):
        gradients_of(outputs, stream.probes, weights, keep=k < len(every) - 1)
        stream.finish(into.part(slice(None), slice(k, k + 1)))
    return result


def mixed_at_once(network: TangentNetwork, names: Sequence[str]) -> int:
    """Number of mixed outputs whose gradients for these parameters fit in memory for each row."""
    size = sum(value.nbytes for name, value in network.parameters.items() if name in set(names))
    return max(1, min(MAX_MIXED, WORKSPACE // max(1, size)))


def vmapped(
    net: TangentNetwork, names: Sequence[str], mix: Mix, num_mixed: int, inputs: Inputs, into: Collector
) -> None:
    """Pass on the named parameters' gradients by torch.func, all rows and a few mixed outputs at a time."""
    module, inputs = net.clone(), copied(net.cast(inputs))
    chosen = {name: value for name, value in net.parameters.items() if name in set(names)}

    def one_row(parameters: dict[str, Tensor], row: Inputs) -> list[dict[str, Tensor]]:
        single = map_tensors(lambda leaf: leaf[None].clone(), row)
        outputs, pull, *_ = vjp(lambda p: as_matrix(call_with(module, p, single)), parameters)
        # a loop, not a second vmap: some rules confuse two batch dimensions
        return [pull(one)[0] for one in signal_weights(mix, outputs)[group]]

    step = mixed_at_once(net, names)
    for start in range(0, num_mixed, step):
        group = slice(start, start + step)
        with Unfused(PLAIN):
            lots = vmap(one_row, in_dims=(None, 0))(chosen, inputs)
        for name in chosen:
            into.part(slice(None), group).plain(name, torch.stack([lot[name] for lot in lots], dim=1))


@torch.enable_grad()
def looped(net: TangentNetwork, names: Sequence[str], mix: Mix, inputs: Inputs, into: Collector) -> None:
    """Pass on the named parameters' gradients by ordinary backward passes, one row after another."""
    for row in range(count(inputs)):
        outputs, parameters = net.traced(take(inputs, torch.tensor([row])), names)
        for k, weights in enumerate(signal_weights(mix, outputs)):
            gradients = gradients_of(outputs, list(parameters.values()), weights)
            part = into.part(slice(row, row + 1), slice(k, k + 1))
            for name, gradient in zip(parameters, gradients, strict=True):
                part.plain(name, gradient.detach()[None, None])
