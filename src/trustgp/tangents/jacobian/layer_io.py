"""Watches one forward pass: which chosen layers are called, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...data.trees import Inputs, count
from ..decompose import SEEN, Unfused
from ..modules import tensors_in
from ..network import TangentNetwork
from .layer_gradients import LAYERS, LayerCall, LayerKind


class LayerIORecorder(TorchFunctionMode):
    """Notes every call of a chosen layer in this thread, and adds a zero probe to its output.

    Nothing is attached to the network. The probe makes the output a new tensor, so that an activation
    that works in place cannot change what was noted. The output of a `rowless` layer has no rows, since all
    share it (a position's embedding): it is repeated for each, so that a probe can tell them apart.
    """

    def __init__(self, network: TangentNetwork, rows: int = 0, rowless: Sequence[Any] = ()) -> None:
        super().__init__()
        tensors = dict(network.twin.named_parameters())
        self.names = {id(tensors[name]): name for name in network.names}
        self.rows, self.rowless = rows, rowless
        self.calls: list[LayerCall] = []
        self.unhandled: list[str] = []  # parameters that are used in some other way
        self.last: Tensor | None = None  # what the last of these layers gave
        self._version = 0  # of that: operations in place count it up

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, kind = kwargs or {}, LAYERS.get(func)
        if kind is not None:
            given = {"weight": None, "bias": None, **dict(zip(kind.arguments, args, strict=False)), **kwargs}
            if kind.applies(given):
                others = [value for name, value in given.items() if name not in ("weight", "bias")]
                self.unhandled += self._chosen(others)
                return self._note(func, func(*args, **kwargs), kind, given)
        result = func(*args, **kwargs)
        if any(True for _ in tensors_in(result)):  # a shape or a dtype is no use of the values
            self.unhandled += self._chosen([*args, *kwargs.values()])
        return result

    def _chosen(self, values: Any) -> list[str]:
        return [self.names[id(tensor)] for tensor in tensors_in(values) if id(tensor) in self.names]

    def _note(self, func: Any, output: Tensor, kind: LayerKind, given: dict[str, Any]) -> Tensor:
        weight, bias = (self.names.get(id(given[name])) for name in ("weight", "bias"))
        if weight is None and bias is None:
            return output
        # a copy: an in-place operation may still change the layer's input after this call
        value = given["input"].detach().clone() if kind.factor is None else kind.factor(func, given).detach()
        if (kind.gradient.__name__, weight, bias) in self.rowless:
            output, value = (_repeated(x, self.rows) for x in (output, value))
        # one number, seen as many: the gradient is as large as the output all the same
        probe = output.new_zeros((), requires_grad=torch.is_grad_enabled()).expand_as(output)
        self.calls.append(LayerCall(kind, weight, bias, value, probe, given))
        self.last = output + probe
        self._version = self.last._version
        return self.last

    def returned(self, tensor: Tensor) -> bool:
        """Whether this is what the last of the noted layers gave, unchanged since."""
        return tensor is self.last and tensor._version == self._version


def _repeated(tensor: Tensor, rows: int) -> Tensor:
    tensor = tensor if tensor.shape[0] == 1 else tensor[None]
    return tensor.expand(rows, *tensor.shape[1:])


def record(
    network: TangentNetwork, inputs: Inputs, rowless: Sequence[tuple] = ()
) -> tuple[Tensor, LayerIORecorder]:
    """One forward pass with a probe at every chosen layer: the outputs [n, C], and what was noted."""
    recorder = LayerIORecorder(network, count(inputs), rowless)
    with recorder, Unfused(SEEN):
        outputs = network.twin_matrix(inputs)
    return outputs, recorder
