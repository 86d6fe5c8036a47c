"""Bytes that must be shipped to predict."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn


def shipped_bytes(peer: Any) -> int:
    """Bytes of all tensors that a fitted peer predicts with, its networks included.

    The peer's own `nbytes` if it has one, otherwise the bytes of the tensors in `shipped()`, or in its
    fields without that; a storage that several tensors share counts once.
    """
    if isinstance(own := getattr(peer, "nbytes", None), int):
        return own
    views: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
    for tensor in tensors_of(peer.shipped() if hasattr(peer, "shipped") else peer):
        storage, view = tensor.untyped_storage(), (int(tensor.storage_offset()), tensor.numel())
        views.setdefault((storage.data_ptr(), storage.nbytes()), {})[view] = tensor.nbytes
    return sum(min(size, sum(seen.values())) for (_, size), seen in views.items())


def tensors_of(thing: Any) -> Iterator[Tensor]:
    """Every tensor in modules, dataclasses, mappings and sequences, however deep."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, nn.Module):
        yield from thing.parameters()
        yield from thing.buffers()
    elif is_dataclass(thing) and not isinstance(thing, type):
        for one in fields(thing):
            yield from tensors_of(getattr(thing, one.name))
    elif isinstance(thing, (dict, tuple, list)):
        for value in thing.values() if isinstance(thing, dict) else thing:
            yield from tensors_of(value)
