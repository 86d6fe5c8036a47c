"""Records the calls of the chosen layers in one forward pass, with their inputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...data.trees import Inputs, count, take
from ..decompose import RECORDABLE
from ..modules import tensors_in
from ..network import TangentNetwork
from .layer_gradients import LAYERS, LayerCall

_HOLDERS = (nn.Parameter, list, tuple)  # may be, or contain, a chosen parameter


class LayerIORecorder(TorchFunctionMode):
    """Records every call of a chosen layer in this thread, and adds a zero probe to its output.

    Nothing is attached to the network. The probe makes the output a new tensor, which protects the recorded
    one from in-place activations. The output of a `rowless` layer (a position embedding) is shared by all
    rows: it is repeated, so that each row has its own gradient.
    """

    def __init__(self, network: TangentNetwork, rows: int = 0, rowless: Sequence[Any] = ()) -> None:
        super().__init__()
        self.names = {id(value): name for name, value in network.chosen.items()}
        self.rows, self.rowless = rows, rowless
        self.calls: list[LayerCall] = []
        self.probes: list[Tensor] = []  # the zero that was added to the output of each call
        self.unhandled: list[str] = []  # parameters that are used outside of layers
        self.last: Tensor | None = None  # the last layer's output
        self._version = 0  # of `last`; in-place operations increment it
        self.hidden: Tensor | None = None  # the input of the network's head, where it has one
        self._head = network.head_weight
        self._plain: set[Any] = set()  # operations without a replacement

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, kind, names = kwargs or {}, LAYERS.get(func), self.names
        if kind is None:
            return self._other(func, args, kwargs)
        given = {"weight": None, "bias": None, **dict(zip(kind.arguments, args, strict=False)), **kwargs}
        if kind.either and len(args) == 2 and id(args[0]) in names:
            given |= zip(kind.arguments, reversed(args), strict=True)
        if self._head is not None and given["weight"] is self._head:
            self.hidden = kind.vectors(given["input"].detach())
        weight, bias = names.get(id(given["weight"])), names.get(id(given["bias"]))
        if (weight is None and bias is None) or not kind.applies(given):
            return self._other(func, args, kwargs)
        output, inputs = self.run(func, args, kwargs, given), given.pop("input", None)
        if id(inputs) in names:
            self.unhandled.append(names[id(inputs)])
        value = inputs if kind.factor is None else kind.factor(func, {**given, "input": inputs})
        repeats = kind.factor is not None and value.shape != output.shape
        value = (value.expand_as(output) if repeats else value).detach()
        if (kind.name, weight, bias) in self.rowless:
            single = (x if x.shape[0] == 1 else x[None] for x in (output, value))
            output, value = (x.expand(self.rows, *x.shape[1:]) for x in single)
        return self.watch(LayerCall(kind, weight, bias, value, given), output)

    def _other(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run any other operation; fused ones are decomposed."""
        if not kwargs and func in self._plain and not any(isinstance(one, _HOLDERS) for one in args):
            return func(*args)
        if (replacement := RECORDABLE.get(getattr(func, "__name__", ""))) is not None:
            with self:  # there may be layers inside it
                result = replacement(*args, **kwargs)
            if result is not None:
                return result
        else:
            self._plain.add(func)
        result, given = func(*args, **kwargs), tensors_in([*args, *kwargs.values()])
        chosen = [self.names[id(one)] for one in given if id(one) in self.names]
        if chosen and any(True for _ in tensors_in(result)):  # a shape or dtype does not use the values
            self.unhandled += chosen
        return result

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], given: dict[str, Any]) -> Tensor:
        """Output of a chosen layer; `given` has all arguments by name."""
        return func(*args, **kwargs)

    def watch(self, call: LayerCall, output: Tensor) -> Tensor:
        """Record a call, and return the output with which the network continues."""
        if not call.kind.elementwise:  # an in-place operation may still change the layer's input
            call = replace(call, input=call.input.clone())
        # one number, expanded: its gradient still has the shape of the output
        probe = output.new_zeros((), requires_grad=torch.is_grad_enabled()).expand_as(output)
        self.calls.append(call)
        self.probes.append(probe)
        self.last = output + probe
        self._version = self.last._version
        return self.last

    def returned(self, tensor: Tensor) -> bool:
        """Whether `tensor` is the last layer's output, unchanged."""
        return tensor is self.last and tensor._version == self._version


class LastLayers(TorchFunctionMode):
    """Keeps, for each number of input dimensions, the input of the last layer with a weight matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[int, tuple[Tensor, bool]] = {}  # with the channels last; whether they were second
        self.last = 0  # number of dimensions of the last of all inputs
        self.weight: Tensor | None = None  # of the layer with that input

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result, kind = func(*args, **(kwargs or {})), LAYERS.get(func)
        if kind is None or not kind.mixes:
            return result
        given: Any = {**dict(zip(kind.arguments, args, strict=False)), **(kwargs or {})}
        inputs, weighted = given.get("input"), isinstance(given.get("weight"), nn.Parameter)
        if weighted and isinstance(inputs, Tensor) and inputs.ndim > 1 and inputs.is_floating_point():
            second = kind.channels == 1
            self.inputs[inputs.ndim] = (inputs.movedim(1, -1) if second else inputs), second
            self.last, self.weight = inputs.ndim, given["weight"]
        return result


@torch.no_grad()
def find_head(network: TangentNetwork, inputs: Inputs) -> str:
    """Name of the last weight matrix in a pass; empty unless its layer has one input per row."""
    names, heads = {id(value): name for name, value in network.float32_module.named_parameters()}, []
    for rows in (2, 3):
        with LastLayers() as layers:
            network.float32_matrix(take(inputs, torch.arange(rows) % count(inputs)))
        whole = layers.last > 0 and len(layers.inputs[layers.last][0]) == rows
        heads.append(names.get(id(layers.weight), "") if whole else "")
    return heads[0] if heads[0] == heads[1] else ""


@torch.no_grad()
def hidden_rows(network: TangentNetwork, inputs: Inputs) -> Tensor:
    """Inputs [n, d] of the network's head for these rows, from a separate forward pass."""
    _, recorder = record(network, inputs)
    assert recorder.hidden is not None, "a network with a head applies it in every pass"
    return recorder.hidden


def with_hidden(outputs: Tensor, hidden: Tensor | None) -> Tensor:
    """Outputs and head inputs in one matrix [n, C + d], so that one tensor is captured and replayed."""
    return outputs if hidden is None else torch.cat([outputs, hidden.to(outputs)], dim=1)


def record(net: TangentNetwork, inputs: Inputs, rowless: Sequence = ()) -> tuple[Tensor, LayerIORecorder]:
    """One forward pass with a probe at every chosen layer: the outputs [n, C], and the recorder."""
    with LayerIORecorder(net, count(inputs), rowless) as recorder:
        return net.float32_matrix(inputs), recorder
