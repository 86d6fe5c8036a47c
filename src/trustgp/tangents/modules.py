"""The user's network: checked, unwrapped and copied."""

import copy
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .perceptron import is_perceptron, torch_perceptron


def clone_module(module: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """Copy of a module that shares nothing with it but the tensors in `shared`.

    Only the values of tensors with a graph (a cached activation, the weight of an old-style `weight_norm` or
    of a pruned layer) are copied, since a graph cannot be.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for part in module.modules():
        for tensor in tensors_in(list(vars(part).values())):
            if not tensor.is_leaf:
                memo.setdefault(id(tensor), tensor.detach().clone())
    try:
        return copy.deepcopy(module, memo)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        advice = "keep such attributes outside of the module, or give their class a __deepcopy__"
        raise ValueError(f"the network cannot be copied{_uncopied(module)}: {error}; {advice}.") from error


def _uncopied(module: nn.Module) -> str:
    """Description, for an error message, of the attribute of a layer that cannot be copied."""
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                return f", because of '{key}' (a {type(value).__name__}) in '{name or type(part).__name__}'"
    return ""


def unwrap(network: Any) -> Any:
    """Module inside `torch.compile`, DataParallel or DistributedDataParallel, or made from a perceptron of
    scikit-learn; any other object unchanged."""
    dynamo = sys.modules.get("torch._dynamo")  # slow to import; not there unless it is in use
    while True:
        if dynamo is not None and isinstance(network, dynamo.OptimizedModule):
            network = network._orig_mod
        elif isinstance(network, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            network = network.module
        else:
            return torch_perceptron(network) if is_perceptron(network) else network


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from tensors_in(value)


def check_kind(network: Any, called: str = "network") -> None:
    """Raise for objects that are not modules, and for scripted, lazy and meta modules."""
    if not isinstance(network, nn.Module):
        what = f"the class {network.__name__}" if isinstance(network, type) else f"a {type(network).__name__}"
        needed = "a torch.nn.Module is needed, with the trained parameters in it"
        hint = " (network.load_state_dict(torch.load(path)))" if isinstance(network, (str, Path)) else ""
        if isinstance(network, (dict, Iterator)):
            hint = ": of weights network.load_state_dict(weights), of several networks a list of them"
        raise TypeError(f"{called} is {what}; {needed}{hint}.")
    for name, module in network.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"layer '{name}'" if name else "the network"
            raise ValueError(f"{what} is a torch.jit module; pass the torch.nn.Module that it was made from.")
    for name, value in (*network.named_parameters(), *network.named_buffers()):
        if nn.parameter.is_lazy(value):
            raise ValueError(f"parameter '{name}' has no shape yet (a lazy layer); train the network first.")
        if value.is_meta:
            raise ValueError(f"parameter '{name}' is on the meta device; load the trained weights.")


def check_mode(network: nn.Module) -> None:
    """Raise where a dropout or batch norm layer is in training mode."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    for name, module in network.named_modules():
        if isinstance(module, kinds) and module.training:
            what = f"layer '{name}' ({type(module).__name__})"
            raise ValueError(f"{what} is in training mode; call network.eval() before fit.")
