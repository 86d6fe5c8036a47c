"""Inputs as nested tuples and dicts of tensors."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from .frames import frame_tensor, is_frame, precision_of

Inputs = Any  # a tensor, or a tuple or dict of tensors; every leaf has the rows as its first dimension


def map_tensors(function: Callable[[Any], Tensor], inputs: Inputs, kind: Any = Tensor) -> Inputs:
    """Apply `function` to every leaf of type `kind` in `inputs`, and keep the structure."""
    if type(inputs) is kind:
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {key: map_tensors(function, value, kind) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(map_tensors(function, value, kind) for value in inputs)
    if isinstance(inputs, kind):
        return function(inputs)
    advice = "pass a tensor, an array or a data frame, or a tuple or dict of them"
    raise TypeError(f"inputs hold a {type(inputs).__name__}; {advice}.")


def leaves(inputs: Inputs, kind: Any = Tensor) -> list[Tensor]:
    """Leaves of type `kind` in `inputs`; those of a dict by sorted keys, as in `structure`."""
    if isinstance(inputs, dict):
        return [leaf for key in sorted(inputs) for leaf in leaves(inputs[key], kind)]
    if isinstance(inputs, (tuple, list)):
        return [leaf for value in inputs for leaf in leaves(value, kind)]
    return [inputs if type(inputs) is kind else map_tensors(lambda leaf: leaf, inputs, kind)]


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


def kinds(inputs: Inputs) -> list[str]:
    """Type and shape of a row of each leaf, such as "float32[3]"."""
    return [f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape[1:])}" for leaf in leaves(inputs)]


def check_dimensions(inputs: Inputs, wanted: Sequence[str], name: str) -> None:
    """Raise ValueError unless leaves have as many dimensions as in `wanted` (`kinds`); sizes may differ."""
    for leaf, kind in zip(leaves(inputs), wanted, strict=False):
        sizes = kind.partition("[")[2].rstrip("]")
        if leaf.ndim != 1 + len(sizes.split(", ") if sizes else []):
            needed, single = f"[n, {sizes}]" if sizes else "[n]", str(list(leaf.shape)) == f"[{sizes}]"
            advice = "For a single row write inputs[None]." if single else "Reshape it."
            what = f"{name} hold a tensor of shape {list(leaf.shape)}; the model was fitted on rows of {kind}"
            raise ValueError(f"{what}: {needed} is needed. {advice}")


def take(inputs: Inputs, indices: Tensor) -> Inputs:
    """Rows `indices` of every leaf."""
    return map_tensors(lambda leaf: leaf[indices.to(leaf.device)], inputs)


def copied(inputs: Inputs) -> Inputs:
    """Copy of `inputs`: a network that works in place must not change the user's tensors."""
    return map_tensors(torch.clone, inputs)


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """`inputs` with every leaf on `device`."""
    return map_tensors(lambda leaf: leaf.to(device), inputs)


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """Parts of the same structure, concatenated along the rows."""
    return rebuilt(parts[0], (torch.cat(group) for group in zip(*map(leaves, parts), strict=True)))


@runtime_checkable
class ArrayLike(Protocol):
    """Objects that NumPy can read: arrays, data frames, series."""

    def __array__(self) -> np.ndarray: ...


def as_inputs(inputs: Inputs, network: nn.Module | None = None) -> Inputs:
    """`inputs` with arrays and frames converted to tensors, in the precision of `network` if it is given."""
    return map_tensors(lambda leaf: _as_tensor(leaf, network), inputs, Tensor | np.ndarray | ArrayLike)


def _as_tensor(leaf: Any, network: nn.Module | None) -> Tensor:
    """Tensor of a leaf; it shares an array's memory. Only layouts that torch does not support are copied, and
    real numbers in another precision than the network's, unless a file is mapped."""
    if isinstance(leaf, Tensor):
        return _plain_tensor(leaf)
    if not isinstance(leaf, np.ndarray):
        return frame_tensor(leaf, network) if is_frame(leaf) else _as_tensor(np.asarray(leaf), network)
    if isinstance(leaf, np.ma.MaskedArray):
        leaf = np.ma.filled(leaf.astype(np.float64), np.nan) if leaf.mask.any() else leaf.data
    if leaf.dtype.kind not in "biufc":
        advice = "array.astype('float32'); of labels numpy.unique(labels, return_inverse=True)[1]"
        raise TypeError(f"there is an array of {leaf.dtype}; numbers are needed: {advice}.")
    if any(stride < 0 or stride % leaf.itemsize for stride in leaf.strides) or not leaf.dtype.isnative:
        leaf = np.array(leaf, dtype=leaf.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        tensor = torch.from_numpy(leaf)  # a file mapped for reading; nothing here writes to inputs
    real = network is not None and tensor.is_floating_point() and type(leaf) is np.ndarray  # no mapped file
    return tensor.to(precision_of(network)) if real and network is not None else tensor


def _plain_tensor(tensor: Tensor) -> Tensor:
    """Detached tensor; a ValueError if it is nested, sparse or on the meta device."""
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ValueError(f"a tensor is {kind}; a dense one is needed: tensor.to_dense(), or padded rows.")
    if tensor.is_meta:
        raise ValueError("a tensor is on the meta device, where it has no numbers; make it on a real one.")
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        tensor = tensor.clone()  # from torch.inference_mode(); such a tensor can have no gradients
    return tensor.detach()


def raw_bytes(tensor: Tensor) -> np.ndarray:
    """Bytes of the numbers of a tensor, in their order."""
    plain = tensor.detach().cpu().contiguous()
    # a single number counts as contiguous whatever its stride, but can then not be seen as bytes
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()


def rebuilt(like: Inputs, tensors: Iterator[Any]) -> Inputs:
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
    """Copy of `state` with `fn` applied to every tensor."""
    if isinstance(state, Tensor):
        return fn(state)
    if isinstance(state, tuple):
        return tuple(moved(item, fn) for item in state)
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{f.name: moved(getattr(state, f.name), fn) for f in fields(state)})
    return state
