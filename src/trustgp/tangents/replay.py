"""Computations on a GPU that are captured as CUDA graphs, one for each shape of the inputs, and replayed.

A pass through a large network launches thousands of kernels; for few rows the launches take far longer than
the kernels. Computations that read values back from the GPU cannot be captured: this is checked first, since
a failed capture leaves torch in a bad state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..data.chunking import gpu_share
from ..data.trees import Inputs, count, leaves, rebuilt, structure, take
from .modules import tensors_in

CALLS_BEFORE = 2  # calls of a shape before it is captured
MAX_RECORDINGS, MAX_SHAPES = 8, 4096  # recordings, and shapes whose calls are counted
MIN_LAUNCHES = 0.8  # share of a call's time in which kernels are launched: else the GPU is the slower part
MIN_GAIN = 2  # speedup needed if outputs are not exact, since these then take another pass
MAX_ROUNDING_EPS = 1e3  # of features, in eps of the largest
MASKS = (torch.bool, torch.uint8)
SYNCHRONISING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

LOGGER = logging.getLogger("trustgp")
_RECORDING = threading.Lock()  # one capture at a time in a process
_OUTER = threading.local()  # whether a call is inside one that is recorded as a whole


class Computed(NamedTuple):
    """Result of a call; rows are the first dimension of all tensors."""

    tensors: tuple[Tensor, ...]
    outputs: Tensor | None  # of the network, which must be exact; None: unknown
    layout: Any = None  # whatever else describes the tensors


Work = Callable[[Inputs], Computed]


class Replay:
    """A function of independent rows on a GPU, recorded and replayed. A call with n rows uses a recording for
    n rows if n is a power of two or recurs in successive calls, else one for the next power of two."""

    def __init__(
        self, work: Work, tolerance: float | None = None, min_launches: float = MIN_LAUNCHES
    ) -> None:
        self._work, self._tolerance = work, tolerance  # relative to the largest entries; None: rounding
        self._min_launches = min_launches
        self._calls: Counter[tuple] = Counter()
        self._run: tuple[tuple, int] = ((), 0)  # the last key, and how often it came in succession
        self._steady: set[tuple] = set()  # keys of other numbers of rows than powers of two
        self._seconds: dict[tuple, float] = {}  # of a call that is worth a recording
        self._recordings: OrderedDict[tuple, _Recording | None] = OrderedDict()  # None: cannot be captured
        self._shared = _Shared()

    def __reduce__(self) -> Any:
        return Replay, (self._work, self._tolerance, self._min_launches)  # recordings are not pickled

    def __call__(self, inputs: Inputs, size: int, *, exact: bool = True) -> Computed:
        """Value of the function for inputs on the GPU, with `size` bytes of working memory per row; with
        `exact`, outputs are exact to the bit, or None."""
        if getattr(_OUTER, "active", False):
            return self._work(inputs)
        n, key = count(inputs), self._padded_key(_key(inputs))
        recording = self._recordings.get(key)
        if recording is not None:
            same = not exact or (recording.exact and n == key[0])
            if recording.gain > (1 if same else MIN_GAIN):
                result = recording.play(inputs)
                return result if same else result._replace(outputs=None)
        if len(self._calls) >= MAX_SHAPES:
            self._calls.clear()
            self._seconds.clear()
        self._calls[key] += 1
        calls, memory = self._calls[key], gpu_share(leaves(inputs)[0].device)
        if calls < CALLS_BEFORE or key in self._recordings or key[0] * size > memory:
            return self._work(inputs)
        _OUTER.active = True
        try:
            if key in self._seconds:
                return self._record(key, inputs, size, memory)
            if calls & (calls - 1):
                return self._work(inputs)
            result, seconds, launches = _timed(partial(self._work, inputs))
            if launches >= self._min_launches * seconds:  # else the GPU is busy: perhaps with other work
                self._seconds[key] = seconds
            return result
        finally:
            _OUTER.active = False

    def _padded_key(self, key: tuple) -> tuple:
        """Key of the recording for these rows; also counts successive calls."""
        n, (last, times) = key[0], self._run
        self._run = key, times + 1 if key == last else 1
        if n & (n - 1) and key not in self._steady:
            if self._run[1] <= CALLS_BEFORE or len(self._steady) >= MAX_RECORDINGS:
                return 1 << n.bit_length(), *key[1:]
            self._steady.add(key)
        return key

    def _record(self, key: tuple, inputs: Inputs, size: int, memory: int) -> Computed:
        rows = torch.arange(key[0]) % (n := count(inputs))
        given = inputs if n == key[0] else take(inputs, rows)
        with _RECORDING:
            sizes = [k[0] if one else 0 for k, one in self._recordings.items()]
            while sizes and (len(sizes) >= 2 * MAX_RECORDINGS or sum(sizes) + key[0] > memory // size):
                self._recordings.popitem(last=False)
                sizes.pop(0)
            if not any(self._recordings.values()):
                self._shared.pool = None  # memory is released with the last recording
            seconds = self._seconds[key]
            recording, result = _record(self._work, given, seconds, self._tolerance, self._shared)
            self._recordings[key] = recording
        if n == key[0]:
            return result
        return Computed(tuple(one[:n] for one in result.tensors), None, result.layout)


class Branch:
    """Context for computations whose results are not used before `join`: in a capture they become a branch
    of their own."""

    def __init__(self, device: torch.device) -> None:
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._side = torch.cuda.Stream() if capturing else None
        self._within = nullcontext() if self._side is None else torch.cuda.stream(self._side)

    def __enter__(self) -> Branch:
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
        self._within.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._within.__exit__(*error)

    def join(self) -> None:
        """Wait for the branch, so that its results may be used from now on."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)


class _Shared:
    """State shared by the recordings of one function, which are played one after another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pool: Any = None  # memory pool
        self.played: torch.cuda.Event | None = None


@dataclass(frozen=True)
class _Recording:
    """A captured call, with its input and output buffers."""

    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    result: Computed
    shared: _Shared
    exact: bool = True  # whether outputs are equal to the bit: a capture may use other kernels
    gain: float = 0.0  # speedup

    def play(self, inputs: Inputs) -> Computed:
        n, stream, shared = count(inputs), torch.cuda.current_stream(), self.shared
        with shared.lock:
            if shared.played is not None:  # another thread's stream may still read the results
                stream.wait_event(shared.played)
            for buffer, given in zip(leaves(self.inputs), leaves(inputs), strict=True):
                (buffer if n == len(buffer) else buffer[:n]).copy_(given)
            self.graph.replay()
            tensors, outputs, layout = self.result
            copies = tuple(one[:n].clone() for one in tensors)
            result = Computed(copies, None if outputs is None else outputs[:n].clone(), layout)
            shared.played = shared.played or torch.cuda.Event()
            shared.played.record(stream)
        return result


def _key(inputs: Inputs) -> tuple:
    """Key of a recording: the number of rows, and everything else that selects the kernels."""
    tensors = leaves(inputs)
    kinds = [(tuple(leaf.shape[1:]), leaf.dtype) for leaf in tensors]
    settings = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    return count(inputs), str(tensors[0].device), structure(inputs), *kinds, *settings


def _record(
    work: Work, inputs: Inputs, taken: float, tolerance: float | None, shared: _Shared
) -> tuple[_Recording | None, Computed]:
    """Recording, or None if capture fails, and the result of the work, which took `taken` seconds before."""
    work(inputs)  # one-time comparisons for a new shape, also of padded rows, read values back
    with _Watch() as watch:
        result = work(inputs)
    if watch.operations:
        LOGGER.info("no CUDA graph of calls with few rows: the network uses %s", watch.operations[0])
        return None, result
    buffers = rebuilt(inputs, iter([leaf.clone() for leaf in leaves(inputs)]))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    shared.pool = shared.pool or torch.cuda.graph_pool_handle()
    options: Any = {"pool": shared.pool, "stream": stream, "capture_error_mode": "thread_local"}
    try:
        with shared.lock, torch.cuda.graph(graph, **options):
            recorded = work(buffers)
    except RuntimeError as error:  # OutOfMemoryError is one
        LOGGER.info("no CUDA graph of calls with %d rows: %s", count(inputs), error)
        shared.pool = None  # it is not usable after an error
        return None, result
    recording = _Recording(graph, buffers, recorded._replace(layout=result.layout), shared)
    again, played, _ = _timed(partial(recording.play, inputs))
    if not all(_close(*pair, tolerance) for pair in zip(result.tensors, again.tensors, strict=True)):
        LOGGER.info("no CUDA graph of calls with %d rows: it computes something else", count(inputs))
        return None, result
    same = result.outputs is None or torch.equal(result.outputs, again.outputs)
    return replace(recording, exact=same, gain=taken / played), result


def _close(one: Tensor, other: Tensor, tolerance: float | None) -> bool:
    """Whether both are the same up to rounding: the order of sums on a GPU is not fixed."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    allowed = MAX_ROUNDING_EPS * torch.finfo(one.dtype).eps * one.abs().max()
    if tolerance is not None:  # columns have units of their own
        allowed = tolerance * one.abs().amax(dim=0)
    same = (one == other) | (one.isnan() & other.isnan())
    return bool((same | ((one - other).abs() <= allowed)).all())


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result of the work, the seconds it took, and the seconds until all kernels were launched."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    launched = time.perf_counter() - start
    torch.cuda.synchronize()
    return result, time.perf_counter() - start, launched


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
