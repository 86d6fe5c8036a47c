r"""Exact tangent features without gradients: layer inputs and back-propagated signals.

For a Linear layer the gradient of an output is an outer product :math:`g a^\top`, so its share of the
kernel is :math:`(a \cdot a' + 1)(g \cdot g')` and a row needs the layer's widths instead of its weights.
A normalisation layer in eval mode is an elementwise product: its share is a plain dot product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..data.trees import Inputs, count, take
from .base import TangentMap, Tangents
from .gram import gram_blocks, mirrored
from .jacobian.accumulators import DenseAccumulator
from .jacobian.layer_calls import LayerCall
from .jacobian.layer_gradients import linear
from .jacobian.layer_io import LayerIORecorder
from .jacobian.strategies import looped
from .network import Choice, TangentNetwork, gradients_of

FEW_ROWS = 64  # on a CPU: the backward passes of so few cost more to begin than to do
GROUPS = ("activations", "signals", "products")
ALTERNATIVE = "Use tangents=trustgp.Sketch() or JacobianRows(...), which differentiate any module."


@dataclass(frozen=True)
class LayerFactors(Tangents):
    """Exact kernel from layer factors, for networks of Linear (and normalisation) layers on vectors.

    Args:
        parameters: "all", "last", or names of parameters.
    """

    parameters: Choice = "all"

    def choose(self, network: nn.Module) -> list[str]:
        names = super().choose(network)
        _check_layers(network, names)
        return names

    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> FactorMap:
        pair = take(sample, torch.tensor([0, -1]))
        _check_calls(network, pair)
        tangents = FactorMap(network, mix, row_bytes=0)
        features = tangents(pair)
        _check_kernel(network, mix, pair, features)
        row_bytes = sum(v[0].numel() * v.element_size() for v in features.tensors().values())
        return FactorMap(network, mix, row_bytes)

    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> FactorMap:
        return FactorMap(network, state["mix"], int(state["row_bytes"]))


@dataclass(frozen=True)
class FactorFeatures:
    """Factors of some rows.

    Args:
        activations: Per Linear layer the inputs a, with a 1 appended where there is a bias, [n, d].
        signals: Per Linear layer the back-propagated g of every mixed output, [n, K * d'].
        products: Per normalisation layer the gradient itself, [n, d''].
    """

    activations: tuple[Tensor, ...]
    signals: tuple[Tensor, ...]
    products: tuple[Tensor, ...]

    def groups(self) -> tuple[tuple[Tensor, ...], ...]:
        """Activations, signals and products."""
        return self.activations, self.signals, self.products

    def __len__(self) -> int:
        return len((self.activations + self.products)[0])

    def gram(self, other: Self) -> Tensor:
        first = (self.activations + self.products)[0]
        total = torch.zeros(len(self), len(other), dtype=torch.float64, device=first.device)
        blocks = gram_blocks(len(self), len(other), same=self is other)
        mine = zip(self.activations, self.signals, strict=True)
        theirs = zip(other.activations, other.signals, strict=True)
        for (a, g), (a2, g2) in zip(mine, theirs, strict=True):
            a, g, a2, g2 = (value.double() for value in (a, g, a2, g2))
            for rows, columns in blocks:
                total[rows, columns].addcmul_(a[rows] @ a2[columns].T, g[rows] @ g2[columns].T)
        for p, p2 in zip(self.products, other.products, strict=True):
            p, p2 = p.double(), p2.double()
            for rows, columns in blocks:
                total[rows, columns].addmm_(p[rows], p2[columns].T)
        return mirrored(total, blocks) if len(blocks) > 1 else total

    def diag(self) -> Tensor:
        total: Any = 0.0
        for a, g in zip(self.activations, self.signals, strict=True):
            total = total + a.double().square().sum(1) * g.double().square().sum(1)
        for p in self.products:
            total = total + p.double().square().sum(1)
        return total

    def take(self, rows: Tensor) -> Self:
        return type(self)(*(tuple(tensor[rows] for tensor in group) for group in self.groups()))

    def select(self, columns: Tensor) -> Self:
        if columns.numel():
            raise ValueError("layer factors have no columns to select.")
        return self

    def explicit(self) -> None:
        return None

    def tensors(self) -> dict[str, Tensor]:
        groups = zip(GROUPS, self.groups(), strict=True)
        return {f"{name}.{i}": value for name, group in groups for i, value in enumerate(group)}

    def stored(self) -> dict[str, Tensor]:
        return self.tensors()

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        found: dict[str, dict[int, Tensor]] = {name: {} for name in GROUPS}
        for key, value in tensors.items():
            name, _, number = key.partition(".")
            if name in found:  # what belongs to no group is told by its absence from `tensors()`
                found[name][int(number)] = value
        return cls(*(tuple(group[i] for i in sorted(group)) for group in found.values()))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        groups = zip(*(part.groups() for part in parts), strict=True)
        return cls(*(tuple(map(torch.cat, zip(*lots, strict=True))) for lots in groups))


class FactorMap(TangentMap):
    """Makes factors: one forward pass that notes the layers' inputs, one backward pass per mixed output."""

    kind = FactorFeatures

    def __init__(self, network: TangentNetwork, mix: Tensor, row_bytes: int) -> None:
        super().__init__(network, mix)
        self._row_bytes = row_bytes
        self._together = True  # until it is found to fail

    @torch.inference_mode(False)  # the user may predict in it
    def with_outputs(self, inputs: Inputs) -> tuple[FactorFeatures, Tensor]:
        recorder = LayerIORecorder(self.network)
        with torch.enable_grad(), recorder:
            outputs = self.network.twin_matrix(inputs)
        calls, mix = recorder.calls, self.mix.to(outputs)
        signals = self._signals(outputs, [call.probe for call in calls], mix)
        if len(mix) == 1 and calls[-1].kind.gradient is linear and recorder.returned(outputs):
            # what the network returns is that layer's output: its signal is the mix, the same for all rows,
            # and only its length counts, which does not grow with the outputs
            signals[-1] = mix.norm().expand(outputs.shape[0], 1, 1)
        pairs = list(zip(calls, signals, strict=True))
        features = FactorFeatures(
            activations=tuple(_extended(c) for c in calls if not c.kind.elementwise),
            signals=tuple(g.flatten(1) for c, g in pairs if not c.kind.elementwise),
            products=tuple(_products(c, g) for c, g in pairs if c.kind.elementwise),
        )
        return features, outputs.detach()

    def _signals(self, outputs: Tensor, probes: list[Tensor], mix: Tensor) -> list[Tensor]:
        """What comes back to each layer from the mixed outputs, [n, K, d'] each."""
        few = outputs.is_cuda or outputs.shape[0] <= FEW_ROWS
        if few and len(mix) > 1 and self._together:
            try:  # all in one pass: it takes as long to be asked as to answer
                every = mix[:, None].expand(-1, *outputs.shape)
                found = gradients_of(outputs, probes, every, batched=True)
                return [signal.transpose(0, 1) for signal in found]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # vmap does not know some operation of this network
                self._together = False
        lots = [gradients_of(outputs, probes, row.expand_as(outputs)) for row in mix]
        return [torch.stack(lot, dim=1) for lot in zip(*lots, strict=True)]

    def diag_per_output(self, features: FactorFeatures) -> Tensor:
        total = torch.zeros(len(features), len(self.mix), dtype=torch.float64, device=self.network.device)
        for a, g in zip(features.activations, features.signals, strict=True):
            total.addcmul_(a.double().square().sum(1, keepdim=True), _squares(g, len(self.mix)))
        for p in features.products:
            total += _squares(p, len(self.mix))
        return total

    def row_bytes(self) -> int:
        return self._row_bytes

    def working_bytes(self) -> int:
        # forward activations, probes and gradients of one pass, beside the features themselves
        return 4 * self._row_bytes

    def state(self) -> dict[str, Tensor]:
        return {"mix": self.mix, "row_bytes": torch.tensor(self._row_bytes)}


def _squares(rows: Tensor, parts: int) -> Tensor:
    """Squared length of each of so many equal parts of [n, K * d], shape [n, K], float64."""
    return rows.unflatten(1, (parts, -1)).double().square().sum(dim=2)


def _extended(one: LayerCall) -> Tensor:
    """(a, 1), or the part of it that belongs to chosen parameters, [n, d]."""
    parts = [one.input] if one.weight_name else []
    if one.bias_name:
        parts.append(one.input.new_ones(one.input.shape[0], 1))
    return torch.cat(parts, dim=1)


def _products(one: LayerCall, signal: Tensor) -> Tensor:
    """Gradient of a normalisation layer's weight and bias, [n, K * d * (1 or 2)], from [n, K, d]."""
    parts = [signal * one.input[:, None]] if one.weight_name else []
    if one.bias_name:
        parts.append(signal)
    return torch.cat(parts, dim=2).flatten(1)


def _check_calls(network: TangentNetwork, inputs: Inputs) -> None:
    """Raise unless every chosen layer is applied once, to vectors."""
    recorder = LayerIORecorder(network)
    with torch.no_grad(), recorder:
        network.twin_matrix(inputs)
    if recorder.unhandled:
        raise ValueError(
            f"a parameter of layer '{recorder.unhandled[0].rpartition('.')[0]}' is also used outside the "
            f"layer (tied or reparametrised weights?); LayerFactors would give a wrong kernel. {ALTERNATIVE}"
        )
    seen: dict[str, int] = {name.rpartition(".")[0]: 0 for name in network.names}
    for entry in recorder.calls:
        seen[entry.layer] += 1
        shape = tuple(entry.input.shape)
        factorises = entry.kind.gradient is linear or entry.kind.elementwise
        if not factorises or len(shape) != 2 or shape[0] != count(inputs):
            raise ValueError(
                f"layer '{entry.layer}' is applied to a tensor of shape {shape}; LayerFactors is exact for "
                f"one vector a row, [n, d], only. {ALTERNATIVE}"
            )
    for layer, times in seen.items():
        if times != 1:
            raise ValueError(
                f"layer '{layer}' is applied {times} times in one pass; LayerFactors needs exactly "
                f"once. {ALTERNATIVE}"
            )


def _check_kernel(network: TangentNetwork, mix: Tensor, inputs: Inputs, features: FactorFeatures) -> None:
    """Refuse rather than return a wrong kernel: compare with dense gradients on two rows."""
    found = DenseAccumulator(network, count(inputs), len(mix))
    looped(network, network.names, mix, inputs, found)
    dense = found.rows().double()
    factored, exact = features.gram(features), dense @ dense.T
    tolerance = 1e-8 if network.dtype == torch.float64 else 1e-3
    if not torch.allclose(factored, exact, rtol=tolerance, atol=tolerance * float(exact.abs().max())):
        raise ValueError(
            "LayerFactors would give a wrong kernel for this network: some chosen parameter also acts "
            f"outside its layer (tied or reparametrised weights?). {ALTERNATIVE}"
        )


def _check_layers(network: nn.Module, names: Sequence[str]) -> None:
    """Raise unless every named parameter belongs to a layer whose gradient factorises."""
    kinds = (nn.Linear, nn.modules.batchnorm._BatchNorm, nn.LayerNorm)
    for name in names:
        owner, _, leaf = name.rpartition(".")
        module = network.get_submodule(owner)
        if not isinstance(module, kinds) or leaf not in ("weight", "bias"):
            raise ValueError(
                f"parameter '{name}' belongs to a {type(module).__name__}; LayerFactors knows Linear, "
                f"BatchNorm and LayerNorm. {ALTERNATIVE}"
            )
