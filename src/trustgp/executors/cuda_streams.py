"""Several tasks in flight on one GPU: a CUDA stream for each thread."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def in_streams(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, with a CUDA stream of its own in each thread that calls it.

    A stream begins after all that was asked of the caller's stream so far. A result is handed over when it is
    there, and its memory is kept until the caller's stream, too, has done with it.
    """
    caller = torch.cuda.current_stream()
    begun = caller.record_event()
    mine, number = threading.local(), itertools.count()

    def work(task: Any) -> Any:
        if not hasattr(mine, "stream"):
            mine.stream = numbered_stream(caller.device, next(number))
            mine.stream.wait_event(begun)
        with torch.cuda.stream(mine.stream):
            result = function(task)
        mine.stream.synchronize()
        for tensor in tensors_in(result):
            if tensor.device == caller.device:
                tensor.record_stream(caller)
        return result

    return work


@functools.cache
def numbered_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """The same stream every time: torch keeps memory aside for each that was ever used."""
    return torch.cuda.Stream(device)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a value: in tuples, lists, mappings, and the attributes of objects."""
    seen: set[int] = set()

    def visit(thing: Any) -> Iterator[Tensor]:
        if id(thing) in seen or isinstance(thing, type):
            return
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, Mapping):
            for item in thing.values():
                yield from visit(item)
        elif isinstance(thing, (tuple, list, set, frozenset)):
            for item in thing:
                yield from visit(item)
        elif hasattr(thing, "__dict__"):
            for item in vars(thing).values():
                yield from visit(item)

    return visit(value)
