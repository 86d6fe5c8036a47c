"""Features of a chain of Linear layers and elementwise functions, by explicit forward and backward formulas.

For few rows of a small network most of the time is the overhead of hooks and autograd, not arithmetic.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from .network import TangentNetwork
from .projections import Projections

LOGGER = logging.getLogger("trustgp")
aten = torch.ops.aten
Shapes = Mapping[str, torch.Size]
Table = tuple[Tensor, Tensor]
Parts = list[Tensor] | tuple[Tensor, ...]
Weights = Callable[[Tensor], Tensor]  # from outputs [n, C] to their weights in K signals, [K, n, C]
# backward formula of each module a = f(z): the gradient for z from the gradient g for a
BACKWARD: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    nn.Linear: lambda m, g, z, a: torch.mm(g, m.weight),
    nn.ReLU: lambda m, g, z, a: aten.threshold_backward(g, a, 0),
    nn.Tanh: lambda m, g, z, a: aten.tanh_backward(g, a),
    nn.Sigmoid: lambda m, g, z, a: aten.sigmoid_backward(g, a),
    nn.SiLU: lambda m, g, z, a: aten.silu_backward(g, z),
    nn.Mish: lambda m, g, z, a: aten.mish_backward(g, z),
    # oneDNN's kernel does not broadcast
    nn.GELU: lambda m, g, z, a: aten.gelu_backward(*torch.broadcast_tensors(g, z), approximate=m.approximate),
    nn.Softplus: lambda m, g, z, a: aten.softplus_backward(g, z, m.beta, m.threshold),
    nn.LeakyReLU: lambda m, g, z, a: aten.leaky_relu_backward(g, z, m.negative_slope, False),
    nn.ELU: lambda m, g, z, a: aten.elu_backward(g, m.alpha, 1, 1, False, z),
}
IDENTITIES = (nn.Identity, nn.Dropout)  # in eval mode
MAX_GATHERED = 8192  # features of a row; more are faster layer by layer
CACHED_NUMBERS = {"cpu": 2**19, "cuda": 2**23}  # products at a time, so that their factors fit in a cache


@dataclass(frozen=True)
class LayerChain:
    """The modules of a network, one after another, and the names of their parameters."""

    steps: tuple[nn.Module, ...]
    names: tuple[tuple[str, str], ...]  # of each step's weight and bias, where these were chosen
    head: int | None = None  # the step whose inputs are returned, too

    @classmethod
    def of(cls, network: TangentNetwork) -> LayerChain | None:
        """Chain of a network's layers; None if it is not one, or does not hold all chosen parameters."""
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

    @property
    def first(self) -> int:
        """The position of the first Linear layer."""
        return next(place for place, one in enumerate(self.steps) if type(one) is nn.Linear)

    def __call__(
        self,
        inputs: Tensor,
        signal: Tensor | Weights,
        beside: Mapping[int, Tensor],
        constant: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> tuple[list[Tensor], dict[int, tuple[Tensor, Tensor]]]:
        """Inputs of all steps, with the outputs [n, C] last; and, for each Linear layer by position in the
        chain, the gradient for its output [K, n, o], with the product of this gradient and a projection.

        `signal` weights the outputs in K mixes: [K, 1, C] for all rows, or a function of the outputs with
        values [K, n, C]. `beside` holds each weight (but the first) and, in further columns, the projection.
        Gradients that are the same for all rows have n = 1; `constant` may give their products with `beside`.
        """
        values, signals, first = [inputs], {}, self.first
        for one in self.steps:
            values.append(one.forward(values[-1]))
        signal = signal if isinstance(signal, Tensor) else signal(values[-1])
        for place in reversed(range(first, len(self.steps))):
            one: Any = self.steps[place]
            if type(one) is nn.Linear:
                product = constant.get(place)  # gradient for the inputs, and projected signal
                product = signal @ beside[place] if product is None else product
                if place == first:
                    signals[place] = signal, product
                    continue
                wide, whole = one.in_features, product.shape[2]
                behind, projected = product.split_with_sizes([wide, whole - wide], dim=2)
                signals[place], signal = (signal, projected), behind
            else:
                signal = BACKWARD[type(one)](one, signal, values[place], values[place + 1])
        return values, signals


@cache
def product_kernel(dtype: torch.dtype, device: torch.device) -> Callable[..., Tensor] | None:
    """Function `product_sums`; None where Triton or a compiler is missing."""
    try:
        from .product_sums import product_sums

        table, one = (
            torch.zeros(1, 1, dtype=torch.int32, device=device),
            torch.ones(1, 1, device=device).to(dtype),
        )
        product_sums(one, one[None], table, table, one)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler raises
        LOGGER.info("sums of products take several kernels, since Triton is not to be had: %s", error)
        return None
    return product_sums


def _steps(module: nn.Module) -> list[nn.Module] | None:
    """Modules in the order of their calls; None if one is not supported or has hooks."""
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
        self.chain, self.start, (self.lines, self.width) = chain, weights or mix[:, None], entries.shape
        self.one = mix.new_ones(1, 1)
        self.sides: list[tuple[int, Tensor | None, bool, bool]] = []  # per layer, see `__call__`
        self.beside: dict[int, Tensor] = {}
        right, left, inputs, signals = {}, {}, 1, 0  # the first input is 1, for the biases
        for place in reversed(range(chain.first, len(chain.steps))):
            layer: Any = chain.steps[place]
            if type(layer) is not nn.Linear:
                continue
            weight, bias = chain.names[place]
            sides = by.get((weight, "right")), by.get((weight, "left"))
            own = layer.weight if place > chain.first else layer.weight[:, :0]
            self.beside[place] = own if sides[1] is None else torch.cat([own, sides[1]], dim=1)
            if not (weight or bias):
                continue
            plain = sides[1] is None or not weight  # whether the bias has the signal itself
            self.sides.append((place, sides[0], bool(weight) and not plain, bool(bias) or plain))
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
        none, indices = torch.zeros(1, dtype=torch.int64), entries.T.flatten().long()
        joined = (torch.cat([*(side[name] for name in cores), none]) for side in (right, left))
        self.right, self.left = (place.to(entries.device)[indices] for place in joined)
        self.signs = None if bool((signs == 1).all()) else signs.T.flatten()
        # line by line, as sums along the first dimension are faster
        self._by_line = [one.view(-1, self.lines).T.flatten() for one in (self.right, self.left)]
        self._indices: dict[int, tuple[Tensor, Tensor]] = {}  # by number of rows, a power of two
        self.constant: dict[int, Tensor] = {}  # products that are the same for all rows
        signal = self.start
        for place in reversed(range(chain.first, len(chain.steps))):
            if type(chain.steps[place]) is not nn.Linear or not isinstance(signal, Tensor):
                break
            self.constant[place] = signal @ self.beside[place]
            signal = self.constant[place][..., : chain.steps[place].in_features]
        shapes = {one.shape for _, one, *_ in self.sides if one is not None}
        self.rights = []  # layers with projections of one shape, and these projections [g, i, k]
        for shape in shapes:
            lot = [(place, one) for place, one, *_ in self.sides if one is not None and one.shape == shape]
            self.rights.append(([place for place, _ in lot], torch.stack([one for _, one in lot])))

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Feature rows [n, K, D], and outputs [n, C] as `strategies.layerwise` returns them."""
        values, signals = self.chain(inputs, self.start, self.beside, self.constant)
        outputs, n = values[-1], inputs.shape[0]
        if self.chain.head is not None:
            outputs = torch.cat([outputs, values[self.chain.head]], dim=1)
        given, back, thinned = [self.one.expand(n, 1)], [], {}
        for layers, rights in self.rights:
            products = torch.bmm(torch.stack([values[place] for place in layers]), rights)
            thinned |= dict(zip(layers, products.unbind(), strict=True))
        for place, right, thin, plain in self.sides:
            given.append(values[place] if right is None else thinned[place])
            parts = [part for part, use in zip(reversed(signals[place]), (thin, plain), strict=True) if use]
            back += [part.expand(-1, n, -1) for part in parts] if place in self.constant else parts
        if type(inputs) is not Tensor:  # onnxruntime selects columns number by number
            products = self._traced_products(torch.cat(given, dim=1), torch.cat(back, dim=2))
            # [n, K, D], through a matrix: onnxruntime is slow where all dimensions change places
            return products.flatten(0, 1).T.reshape(n, -1, self.width), outputs
        if inputs.is_cuda and (kernel := product_kernel(inputs.dtype, inputs.device)) is not None:
            return kernel(torch.cat(given, dim=1), torch.cat(back, dim=2), *self.tables), outputs
        most = CACHED_NUMBERS["cpu" if inputs.device.type == "cpu" else "cuda"]
        size = max(1, most // (len(back[0]) * self.left.shape[0]))
        if n <= size:
            return self._products(given, back).mT, outputs
        lots = zip(*(one.split(size) for one in given), strict=True)
        beside = zip(*(one.split(size, dim=1) for one in back), strict=True)
        return torch.cat([self._products(*lot) for lot in zip(lots, beside, strict=True)]).mT, outputs

    def _products(self, given: Parts, back: Parts) -> Tensor:
        """Features [n, D, K] of inputs [n, .] and signals [K, n, .]."""
        if back[0].is_cuda:  # an embedding bag is faster on a CPU
            return self._traced_products(torch.cat(given, dim=1), torch.cat(back, dim=2)).permute(2, 1, 0)
        table = torch.cat([part.permute(1, 2, 0) for part in back], dim=1)  # a number of all K side by side
        n, numbers, mixed = table.shape
        left, starts = self.indices(n, numbers)
        entries = torch.cat(given, dim=1).index_select(1, self.right)
        weights = (entries if self.signs is None else entries.mul_(self.signs)).flatten()
        options: Any = {"mode": 0, "per_sample_weights": weights, "include_last_offset": True}
        return torch.embedding_bag(table.flatten(0, 1), left, starts, **options)[0].view(n, self.width, mixed)

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Column indices of the inputs and of the signals, and signs of their products, [L, D] each."""
        signs = self.one[0].expand(self.left.shape) if self.signs is None else self.signs
        right, left = (one.view(self.lines, -1).int() for one in self._by_line)
        return right, left, signs.view(-1, self.lines).T.contiguous()

    def indices(self, n: int, numbers: int) -> tuple[Tensor, Tensor]:
        """Indices [n * D * L] of the products' signals in a table of n rows of `numbers` signals each, and
        indices [n * D + 1] of the first product of each feature."""
        if (most := 1 << (n - 1).bit_length()) not in self._indices:
            rows = torch.arange(most, dtype=torch.int32, device=self.left.device)[:, None]
            starts = torch.arange(most * self.width + 1, dtype=torch.int32, device=self.left.device)
            self._indices[most] = (self.left.int() + numbers * rows).flatten(), self.lines * starts
        left, starts = self._indices[most]
        return (left, starts) if n == most else (left[: n * self.left.shape[0]], starts[: n * self.width + 1])

    def _traced_products(self, given: Tensor, back: Tensor) -> Tensor:
        """Features [K, D, n] of inputs [n, .] and signals [K, n, .], from rows of the transposed matrices."""
        (mixed, n), (right, left) = back.shape[:2], self._by_line
        entries = given.T.index_select(0, right)
        if self.signs is not None:
            entries = entries * self.signs.view(-1, self.lines).T.reshape(-1, 1)
        products = back.permute(2, 0, 1).flatten(1).index_select(0, left).reshape(-1, mixed, n)
        return (products.transpose(0, 1) * entries).reshape(mixed, self.lines, self.width, n).sum(dim=1)
