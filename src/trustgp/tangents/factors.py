r"""Exact tangent features as layer inputs and back-propagated signals.

For a Linear layer the gradient of an output is an outer product :math:`g a^\top`, so its share of the
kernel is :math:`(a \cdot a' + 1)(g \cdot g')` and a row needs the layer's widths instead of its weights.
A normalisation layer in eval mode is an elementwise product: its share is a plain dot product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..data.tensor_file import inside
from ..data.trees import Inputs, take
from .base import MIN_BLOCK_ROWS, Features, TangentMap, Tangents, gram_blocks, mirrored
from .jacobian.accumulators import DenseAccumulator
from .jacobian.layer_gradients import LayerCall, linear
from .jacobian.layer_io import record
from .jacobian.strategies import looped
from .network import Choice, TangentNetwork

MAX_VMAP_ROWS = 64  # on a CPU: for more rows a backward pass per mixed output is as fast
LARGE_BLOCK = {"cuda": 2048}  # fewest rows of a block where kernel launches dominate
GROUPS = ("activations", "signals", "products")
OUTSIDE = "is also used outside its layer (tied or reparametrised weights?), which LayerFactors cannot do"
ALTERNATIVE = "Use tangents=trustgp.Sketch() or JacobianRows(...), which differentiate any module."


@dataclass(frozen=True)
class LayerFactors(Tangents):
    """Exact kernel from layer factors, for networks of Linear (and normalisation) layers on vectors.

    Args:
        parameters: "all", "last", or names of parameters.

    Examples:
        >>> exact = {"tangents": trustgp.LayerFactors(), "budget": "none"}
        >>> model = trustgp.fit(network, train, **exact, progress=False)
    """

    parameters: Choice = "all"

    def choose(self, network: nn.Module) -> list[str]:
        names, kinds = super().choose(network), (nn.Linear, nn.modules.batchnorm._BatchNorm, nn.LayerNorm)
        for name in names:  # must belong to layers whose gradient factorises
            owner, _, leaf = name.rpartition(".")
            module = network.get_submodule(owner)
            if not isinstance(module, kinds) or leaf not in ("weight", "bias"):
                what = f"parameter '{name}' belongs to a {type(module).__name__}; LayerFactors supports"
                raise ValueError(f"{what} Linear, BatchNorm and LayerNorm. {ALTERNATIVE}")
        return names

    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> FactorMap:
        pair = take(sample, torch.tensor([0, -1]))
        with torch.no_grad():
            _, recorder = record(network, pair)
        if recorder.unhandled:
            raise ValueError(f"parameter '{recorder.unhandled[0]}' {OUTSIDE}. {ALTERNATIVE}")
        for layer in {name.rpartition(".")[0]: 0 for name in network.names}:  # applied once, to vectors
            calls = [one for one in recorder.calls if one.layer == layer]
            factorise = [one.kind.gradient is linear or one.kind.elementwise for one in calls]
            shapes = [tuple(one.input.shape) for one in calls]
            if factorise != [True] or len(shapes[0]) != 2 or shapes[0][0] != 2:
                what = f"layer '{layer}' is called {len(calls)} times, with inputs {shapes}; LayerFactors"
                raise ValueError(f"{what} takes one call with one vector a row, [n, d]. {ALTERNATIVE}")
        features, gradients = FactorMap(network, mix, 0)(pair), DenseAccumulator(network, 2, len(mix))
        looped(network, network.names, mix, pair, gradients)
        dense = gradients.rows().double()  # the kernel of these exact gradients must be the same
        factored, exact = features.gram(features), dense @ dense.T
        tolerance = 1e-8 if network.dtype == torch.float64 else 1e-3
        if not torch.allclose(factored, exact, rtol=tolerance, atol=tolerance * float(exact.abs().max())):
            raise ValueError(f"a chosen parameter {OUTSIDE}. {ALTERNATIVE}")
        return FactorMap(network, mix, sum(v[0].nbytes for v in features.tensors().values()))

    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> FactorMap:
        return FactorMap(network, state["mix"], int(state["row_bytes"]))


@dataclass(frozen=True)
class FactorFeatures(Features):
    """Layer factors of n rows."""

    activations: tuple[Tensor, ...]  # per Linear layer the inputs a, and a 1 where there is a bias, [n, d]
    signals: tuple[Tensor, ...]  # per Linear layer the back-propagated g of every mixed output, [n, K * d']
    products: tuple[Tensor, ...]  # per normalisation layer the gradient itself, [n, K * d'']
    # inputs of the network's head [n, h], where it has one
    hidden: Tensor | None = field(default=None, kw_only=True)

    def groups(self) -> tuple[tuple[Tensor, ...], ...]:
        """Activations, signals and products."""
        return self.activations, self.signals, self.products

    def __len__(self) -> int:
        return len((self.activations + self.products)[0])

    def take(self, rows: Tensor) -> Self:
        return type(self)(*(tuple(tensor[rows] for tensor in group) for group in self.groups()))

    def gram(self, other: Self) -> Tensor:
        same, n, m = self is other, len(self), len(other)
        device = (self.activations + self.products)[0].device
        total = torch.zeros(n, m, dtype=torch.float64, device=device)
        blocks = gram_blocks(n, m, same=same, min_rows=LARGE_BLOCK.get(device.type, MIN_BLOCK_ROWS))
        lots = self.activations, other.activations, self.signals, other.signals
        for a, a2, g, g2 in zip(*lots, strict=True):
            a, g = a.double(), g.double()
            a2, g2 = (a, g) if same else (a2.double(), g2.double())
            for rows, columns in blocks:
                total[rows, columns].addcmul_(a[rows] @ a2[columns].T, g[rows] @ g2[columns].T)
        for p, p2 in zip(self.products, other.products, strict=True):
            p, p2 = p.double(), p2.double()
            for rows, columns in blocks:
                total[rows, columns].addmm_(p[rows], p2[columns].T)
        return mirrored(total, blocks) if same and n > MIN_BLOCK_ROWS else total

    def diag(self) -> Tensor:
        return self.diag_per_output(1)[:, 0]

    def diag_per_output(self, mixed: int) -> Tensor:
        """Share of each of K mixed outputs in the diagonal, float64 [n, K]."""

        def lengths(rows: Tensor, parts: int = mixed) -> Tensor:
            return torch.linalg.vector_norm(rows.unflatten(1, (parts, -1)), dim=2, dtype=torch.float64)

        shares = [lengths(a, 1) * lengths(g) for a, g in zip(self.activations, self.signals, strict=True)]
        return torch.stack([*shares, *map(lengths, self.products)]).square_().sum(dim=0)

    def select(self, columns: Tensor) -> Self:
        if columns.numel():
            raise ValueError("layer factors have no columns to select.")
        return self

    def scaled(self, factors: Tensor) -> Self:
        signals, products = (
            tuple(one * factors.to(one)[:, None] for one in group) for group in self.groups()[1:]
        )
        return type(self)(self.activations, signals, products)

    def tensors(self) -> dict[str, Tensor]:
        groups = zip(GROUPS, self.groups(), strict=True)
        return {f"{name}.{i}": value for name, group in groups for i, value in enumerate(group)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        groups = (inside(tensors, f"{name}.") for name in GROUPS)  # other tensors are ignored
        return cls(*(tuple(group[i] for i in sorted(group, key=int)) for group in groups))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        groups = zip(*(part.groups() for part in parts), strict=True)
        return cls(*(tuple(map(torch.cat, zip(*lots, strict=True))) for lots in groups))


class FactorMap(TangentMap):
    """Computes factors by a forward pass that records layer inputs, and a backward pass per mixed output."""

    kind = FactorFeatures

    def __init__(self, network: TangentNetwork, mix: Tensor, size: int, at_once: int = MAX_VMAP_ROWS) -> None:
        super().__init__(network, mix)
        self._row_bytes, self._max_vmap_rows = size, at_once

    @torch.inference_mode(False)  # the user may predict in inference mode
    def with_outputs(self, inputs: Inputs) -> tuple[FactorFeatures, Tensor]:
        with torch.enable_grad():
            outputs, recorder = record(self.network, inputs)
        calls, probes, mix = recorder.calls, recorder.probes, self.mix.to(outputs)
        at_once = outputs.is_cuda or outputs.shape[0] <= self._max_vmap_rows  # overhead dominates
        gradients = self.network.mixed_gradients(outputs, probes, mix, at_once=at_once)
        signals = [signal.transpose(0, 1) for signal in gradients]  # [n, K, d'] each
        if len(mix) == 1 and calls[-1].kind.gradient is linear and recorder.returned(outputs):
            # the network returns this layer's output: the signal is the mix, the same for all rows, and only
            # its length matters
            signals[-1] = mix.norm().expand(outputs.shape[0], 1, 1)
        groups = [], [], []
        for one, signal in zip(calls, signals, strict=True):
            a = one.input
            if one.kind.elementwise:
                groups[2].append(_chosen(one, signal * a[:, None], signal).flatten(1))
            else:
                groups[0].append(_chosen(one, a, a.new_ones(a.shape[0], 1)))
                groups[1].append(signal.flatten(1))
        return FactorFeatures(*map(tuple, groups), hidden=recorder.hidden), outputs.detach()

    def diag_per_output(self, features: FactorFeatures) -> Tensor:
        return features.diag_per_output(len(self.mix))

    def row_bytes(self) -> int:
        return self._row_bytes

    def working_bytes(self) -> int:
        return 4 * self._row_bytes  # activations, probes and gradients of one pass, and the features

    def state(self) -> dict[str, Tensor]:
        return {"mix": self.mix, "row_bytes": torch.tensor(self._row_bytes)}


def _chosen(one: LayerCall, weight: Tensor, bias: Tensor) -> Tensor:
    """Parts for a layer's weight and bias, concatenated, without those of parameters that were not chosen."""
    return torch.cat([part for part, name in ((weight, one.weight_name), (bias, one.bias_name)) if name], -1)
