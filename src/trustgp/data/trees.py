"""Inputs as nested tuples and dicts of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

Inputs = Any
"""A tensor, or a tuple or dict of tensors; every leaf has the rows as its first dimension."""


def map_tensors(function: Callable[[Any], Tensor], inputs: Inputs, kind: Any = Tensor) -> Inputs:
    """`function` of every tensor in `inputs`, or of all that is of this kind, the structure kept."""
    if isinstance(inputs, dict):
        return {key: map_tensors(function, value, kind) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(map_tensors(function, value, kind) for value in inputs)
    if isinstance(inputs, kind):
        return function(inputs)
    raise TypeError(f"inputs hold a {type(inputs).__name__}; pass a tensor, or a tuple or dict of tensors.")


def leaves(inputs: Inputs) -> list[Tensor]:
    """The tensors in `inputs`, in a fixed order: those of a dict by their keys, as `structure` names them."""
    if isinstance(inputs, dict):
        return [leaf for key in sorted(inputs) for leaf in leaves(inputs[key])]
    if isinstance(inputs, (tuple, list)):
        return [leaf for value in inputs for leaf in leaves(value)]
    return [map_tensors(lambda leaf: leaf, inputs)]


def structure(inputs: Inputs) -> str:
    """The nesting of `inputs` as text: "tensor", "(tensor,tensor)", "{a:tensor}"."""
    if isinstance(inputs, dict):
        return "{" + ",".join(f"{key}:{structure(inputs[key])}" for key in sorted(inputs)) + "}"
    if isinstance(inputs, (tuple, list)):
        return "(" + ",".join(structure(value) for value in inputs) + ")"
    return "tensor"


def count(inputs: Inputs) -> int:
    """The number of rows n, the same for every leaf."""
    tensors = leaves(inputs)
    if not tensors or any(leaf.ndim == 0 for leaf in tensors):
        raise ValueError("inputs hold no rows; every tensor needs the rows as its first dimension.")
    sizes = {leaf.shape[0] for leaf in tensors}
    if len(sizes) > 1:
        raise ValueError(f"inputs disagree on the number of rows: {sorted(sizes)}.")
    return sizes.pop()


def take(inputs: Inputs, indices: Tensor) -> Inputs:
    """Rows `indices` of every leaf."""
    return map_tensors(lambda leaf: leaf[indices.to(leaf.device)], inputs)


def copied(inputs: Inputs) -> Inputs:
    """`inputs` anew: a network that works in place must not change the user's tensors."""
    return map_tensors(torch.clone, inputs)


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """`inputs` with every leaf on `device`."""
    return map_tensors(lambda leaf: leaf.to(device), inputs)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """Parts of the same structure, one after another."""
    return rebuilt(parts[0], (torch.cat(group) for group in zip(*map(leaves, parts), strict=True)))


def as_inputs(inputs: Inputs) -> Inputs:
    """`inputs` with NumPy arrays taken as tensors."""
    return map_tensors(_as_tensor, inputs, Tensor | np.ndarray)


def _as_tensor(leaf: Tensor | np.ndarray) -> Tensor:
    """An array's own memory, wherever it lies; only strides that torch does not know are laid out anew."""
    if isinstance(leaf, Tensor):
        return leaf.detach()
    if any(stride < 0 for stride in leaf.strides):
        leaf = np.ascontiguousarray(leaf)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        return torch.from_numpy(leaf)  # a file mapped for reading; nothing here writes to inputs


def rebuilt(like: Inputs, tensors: Iterator[Tensor]) -> Inputs:
    """The structure of `like` with other tensors, in the order of `leaves`."""
    if isinstance(like, dict):
        return {key: rebuilt(like[key], tensors) for key in sorted(like)}
    if isinstance(like, (tuple, list)):
        return tuple(rebuilt(value, tensors) for value in like)
    return next(tensors)


def state_tensors(state: Any) -> list[Tensor]:
    """Every tensor in nested frozen dataclasses, tuples and lists."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, (tuple, list)):
        return [tensor for item in state for tensor in state_tensors(item)]
    if is_dataclass(state) and not isinstance(state, type):
        return [t for field in fields(state) for t in state_tensors(getattr(state, field.name))]
    return []


def moved(state: Any, fn) -> Any:
    """The same state with every tensor passed through `fn`."""
    if isinstance(state, Tensor):
        return fn(state)
    if isinstance(state, tuple):
        return tuple(moved(item, fn) for item in state)
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{f.name: moved(getattr(state, f.name), fn) for f in fields(state)})
    return state
