"""Is this network one whose error bar would mean something? Probed on a few rows, before any work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..data.trees import Inputs, copied, count, leaves, take, to_device
from .network import TangentNetwork, as_matrix, call


def check_network(network: nn.Module, inputs: Inputs) -> Tensor:
    """Probe the network on a few rows; raise where its error bar would be meaningless.

    Returns:
        Its outputs on these rows, shape [n] or [n, C].
    """
    check_kind(network)
    check_mode(network)
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
            _check_row_independence(network, inputs)
    return outputs


def check_kind(network: nn.Module) -> None:
    """Raise for a network that cannot be copied, or not be looked into."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"network is a {type(network).__name__}; a torch.nn.Module is needed.")
    for name, module in network.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"layer '{name}'" if name else "the network"
            raise ValueError(
                f"{what} is a torch.jit module, whose gradients cannot be taken row by row; pass the "
                "torch.nn.Module that it was scripted or traced from."
            )
    for name, value in network.named_parameters():
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"parameter '{name}' has no shape yet (a lazy layer); call the network once, then train it."
            )


def check_mode(network: nn.Module) -> None:
    """Raise where a layer is in training mode that then acts in another way."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    for name, module in network.named_modules():
        if isinstance(module, kinds) and module.training:
            raise ValueError(
                f"layer '{name}' ({type(module).__name__}) is in training mode; "
                "call network.eval() before fit."
            )


def _check_row_independence(network: nn.Module, inputs: Inputs) -> None:
    """The first and the last row must not care which rows stand beside them."""
    seen = TangentNetwork(network, ())  # half precision would hide it
    inputs = seen.ready(inputs)
    outputs = as_matrix(call(seen.twin, copied(inputs)))
    size = outputs.abs().max().clamp_min(torch.finfo(outputs.dtype).tiny)
    tolerance = 1e3 * torch.finfo(outputs.dtype).eps
    for row in (0, len(outputs) - 1):
        alone = as_matrix(call(seen.twin, take(inputs, torch.tensor([row]))))
        if not bool(((alone[0] - outputs[row]).abs() <= tolerance * size).all()):
            raise ValueError(
                "the network's output for a row depends on the other rows of the batch (a batch statistic, "
                "or attention across rows?); each row must be treated alone: call network.eval()."
            )
