"""Private copies of a user's network, whatever it is wrapped in and whatever hangs on it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn


def clone_module(module: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """A copy that shares nothing with the module but the tensors in `shared`.

    A tensor that a forward pass has left on the module (a cached activation, the weight of an old-style
    `weight_norm` or of a pruned layer) is part of a graph, which cannot be copied: its values are.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for part in module.modules():
        for tensor in tensors_in(list(vars(part).values())):
            if not tensor.is_leaf:
                memo.setdefault(id(tensor), tensor.detach().clone())
    return copy.deepcopy(module, memo)


def unwrap(network: Any) -> Any:
    """The module inside `torch.compile`, DataParallel or DistributedDataParallel; others as they are."""
    dynamo = sys.modules.get("torch._dynamo")  # it takes seconds to import, and who has not, compiles nothing
    while True:
        if dynamo is not None and isinstance(network, dynamo.OptimizedModule):
            network = network._orig_mod
        elif isinstance(network, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            network = network.module
        else:
            return network


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)
