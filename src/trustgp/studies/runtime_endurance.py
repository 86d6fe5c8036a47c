"""Does a call stay as quick, as small and the same, however often it is made? Line 18 of RELIABILITY.md."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .peaks import status_bytes
from .runtime_timing import quantile

SPREAD = 3.0  # p99 over p50, at most
GROWTH = 2**20  # bytes, less than


@dataclass(frozen=True)
class Endurance:
    """Of very many single calls.

    Args:
        first: Seconds of the first call.
        p50, p99, p999, most: Seconds of the others.
        calls: How many others.
        growth: Bytes of resident memory from the second fifth of the calls to the end; None: not known.
        same: Whether all repeats on one input gave the same bits.
        repeats: How many repeats.
        busy: p50 and p99 of the seconds that the calling thread was at work, whatever else runs.
    """

    first: float
    p50: float
    p99: float
    p999: float
    most: float
    calls: int
    growth: int | None
    same: bool
    repeats: int
    busy: tuple[float, float]

    def table(self) -> dict[str, Any]:
        """As JSON, times in milliseconds; `met` says which promises are kept."""
        times = {"first": self.first, "p50": self.p50, "p99": self.p99, "p99.9": self.p999, "max": self.most}
        return {
            "calls": self.calls,
            "milliseconds": {name: round(1e3 * value, 4) for name, value in times.items()},
            "p99_over_p50": round(self.p99 / self.p50, 2),
            "busy_milliseconds": {
                name: round(1e3 * value, 4) for name, value in zip(("p50", "p99"), self.busy, strict=True)
            },
            "busy_p99_over_p50": round(self.busy[1] / self.busy[0], 2),
            "growth_bytes": self.growth,
            "same_over_repeats": self.same,
            "repeats": self.repeats,
            "met": {
                "p99 at most 3 x p50": self.p99 <= SPREAD * self.p50,
                "memory grows under 1 MB": None if self.growth is None else self.growth < GROWTH,
                "same output over repeats": self.same,
            },
        }


def endure(
    call: Callable[[Any], list[np.ndarray]], inputs: list[Any], *, calls: int, repeats: int = 1000
) -> Endurance:
    """Make very many single calls in this thread, and look at each.

    Memory is compared between the end of the first fifth of the calls, when caches and arenas are full, and
    the end of them all; every time is written into an array that was there before.

    Args:
        call: From an input to arrays.
        inputs: Taken in turn.
        calls: How many.
        repeats: Further calls on the first input, whose answers are compared to the bit.
    """
    if calls < 10 or repeats < 1 or not inputs:
        raise ValueError(f"calls={calls}, repeats={repeats}, {len(inputs)} inputs; 10, 1 and 1 at least.")
    began = time.perf_counter()
    call(inputs[0])
    first = time.perf_counter() - began
    seconds, busy, before, settled = np.zeros(calls), np.zeros(calls), None, calls // 5
    for number in range(calls):
        if number == settled:
            gc.collect()
            before = status_bytes("VmRSS")
        given = inputs[number % len(inputs)]
        at_work, began = time.thread_time(), time.perf_counter()
        call(given)
        seconds[number], busy[number] = time.perf_counter() - began, time.thread_time() - at_work
    gc.collect()
    after = status_bytes("VmRSS")
    growth = None if before is None or after is None else max(0, after - before)
    values = seconds.tolist()
    p50, p99, p999 = (quantile(values, share) for share in (0.5, 0.99, 0.999))
    worked = quantile(busy.tolist(), 0.5), quantile(busy.tolist(), 0.99)
    same = _same(call, inputs[0], repeats)
    return Endurance(first, p50, p99, p999, max(values), calls, growth, same, repeats, worked)


def _same(call: Callable[[Any], list[np.ndarray]], given: Any, repeats: int) -> bool:
    """Whether the answers to one input are the same bits every time."""
    expected = [np.array(array).tobytes() for array in call(given)]
    return all([np.asarray(a).tobytes() for a in call(given)] == expected for _ in range(repeats))
