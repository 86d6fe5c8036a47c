"""Computations on a GPU that are captured as CUDA graphs, one for each shape of the inputs, and replayed.

A pass through a large network launches thousands of kernels; for few rows the launches take far longer than
the kernels. Computations that read values back from the GPU cannot be captured: that is checked before, since
a failed capture leaves torch in a bad state.
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
from .modules import tensors_in

CALLS_BEFORE = 2  # calls of a shape before it is captured
MAX_RECORDINGS, MAX_SHAPES = 8, 4096  # recordings, and shapes whose calls are counted
MAX_PADDING = 2  # where outputs need not be exact, a recording of up to twice the rows serves, too
MIN_GAIN = 2  # of a recording whose outputs are not exact, so that these take another pass
MAX_ROUNDING_EPS = 1e3  # of features, in eps of the largest
MASKS = (torch.bool, torch.uint8)
SYNCHRONISING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

Result = tuple[Tensor, Tensor | None]
Work = Callable[[Inputs], Result]
LOGGER = logging.getLogger("trustgp")
_RECORDING = threading.Lock()  # one capture at a time in a process


class Replay:
    """A function of independent rows on a GPU: features [n, d] and outputs [n, C]."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._calls: Counter[tuple] = Counter()
        self._seconds: dict[tuple, float] = {}  # of the last call
        self._recordings: OrderedDict[tuple, _Recording | None] = OrderedDict()  # None: cannot be captured

    def __getstate__(self) -> dict:
        return vars(Replay(self._work))  # recordings are not pickled

    def __call__(self, inputs: Inputs, size: int, *, exact: bool = True) -> Result:
        """The function of inputs on the GPU, with `size` bytes of working memory a row; with `exact`, outputs
        are exact to the bit, or None; else rows may be padded."""
        key = _key(inputs)
        recording = self._recordings.get(key)
        if recording is None:
            if len(self._calls) >= MAX_SHAPES:
                self._calls.clear()
            self._calls[key] += 1
            recording = None if exact else self._larger(key)
        if recording is not None and recording.gain > (1 if recording.exact or not exact else MIN_GAIN):
            features, outputs = recording.play(inputs)
            return features, outputs if recording.exact or not exact else None
        calls, memory = self._calls[key], gpu_share(leaves(inputs)[0].device)
        if calls < CALLS_BEFORE or key in self._recordings or key[0] * size > memory:
            return self._work(inputs)
        if calls == CALLS_BEFORE:
            result, self._seconds[key] = _timed(partial(self._work, inputs))
            return result
        with _RECORDING:
            sizes = [k[0] if one else 0 for k, one in self._recordings.items()]
            while sizes and (len(sizes) >= MAX_RECORDINGS or sum(sizes) + key[0] > memory // size):
                self._recordings.popitem(last=False)
                sizes.pop(0)
            recording, result = _record(self._work, inputs, self._seconds.get(key, math.inf))
            self._recordings[key] = recording
        return result

    def _larger(self, key: tuple) -> _Recording | None:
        """The smallest recording with at least these rows; one of many more rows only in the first calls."""
        limit = MAX_PADDING * key[0] if self._calls[key] > CALLS_BEFORE else math.inf
        pairs = list(self._recordings.items())  # another thread may add to them
        fit = {k[0]: one for k, one in pairs if one and k[1:] == key[1:] and key[0] <= k[0] <= limit}
        return fit[min(fit)] if fit else None


@dataclass(frozen=True)
class _Recording:
    """A captured call, with its input and output buffers."""

    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    result: tuple[Tensor, Tensor | None]
    lock: threading.Lock
    played: torch.cuda.Event
    exact: bool = True  # whether outputs are the same to the bit: a capture may use other kernels
    gain: float = 0.0  # speedup

    def play(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        n, stream = count(inputs), torch.cuda.current_stream()
        with self.lock:
            stream.wait_event(self.played)  # another thread's stream may still read the results
            for buffer, given in zip(leaves(self.inputs), leaves(inputs), strict=True):
                buffer[:n].copy_(given)
            self.graph.replay()
            features, outputs = self.result
            result = features[:n].clone(), None if outputs is None else outputs[:n].clone()
            self.played.record(stream)
        return result


def _key(inputs: Inputs) -> tuple:
    """The rows, and all else that selects the kernels."""
    tensors = leaves(inputs)
    kinds = [(tuple(leaf.shape[1:]), leaf.dtype) for leaf in tensors]
    settings = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    return count(inputs), str(tensors[0].device), structure(inputs), *kinds, *settings


def _record(work: Work, inputs: Inputs, taken: float) -> tuple[_Recording | None, Result]:
    """The recording, or None where capture fails, and the result of the work, which took so many seconds."""
    with _Watch() as watch:
        result = work(inputs)
    if watch.operations:
        LOGGER.debug("no CUDA graph of calls with few rows: the network uses %s", watch.operations[0])
        return None, result
    buffers = rebuilt(inputs, iter([leaf.clone() for leaf in leaves(inputs)]))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            recorded = work(buffers)
    except RuntimeError:  # OutOfMemoryError is one
        return None, result
    recording = _Recording(graph, buffers, recorded, threading.Lock(), torch.cuda.Event())
    again, played = _timed(partial(recording.play, inputs))
    allowed = MAX_ROUNDING_EPS * torch.finfo(result[0].dtype).eps * result[0].abs().max()
    if not bool(((result[0] - again[0]).abs() <= allowed).all()):  # the order of sums on a GPU is not fixed
        return None, result
    exact = result[1] is None or torch.equal(result[1], again[1])
    return replace(recording, exact=exact, gain=taken / played), result


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the seconds it took."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return result, time.perf_counter() - start


class _Watch(TorchDispatchMode):
    """Lists the operations, also of a backward pass, that read values back or are not torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result, name = func(*args, **(kwargs or {})), func._schema.name
        copying = name in ("aten::_to_copy", "aten::copy_")
        devices = {one.device.type for one in tensors_in([args, result]) if copying or one.ndim}
        synchronises = func.namespace not in ("aten", "prims") or any(t in func.tags for t in SYNCHRONISING)
        if name.startswith("aten::index"):  # not with integer indices
            synchronises = any(one.dtype in MASKS for one in tensors_in(args[1:2]))
        if synchronises or len(devices) > 1:
            self.operations.append(name)
        return result
