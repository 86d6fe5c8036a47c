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

from ..data import Inputs, copied, count, take
from .blocks import gram_blocks, mirrored
from .dense import dense_rows
from .network import Choice, TangentNetwork, as_matrix, call, choose_parameters
from .recorder import LayerCall, Recorder

FEW_ROWS = 64  # on a CPU: the backward passes of so few cost more to begin than to do
ALTERNATIVE = "Use tangents=trustgp.Sketch() or JacobianRows(...), which differentiate any module."


@dataclass(frozen=True)
class LayerFactors:
    """Exact kernel from layer factors, for networks of Linear (and normalisation) layers on vectors.

    Args:
        parameters: "all", "last", or names of parameters.
    """

    parameters: Choice = "all"

    def choose(self, network: nn.Module) -> list[str]:
        names = choose_parameters(network, self.parameters)
        _layers(network, names)
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

    def settings(self) -> dict:
        return {"parameters": _plain(self.parameters)}


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
        return self._map(lambda tensor: tensor[rows])

    def select(self, columns: Tensor) -> Self:
        if columns.numel():
            raise ValueError("layer factors have no columns to select.")
        return self

    def explicit(self) -> None:
        return None

    def tensors(self) -> dict[str, Tensor]:
        named = {f"activations.{i}": value for i, value in enumerate(self.activations)}
        named |= {f"signals.{i}": value for i, value in enumerate(self.signals)}
        return named | {f"products.{i}": value for i, value in enumerate(self.products)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        def group(kind: str) -> tuple[Tensor, ...]:
            named = {int(k.split(".")[1]): v for k, v in tensors.items() if k.startswith(kind + ".")}
            return tuple(named[i] for i in sorted(named))

        return cls(group("activations"), group("signals"), group("products"))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        def join(field: str) -> tuple[Tensor, ...]:
            return tuple(torch.cat(lot) for lot in zip(*(getattr(p, field) for p in parts), strict=True))

        return cls(join("activations"), join("signals"), join("products"))

    def _map(self, function) -> Self:
        return type(self)(
            tuple(map(function, self.activations)),
            tuple(map(function, self.signals)),
            tuple(map(function, self.products)),
        )


class FactorMap:
    """Makes factors: one forward pass that notes the layers' inputs, one backward pass per mixed output."""

    kind = FactorFeatures
    slow = ""

    def __init__(self, network: TangentNetwork, mix: Tensor, row_bytes: int) -> None:
        self.network = network
        self.mix = mix
        self._row_bytes = row_bytes
        self._together = True  # until it is found to fail

    def __call__(self, inputs: Inputs) -> FactorFeatures:
        return self.seen(inputs)[0]

    @torch.inference_mode(False)  # the user may predict in it
    def seen(self, inputs: Inputs) -> tuple[FactorFeatures, Tensor]:
        recorder = Recorder(self.network)
        with torch.enable_grad(), recorder:
            outputs = as_matrix(call(self.network.twin, copied(self.network.ready(inputs))))
        calls = recorder.calls
        mix = self.mix.to(outputs)
        per_layer = self._signals(outputs, [call.probe for call in calls], mix)
        if len(mix) == 1 and calls[-1].kind == "linear" and recorder.returned(outputs):
            # what the network returns is that layer's output: its signal is the mix, the same for all rows,
            # and only its length counts, which does not grow with the outputs
            per_layer[-1] = mix.norm().expand(outputs.shape[0], 1, 1)
        linear = [(c, g) for c, g in zip(calls, per_layer, strict=True) if c.kind == "linear"]
        elementwise = [(c, g) for c, g in zip(calls, per_layer, strict=True) if c.kind == "product"]
        features = FactorFeatures(
            activations=tuple(_extended(c) for c, _ in linear),
            signals=tuple(g.flatten(1) for _, g in linear),
            products=tuple(_products(c, g) for c, g in elementwise),
        )
        return features, outputs.detach()

    def _signals(self, outputs: Tensor, probes: list[Tensor], mix: Tensor) -> list[Tensor]:
        """What comes back to each layer from the mixed outputs, [n, K, d'] each."""
        few = outputs.is_cuda or outputs.shape[0] <= FEW_ROWS
        if few and len(mix) > 1 and self._together:
            try:  # all in one pass: it takes as long to be asked as to answer
                every = mix[:, None].expand(-1, *outputs.shape)
                return [
                    signal.transpose(0, 1) for signal in _back(outputs, probes, every, is_grads_batched=True)
                ]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # vmap does not know some operation of this network
                self._together = False
        signals = [_back(outputs, probes, row.expand_as(outputs)) for row in mix]
        return [torch.stack(lot, dim=1) for lot in zip(*signals, strict=True)]

    def columns(self, inputs: Inputs) -> Tensor:
        return torch.empty(0, dtype=torch.int64)

    def parts(self, features: FactorFeatures) -> Tensor:
        total = torch.zeros(len(features), len(self.mix), dtype=torch.float64, device=self.network.device)
        for a, g in zip(features.activations, features.signals, strict=True):
            total.addcmul_(a.double().square().sum(1, keepdim=True), _squares(g, len(self.mix)))
        for p in features.products:
            total += _squares(p, len(self.mix))
        return total

    def direction(self, columns: Tensor) -> dict[str, Tensor]:
        return self.network.parameters

    def row_bytes(self) -> int:
        return self._row_bytes

    def width(self, *, expert: bool) -> None:
        return None

    def working_bytes(self) -> int:
        # forward activations, probes and gradients of one pass, beside the features themselves
        return 4 * self._row_bytes

    def state(self) -> dict[str, Tensor]:
        return {"mix": self.mix, "row_bytes": torch.tensor(self._row_bytes)}


def _back(outputs: Tensor, probes: list[Tensor], weights: Tensor, **options: bool) -> tuple[Tensor, ...]:
    """What comes back to the probes; the graph is kept."""
    return torch.autograd.grad(
        outputs, probes, weights, retain_graph=True, allow_unused=True, materialize_grads=True, **options
    )


def _squares(rows: Tensor, parts: int) -> Tensor:
    """Squared length of each of so many equal parts of [n, K * d], shape [n, K], float64."""
    return rows.unflatten(1, (parts, -1)).double().square().sum(dim=2)


def _extended(one: LayerCall) -> Tensor:
    """(a, 1), or the part of it that belongs to chosen parameters, [n, d]."""
    parts = [one.input] if one.weight else []
    if one.bias:
        parts.append(one.input.new_ones(one.input.shape[0], 1))
    return torch.cat(parts, dim=1)


def _products(one: LayerCall, signal: Tensor) -> Tensor:
    """Gradient of a normalisation layer's weight and bias, [n, K * d * (1 or 2)], from [n, K, d]."""
    parts = [signal * one.input[:, None]] if one.weight else []
    if one.bias:
        parts.append(signal)
    return torch.cat(parts, dim=2).flatten(1)


def _check_calls(network: TangentNetwork, inputs: Inputs) -> None:
    """Raise unless every chosen layer is applied once, to vectors."""
    recorder = Recorder(network)
    with torch.no_grad(), recorder:
        call(network.twin, copied(network.ready(inputs)))
    if recorder.strays:
        raise ValueError(
            f"a parameter of layer '{recorder.strays[0].rpartition('.')[0]}' is also used outside the layer "
            f"(tied or reparametrised weights?); LayerFactors would give a wrong kernel. {ALTERNATIVE}"
        )
    seen: dict[str, int] = {name.rpartition(".")[0]: 0 for name in network.names}
    for entry in recorder.calls:
        seen[entry.layer] += 1
        shape = tuple(entry.input.shape)
        if entry.kind not in ("linear", "product") or len(shape) != 2 or shape[0] != count(inputs):
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
    dense = dense_rows(network, mix, inputs)
    factored, exact = features.gram(features), dense @ dense.T
    tolerance = 1e-8 if network.dtype == torch.float64 else 1e-3
    if not torch.allclose(factored, exact, rtol=tolerance, atol=tolerance * float(exact.abs().max())):
        raise ValueError(
            "LayerFactors would give a wrong kernel for this network: some chosen parameter also acts "
            f"outside its layer (tied or reparametrised weights?). {ALTERNATIVE}"
        )


def _layers(network: nn.Module, names: Sequence[str]) -> None:
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


def _plain(choice: Choice) -> str | list[str]:
    return choice if isinstance(choice, str) else list(choice)
