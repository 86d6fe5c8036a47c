"""The user's network, seen as a function of the parameters we chose."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from ..data import Inputs, copied, count, leaves, take, to_device

Choice = str | Sequence[str]
"""Which parameters count: "all" (those that require a gradient), "last" (the last layer), or names."""

# torch keeps the levels of forward-mode differentiation per process, not per thread.
_FORWARD_MODE = threading.Lock()


class TangentNetwork:
    """A private copy of a trained network, with its output as [n, C] and its chosen parameters.

    The copy shares nothing with the user's network, and none of its parameters requires a gradient:
    every derivative is asked for explicitly.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self.module = module
        self.names = tuple(names)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The chosen parameters theta, by name."""
        every = dict(self.module.named_parameters())
        return {name: every[name].detach() for name in self.names}

    @property
    def num_parameters(self) -> int:
        """P."""
        return sum(value.numel() for value in self.parameters.values())

    @property
    def device(self) -> torch.device:
        return next(iter(self.module.parameters())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.parameters.values())).dtype

    def outputs(self, inputs: Inputs) -> Tensor:
        """f(x) as the user's network gives it, shape [n] or [n, C]."""
        return call(self.module, copied(to_device(inputs, self.device)))

    def matrix(self, inputs: Inputs) -> Tensor:
        """f(x), shape [n, C]."""
        return as_matrix(self.outputs(inputs))

    def directional(self, inputs: Inputs, direction: dict[str, Tensor]) -> Tensor:
        """J(x) times a direction in parameter space, by forward-mode differentiation, shape [n, C]."""
        module = self.clone()
        inputs = to_device(inputs, self.device)

        def function(parameters: dict[str, Tensor]) -> Tensor:
            return as_matrix(call_with(module, parameters, copied(inputs)))

        with _FORWARD_MODE:
            return jvp(function, (self.parameters,), (direction,))[1]

    def clone(self) -> nn.Module:
        """The module tree anew, around the same tensors.

        `functional_call` swaps the tensors of the module it is given; with a tree of its own each thread
        may do so at the same time.
        """
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return copy.deepcopy(self.module, {id(tensor): tensor for tensor in tensors})


def call(module: nn.Module, inputs: Inputs) -> Tensor:
    """`module(inputs)`; a tuple is unpacked into arguments, a dict into named ones."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, (tuple, list)):
        return module(*inputs)
    return module(inputs)


def call_with(module: nn.Module, parameters: dict[str, Tensor], inputs: Inputs) -> Tensor:
    """`module(inputs)` with some of its parameters replaced."""
    if isinstance(inputs, dict):
        return functional_call(module, parameters, (), inputs)
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return functional_call(module, parameters, arguments)


def as_matrix(outputs: Any) -> Tensor:
    """Network outputs [n] or [n, C] as [n, C]."""
    if not isinstance(outputs, Tensor) or outputs.ndim not in (1, 2):
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"the network returned {found}; a tensor of shape [n] or [n, C] is needed.")
    return outputs if outputs.ndim == 2 else outputs[:, None]


def choose_parameters(module: nn.Module, choice: Choice) -> list[str]:
    """Names of the parameters that `choice` stands for, in the order of the network."""
    trainable = [name for name, value in module.named_parameters() if value.requires_grad]
    if not trainable:
        raise ValueError(
            "the network has no trainable parameters; the error bar comes from their gradients. "
            "Call requires_grad_(True) on the parameters that were trained."
        )
    if choice == "all":
        return trainable
    if choice == "last":
        owner = trainable[-1].rpartition(".")[0]
        return [name for name in trainable if name.rpartition(".")[0] == owner]
    if isinstance(choice, str):
        raise ValueError(f'parameters="{choice}"; allowed are "all", "last", or a list of names.')
    every = [name for name, _ in module.named_parameters()]
    unknown = sorted(set(choice) - set(every))
    if unknown or not choice:
        raise ValueError(f"parameters {unknown} are not in the network; it has {every}.")
    return [name for name in every if name in set(choice)]


def prepare(network: nn.Module, choice: Choice, device: torch.device | None) -> TangentNetwork:
    """A private copy of `network` on `device`, with the parameters that `choice` stands for."""
    names = choose_parameters(network, choice)
    module = copy.deepcopy(network).requires_grad_(False)
    return TangentNetwork(module.to(device) if device is not None else module, names)


def check_network(network: nn.Module, inputs: Inputs) -> Tensor:
    """Probe the network on a few rows; raise where its error bar would be meaningless.

    Returns:
        Its outputs on these rows, shape [n] or [n, C].
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"network is a {type(network).__name__}; a torch.nn.Module is needed.")
    _check_mode(network)
    n = count(inputs)
    inputs = to_device(inputs, next(network.parameters(), torch.empty(0)).device)
    with torch.no_grad():
        try:
            outputs = call(network, copied(inputs))
        except Exception as error:
            kinds = ", ".join(f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in leaves(inputs))
            raise ValueError(
                f"the network cannot be called on {n} of the training rows ({kinds}): {error}. "
                "Check the shape, dtype and device of the inputs."
            ) from error
        if as_matrix(outputs).shape[0] != n:
            raise ValueError(
                f"the network gave {outputs.shape[0]} outputs for {n} rows; one a row is needed."
            )
        if not bool(torch.isfinite(outputs).all()):
            return outputs  # counted over all rows, and refused, before any expert work
        if not torch.equal(call(network, copied(inputs)), outputs):
            raise ValueError(
                "the network gives other outputs when called again on the same rows; it must be "
                "deterministic: call network.eval() and switch sampling off."
            )
        if n > 1:
            _check_row_independence(network, inputs, as_matrix(outputs))
    return outputs


def _check_mode(network: nn.Module) -> None:
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    for name, module in network.named_modules():
        if isinstance(module, kinds) and module.training:
            raise ValueError(
                f"layer '{name}' ({type(module).__name__}) is in training mode; "
                "call network.eval() before fit."
            )


def _check_row_independence(network: nn.Module, inputs: Inputs, outputs: Tensor) -> None:
    """The first and the last row must not care which rows stand beside them."""
    size = outputs.abs().max().clamp_min(torch.finfo(outputs.dtype).tiny)
    tolerance = 1e3 * torch.finfo(outputs.dtype).eps
    for row in (0, len(outputs) - 1):
        alone = as_matrix(call(network, take(inputs, torch.tensor([row]))))
        if not bool(((alone[0] - outputs[row]).abs() <= tolerance * size).all()):
            raise ValueError(
                "the network's output for a row depends on the other rows of the batch (a batch statistic, "
                "or attention across rows?); each row must be treated alone: call network.eval()."
            )
