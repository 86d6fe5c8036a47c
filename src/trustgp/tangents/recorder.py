"""Watches one forward pass: which chosen layers are called, and with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .copying import tensors_in
from .network import TangentNetwork

_INPUT, _WEIGHTS = ("input",), ("weight", "bias")
_CONV = (*_INPUT, *_WEIGHTS, "stride", "padding")
_NORM = (*_INPUT, "running_mean", "running_var", *_WEIGHTS)

LAYERS: Mapping[Any, tuple[str, tuple[str, ...]]] = {
    # operation: what kind of layer it is, and the names of its arguments
    F.linear: ("linear", (*_INPUT, *_WEIGHTS)),
    torch.addmm: ("matmul", ("bias", *_INPUT, "weight")),
    torch.matmul: ("matmul", (*_INPUT, "weight")),
    torch.Tensor.matmul: ("matmul", (*_INPUT, "weight")),
    torch.Tensor.__matmul__: ("matmul", (*_INPUT, "weight")),
    F.embedding: ("lookup", (*_INPUT, "weight", "padding_idx", "max_norm", "norm_type", "by_freq", "sparse")),
    F.batch_norm: ("product", (*_NORM, "training", "momentum", "eps")),
    F.instance_norm: ("product", (*_NORM, "use_input_stats", "momentum", "eps")),
    F.group_norm: ("product", (*_INPUT, "num_groups", *_WEIGHTS, "eps")),
    F.layer_norm: ("product", (*_INPUT, "normalized_shape", *_WEIGHTS, "eps")),
    F.rms_norm: ("product", (*_INPUT, "normalized_shape", "weight", "eps")),
    F.prelu: ("product", (*_INPUT, "weight")),
    **{conv: ("convolution", (*_CONV, "dilation", "groups")) for conv in (F.conv1d, F.conv2d, F.conv3d)},
    **{
        conv: ("transposed", (*_CONV, "output_padding", "groups", "dilation"))
        for conv in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    },
}


@dataclass(frozen=True)
class LayerCall:
    """One application of a layer.

    Args:
        kind: Which gradient it has: "linear", "matmul", "convolution", "transposed", "lookup" or "product".
        weight_name, bias_name: Its parameters, where they were chosen.
        input: What went in; of a "product" what its weight is multiplied by.
        probe: The zero that was added to what came out.
        given: Its arguments, by name.
    """

    kind: str
    weight_name: str | None
    bias_name: str | None
    input: Tensor
    probe: Tensor
    given: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """The same for every call of a layer."""
        return self.kind, self.weight_name, self.bias_name

    @property
    def layer(self) -> str:
        """Its name."""
        return (self.weight_name or self.bias_name or "").rpartition(".")[0]

    @property
    def reduces(self) -> bool:
        """Whether its gradients are sums over positions: they are made at once, and the signals let go."""
        return self.kind == "product" or self.weight_name is None

    @property
    def weight(self) -> bool:
        """Whether its weight was chosen."""
        return self.weight_name is not None

    @property
    def bias(self) -> bool:
        """Whether its bias was chosen."""
        return self.bias_name is not None


class Recorder(TorchFunctionMode):
    """Notes every call of a chosen layer in this thread, and adds a zero probe to its output.

    Nothing is attached to the network. The probe makes the output a new tensor, so that an activation
    that works in place cannot change what was noted.

    Args:
        network: The network and its chosen parameters.
        rows: How many rows go through it.
        rowless: Layers whose output has no rows, since all share it (a position's embedding): theirs is
            repeated for each row, so that a probe can tell the rows apart.
    """

    def __init__(self, network: TangentNetwork, rows: int = 0, rowless: Sequence[Any] = ()) -> None:
        super().__init__()
        tensors = dict(network.twin.named_parameters())
        self.names = {id(tensors[name]): name for name in network.names}
        self.rows, self.rowless = rows, rowless
        self.calls: list[LayerCall] = []
        self.strays: list[str] = []  # parameters that are used in some other way
        self.last: Tensor | None = None  # what the last of these layers gave
        self._version = 0  # of that: operations in place count it up

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        kind, names = LAYERS.get(func, ("", ()))
        if kind:
            given = {"weight": None, "bias": None, **dict(zip(names, args, strict=False)), **kwargs}
            if _known(kind, given):
                others = [value for name, value in given.items() if name not in ("weight", "bias")]
                self.strays += self._chosen(others)
                return self._note(func, func(*args, **kwargs), kind, given)
        result = func(*args, **kwargs)
        if any(True for _ in tensors_in(result)):  # a shape or a dtype is no use of the values
            self.strays += self._chosen([*args, *kwargs.values()])
        return result

    def _chosen(self, values: Any) -> list[str]:
        return [self.names[id(tensor)] for tensor in tensors_in(values) if id(tensor) in self.names]

    def _note(self, func: Any, output: Tensor, kind: str, given: dict[str, Any]) -> Tensor:
        weight, bias = (self.names.get(id(given[name])) for name in ("weight", "bias"))
        if weight is None and bias is None:
            return output
        # a copy: an in-place operation may still change the layer's input after this call
        value = given["input"].detach().clone() if kind != "product" else _multiplied(func, given).detach()
        if (kind, weight, bias) in self.rowless:
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


def _known(kind: str, given: Mapping[str, Any]) -> bool:
    """Whether this call has the gradient of its kind."""
    if kind == "matmul":
        weight, scales = given["weight"], (given.get("beta", 1), given.get("alpha", 1))
        return isinstance(weight, Tensor) and weight.ndim == 2 and scales == (1, 1)
    if kind == "lookup":
        return not any(given.get(n) for n in ("max_norm", "by_freq", "scale_grad_by_freq", "sparse"))
    return kind not in ("convolution", "transposed") or given["input"].ndim == given["weight"].ndim


def _multiplied(func: Any, given: dict[str, Any]) -> Tensor:
    """x in output = weight * x + ..."""
    if func is F.prelu:
        return given["input"].clamp(max=0)
    bare = {name: None if name in _WEIGHTS else value for name, value in given.items()}
    if func is F.rms_norm:
        del bare["bias"]
    return func(**bare)


def _repeated(tensor: Tensor, rows: int) -> Tensor:
    tensor = tensor if tensor.shape[0] == 1 else tensor[None]
    return tensor.expand(rows, *tensor.shape[1:])
