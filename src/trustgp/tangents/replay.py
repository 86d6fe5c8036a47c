"""Work on a GPU that is recorded once for each shape of its inputs, and then played again.

A pass through a large network launches thousands of kernels; for few rows that takes far longer than the
kernels do. A recording (a CUDA graph) is launched at once. Only what never asks the GPU for a value can be
recorded: that is looked at before, since a recording that fails leaves torch in a state of its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..data.chunking import gpu_share
from ..data.trees import Inputs, count, leaves, rebuilt, structure

AFTER = 2  # calls of a shape that are made as they are; the next one is recorded
MOST, SHAPES = 8, 4096  # recordings, and shapes of which calls are counted
WASTE = 2  # a recording of at most so many times the rows serves, too, where outputs need not be exact
LAUNCHING = 2  # gain of a recording that is worth a pass of the network beside it, for outputs to the bit
ROUNDING = 1e3  # of features, in eps of the largest
MASKS = (torch.bool, torch.uint8)
ASKING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

Work = Callable[[Inputs], tuple[Tensor, Tensor | None]]
LOGGER = logging.getLogger("trustgp")
_RECORDING = threading.Lock()  # one at a time in a process


class Replay:
    """A function of rows on a GPU, each of which it treats alone: features [n, d], and outputs [n, C]."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._seen: Counter[tuple] = Counter()
        self._taken: dict[tuple, float] = {}  # seconds of the last of them
        self._known: OrderedDict[tuple, _Recording | None] = OrderedDict()  # None: it cannot be recorded

    def __getstate__(self) -> dict:
        return vars(Replay(self._work))  # what was recorded stays where it is

    def __call__(self, inputs: Inputs, size: int, *, exact: bool = True) -> tuple[Tensor, Tensor | None]:
        """What the function gives for inputs on the GPU, of which a row takes `size` bytes on the way.

        Outputs are exact to the bit, or None; unless they need not be: then the rows may be among others.
        """
        key = _key(inputs)
        found = self._known.get(key)
        if found is None:
            if len(self._seen) >= SHAPES:
                self._seen.clear()
            self._seen[key] += 1
            found = None if exact else self._larger(key)
        if found is not None and found.gain > (1 if found.exact or not exact else LAUNCHING):
            features, outputs = found.play(inputs)
            return features, outputs if found.exact or not exact else None
        if (
            self._seen[key] < AFTER
            or key in self._known
            or key[0] * size > gpu_share(leaves(inputs)[0].device)
        ):
            return self._work(inputs)
        if self._seen[key] == AFTER:
            result, self._taken[key] = _timed(partial(self._work, inputs))
            return result
        with _RECORDING:
            most = gpu_share(leaves(inputs)[0].device) // size - key[0]  # rows for which memory may be kept
            while self._known and (len(self._known) >= MOST or self._rows() > most):
                self._known.popitem(last=False)
            recording, result = _record(self._work, inputs, self._taken.get(key, math.inf))
            self._known[key] = recording
        return result

    def _rows(self) -> int:
        """Rows for which memory is kept."""
        return sum(key[0] for key, found in self._known.items() if found)

    def _larger(self, key: tuple) -> _Recording | None:
        """The smallest recording that has room for these rows: few beside many only once or twice."""
        most = WASTE * key[0] if self._seen[key] > AFTER else math.inf
        known = list(self._known.items())  # another thread may add to them
        fit = {k[0]: found for k, found in known if found and k[1:] == key[1:] and key[0] <= k[0] <= most}
        return fit[min(fit)] if fit else None


@dataclass(frozen=True)
class _Recording:
    """A recorded call, with the places of what goes in and comes out."""

    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    result: tuple[Tensor, Tensor | None]
    lock: threading.Lock
    played: torch.cuda.Event
    exact: bool = True  # whether outputs are the same to the bit: some kernels are others in a recording
    gain: float = 0.0  # how many times as long the work itself takes

    def play(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        n, stream = count(inputs), torch.cuda.current_stream()
        with self.lock:
            stream.wait_event(self.played)  # another thread's stream may still read what came out
            for place, given in zip(leaves(self.inputs), leaves(inputs), strict=True):
                place[:n].copy_(given)
            self.graph.replay()
            features, outputs = self.result
            found = features[:n].clone(), None if outputs is None else outputs[:n].clone()
            self.played.record(stream)
        return found


def _key(inputs: Inputs) -> tuple:
    """Rows, and all else on which it depends which kernels are launched."""
    tensors = leaves(inputs)
    kinds = [(tuple(leaf.shape[1:]), leaf.dtype) for leaf in tensors]
    settings = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    return count(inputs), str(tensors[0].device), structure(inputs), *kinds, *settings


def _record(
    work: Work, inputs: Inputs, taken: float
) -> tuple[_Recording | None, tuple[Tensor, Tensor | None]]:
    """The recording, None where there can be none, and what the work itself gives, in so many seconds."""
    with _Watch() as watch:
        result = work(inputs)
    if watch.asked:
        LOGGER.debug("few rows on the GPU are launched kernel by kernel: the network uses %s", watch.asked[0])
        return None, result
    place = rebuilt(inputs, iter([leaf.clone() for leaf in leaves(inputs)]))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            recorded = work(place)
    except RuntimeError:  # OutOfMemoryError is one
        return None, result
    found = _Recording(graph, place, recorded, threading.Lock(), torch.cuda.Event())
    again, played = _timed(partial(found.play, inputs))
    if not _close(result[0], again[0]):
        return None, result
    outputs = result[1]
    exact = outputs is None or torch.equal(outputs, again[1])
    return replace(found, exact=exact, gain=taken / played), result


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the seconds until it is there."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return result, time.perf_counter() - start


def _close(one: Tensor, other: Tensor) -> bool:
    """To rounding, since sums on a GPU may come in any order."""
    return bool(((one - other).abs() <= ROUNDING * torch.finfo(one.dtype).eps * one.abs().max()).all())


class _Watch(TorchDispatchMode):
    """Looks at every operation, also of a backward pass: does one ask for a value, or is not torch's own?"""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []  # such operations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result, name = func(*args, **(kwargs or {})), func._schema.name
        every = [*_tensors(args), *_tensors((result,))]
        copying = name in ("aten::_to_copy", "aten::copy_")
        places = {one.device.type for one in every if copying or one.ndim}
        asking = func.namespace not in ("aten", "prims") or any(tag in func.tags for tag in ASKING)
        if name.startswith("aten::index"):  # by numbers it asks for nothing
            asking = any(one.dtype in MASKS for one in _tensors(args[1:2]))
        if asking or len(places) > 1:
            self.asked.append(name)
        return result


def _tensors(values: Any) -> list[Tensor]:
    """Those among some values, and in lists of them."""
    if isinstance(values, Tensor):
        return [values]
    return [one for value in values for one in _tensors(value)] if isinstance(values, (list, tuple)) else []
