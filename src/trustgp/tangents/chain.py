"""Features of a chain of Linear layers and elementwise functions, by explicit forward and backward formulas.

For few rows of a small network most of the time is the overhead of hooks and autograd, not arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .network import TangentNetwork
from .projections import Projections

aten = torch.ops.aten
Shapes = Mapping[str, torch.Size]
Table = tuple[Tensor, Tensor]
Weights = Callable[[Tensor], Tensor]  # of outputs [n, C] in K signals, [K, n, C]
# of a module a = f(z): the gradient for z from the gradient g for a
BACKWARD: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    nn.Linear: lambda m, g, z, a: torch.mm(g, m.weight),
    nn.ReLU: lambda m, g, z, a: aten.threshold_backward(g, a, 0),
    nn.Tanh: lambda m, g, z, a: aten.tanh_backward(g, a),
    nn.Sigmoid: lambda m, g, z, a: aten.sigmoid_backward(g, a),
    nn.SiLU: lambda m, g, z, a: aten.silu_backward(g, z),
    nn.Mish: lambda m, g, z, a: aten.mish_backward(g, z),
    nn.GELU: lambda m, g, z, a: aten.gelu_backward(g, z, approximate=m.approximate),
    nn.Softplus: lambda m, g, z, a: aten.softplus_backward(g, z, m.beta, m.threshold),
    nn.LeakyReLU: lambda m, g, z, a: aten.leaky_relu_backward(g, z, m.negative_slope, False),
    nn.ELU: lambda m, g, z, a: aten.elu_backward(g, m.alpha, 1, 1, False, z),
}
IDENTITIES = (nn.Identity, nn.Dropout)  # in eval mode
MAX_GATHERED = 8192  # features of a row; more are faster layer by layer


@dataclass(frozen=True)
class LayerChain:
    """The modules of a network, one after another, and the names of their parameters."""

    steps: tuple[nn.Module, ...]
    names: tuple[tuple[str, str], ...]  # of each step's weight and bias, where these were chosen
    head: int | None = None  # the step whose inputs are returned, too

    @classmethod
    def of(cls, network: TangentNetwork) -> LayerChain | None:
        """None where the network is not a chain of supported layers that has all chosen parameters."""
        named = {id(value): name for name, value in network.chosen.items()}
        steps = _steps(network.differentiated)
        if network.half or steps is None or not any(type(one) is nn.Linear for one in steps):
            return None
        weights = [[getattr(one, part, None) for part in ("weight", "bias")] for one in steps]
        names = tuple((named.get(id(w), ""), named.get(id(b), "")) for w, b in weights)
        if sorted(name for pair in names for name in pair if name) != sorted(network.names):
            return None
        head = [place for place, (weight, _) in enumerate(weights) if weight is network.head_weight]
        return cls(tuple(steps), names, head[-1] if network.head and head else None)

    def __call__(
        self, inputs: Tensor, mix: Tensor, weights: Weights | None = None
    ) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]:
        """The outputs [n, C]; by position in the chain, each Linear layer's input [n, i] and the gradient for
        its output [n * K, o], for K mixes of the outputs, those of a row one after another: [K, C] for all
        rows, or `weights` of the outputs, [K, n, C]."""
        values = [inputs]
        for one in self.steps:
            values.append(one.forward(values[-1]))
        first = next(place for place, one in enumerate(self.steps) if type(one) is nn.Linear)
        every = mix if weights is None else weights(values[-1])
        signal = mix if weights is None else every.transpose(0, 1).flatten(0, 1)
        signals, n, mixed = {}, inputs.shape[0], every.shape[0]
        expand = (lambda s: s.expand(n, -1)) if mixed == 1 else (lambda s: s.repeat(n, 1))
        # whether the signal is the same for all rows, as behind the last function
        constant = n > 1 and weights is None
        for place in reversed(range(first, len(self.steps))):
            one = self.steps[place]
            if type(one) is nn.Linear:
                signals[place] = values[place], expand(signal) if constant else signal
            else:
                signal, constant = expand(signal) if constant else signal, False
            if place > first:
                around = values[place], values[place + 1]
                if mixed > 1 and type(one) is not nn.Linear:  # whose gradient does not depend on its input
                    around = (value.repeat_interleave(mixed, dim=0) for value in around)
                signal = BACKWARD[type(one)](one, signal, *around)
        return values[-1], signals


def _steps(module: nn.Module) -> list[nn.Module] | None:
    """The modules in the order of their calls; None where one is not supported or has hooks."""
    if any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)):
        return None
    if type(module) is nn.Sequential:
        parts = [_steps(one) for one in module]
        return None if any(part is None for part in parts) else [one for part in parts for one in part or ()]
    if type(module) in IDENTITIES and not module.training:
        return []
    if getattr(module, "inplace", False):  # the backward pass needs what it would overwrite
        module = copy.copy(module)
        vars(module)["inplace"] = False
    return [module] if type(module) in BACKWARD else None


class ChainRows:
    """Feature rows of a chain: each feature is a signed sum of products of an input and a signal."""

    def __init__(
        self,
        chain: LayerChain,
        mix: Tensor,
        cores: Shapes,
        by: Projections,
        table: Table,
        weights: Weights | None = None,
    ) -> None:
        """The table's entries [L, D] index the concatenated projected gradients of all parameters, of the
        shapes `cores`; its signs [L, D] are 0 where there is no entry."""
        entries, signs = table
        self.chain, self.mix, self.weights, (self.lines, self.width) = chain, mix, weights, entries.shape
        self.one = torch.ones_like(mix[:, :1])
        self.sides: list[tuple[int, Tensor | None, Tensor | None]] = []  # layers, and both projections
        right, left, inputs, signals = {}, {}, 1, 0  # the first input is 1, for the biases
        for place in reversed(range(len(chain.steps))):
            weight, bias = chain.names[place]
            if not (weight or bias):
                continue
            sides = by.get((weight, "right")), by.get((weight, "left"))
            self.sides.append((place, *sides))
            layer: Any = chain.steps[place]
            wide, tall = (cores[weight][1], cores[weight][0]) if weight else (layer.in_features, 0)
            if weight:
                lines, columns = torch.meshgrid(torch.arange(tall), torch.arange(wide), indexing="ij")
                right[weight], left[weight] = inputs + columns.flatten(), signals + lines.flatten()
            inputs, signals = inputs + wide, signals + (tall if weight else 0)
            if bias:
                # the signal itself, beside its projection
                start = signals if sides[1] is not None or not weight else signals - tall
                left[bias] = start + torch.arange(layer.out_features)
                right[bias] = torch.zeros(layer.out_features, dtype=torch.int64)
                signals = start + layer.out_features
        none, indices = torch.zeros(1, dtype=torch.int64), entries.flatten().long()
        joined = (torch.cat([*(side[name] for name in cores), none]) for side in (right, left))
        self.right, self.left = (place.to(entries.device)[indices] for place in joined)
        self.signs = None if bool((signs == 1).all()) else signs.flatten()

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Feature rows [n, K * D], and outputs [n, C] as `strategies.layerwise` returns them."""
        outputs, signals = self.chain(inputs, self.mix, self.weights)
        if self.chain.head is not None:
            outputs = torch.cat([outputs, signals[self.chain.head][0]], dim=1)
        n = inputs.shape[0]
        mixed = next(iter(signals.values()))[1].shape[0] // n
        given, back = [self.one[:1] if n == 1 else inputs.new_ones(n, 1)], []
        for place, right, left in self.sides:
            value, signal = signals[place]
            weight, bias = self.chain.names[place]
            given.append(value if right is None else torch.mm(value, right))
            if weight:
                back.append(signal if left is None else torch.mm(signal, left))
            if bias and (left is not None or not weight):
                back.append(signal)
        entries = torch.cat(given, dim=1).index_select(1, self.right)
        signals = torch.cat(back, dim=1).index_select(1, self.left)
        if mixed == 1:
            entries = entries.mul_(signals)
        else:
            entries = (entries[:, None] * signals.view(n, mixed, -1)).flatten(0, 1)
        entries = entries if self.signs is None else entries.mul_(self.signs)
        if self.lines > 1:
            entries = entries.view(-1, self.lines, self.width).sum(dim=1)
        return (entries if mixed == 1 else entries.view(n, -1)), outputs
