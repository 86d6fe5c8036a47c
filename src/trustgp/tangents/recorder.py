"""Watches one forward pass: which chosen layers are called, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .network import TangentNetwork


@dataclass(frozen=True)
class LayerCall:
    """One application of a layer: its input, the zero added to its output, and what was chosen of it."""

    layer: str
    input: Tensor
    probe: Tensor
    weight: bool
    bias: bool
    elementwise: bool

    def extended(self) -> Tensor:
        """(a, 1), or the part of it that belongs to chosen parameters, [n, d]."""
        parts = [self.input] if self.weight else []
        if self.bias:
            parts.append(self.input.new_ones(len(self.input), 1))
        return torch.cat(parts, dim=1)

    def products(self, signal: Tensor) -> Tensor:
        """Gradient of a normalisation layer's weight and bias, [n, K * d * (1 or 2)]."""
        parts = [signal * self.input[:, None]] if self.weight else []
        if self.bias:
            parts.append(signal)
        return torch.cat(parts, dim=2).flatten(1)


class Recorder(TorchFunctionMode):
    """Notes every call of a chosen layer in this thread, and adds a zero probe to its output.

    Nothing is attached to the network. The probe makes the output a new tensor, so that an activation
    that works in place cannot change what was noted.
    """

    def __init__(self, network: TangentNetwork) -> None:
        super().__init__()
        tensors = dict(network.module.named_parameters())
        self.layers = {id(tensors[name]): name.rpartition(".")[0] for name in network.names}
        self.calls: list[LayerCall] = []
        self.strays: list[str] = []  # layers whose parameters are used in some other way

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear:
            given = _arguments(("input", "weight", "bias"), args, kwargs)
            return self._note(func, args, kwargs, given, given["input"])
        if func is F.batch_norm:
            names = (
                "input",
                "running_mean",
                "running_var",
                "weight",
                "bias",
                "training",
                "momentum",
            )
            given = _arguments((*names, "eps"), args, kwargs)
            plain = {**given, "weight": None, "bias": None}
            return self._note(func, args, kwargs, given, plain, elementwise=True)
        if func is F.layer_norm:
            names = ("input", "normalized_shape", "weight", "bias", "eps")
            given = _arguments(names, args, kwargs)
            plain = {**given, "weight": None, "bias": None}
            return self._note(func, args, kwargs, given, plain, elementwise=True)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):  # a shape or a dtype is no use of the values
            self.strays += [self.layers[id(x)] for x in (*args, *kwargs.values()) if id(x) in self.layers]
        return result

    def _note(self, func, args, kwargs, given, before, elementwise=False):
        output = func(*args, **kwargs)
        weight, bias = self.layers.get(id(given["weight"])), self.layers.get(id(given["bias"]))
        layer = weight if weight is not None else bias
        if layer is None:
            return output
        value = func(**before) if elementwise else before
        probe = torch.zeros_like(output, requires_grad=torch.is_grad_enabled())
        # a copy: an in-place operation may still change the layer's input after this call
        noted = value.detach().clone()
        noted_call = LayerCall(layer, noted, probe, weight is not None, bias is not None, elementwise)
        self.calls.append(noted_call)
        return output + probe


def _arguments(names: Sequence[str], args: tuple, kwargs: dict) -> dict[str, Any]:
    """Arguments by name; `weight` and `bias` are None where they were not given."""
    return {"weight": None, "bias": None, **dict(zip(names, args, strict=False)), **kwargs}
