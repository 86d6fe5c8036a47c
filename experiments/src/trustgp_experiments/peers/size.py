"""What must be shipped to predict, in bytes."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn


def shipped_bytes(peer: Any) -> int:
    """Bytes of all tensors that a fitted peer predicts with, its networks included.

    Those of its `nbytes`, where it says so itself, or of what its `shipped()` gives, or of its fields; a
    storage that several tensors look at counts once.
    """
    own = getattr(peer, "nbytes", None)
    if isinstance(own, int):
        return own
    shipped: Any = getattr(peer, "shipped", None)
    views: dict[int, dict[tuple[int, int], int]] = {}
    sizes: dict[int, int] = {}
    for tensor in tensors_of(peer if shipped is None else shipped()):
        storage = tensor.untyped_storage()
        place, seen = storage.data_ptr(), (int(tensor.storage_offset()), tensor.numel())
        sizes[place] = storage.nbytes()
        views.setdefault(place, {})[seen] = tensor.numel() * tensor.element_size()
    return sum(min(sizes[place], sum(seen.values())) for place, seen in views.items())


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
