"""Does a call stay as quick, as small and the same, however often it is made? Line 18 of RELIABILITY.md."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trustgp_experiments.core.stage_timer import status_bytes

SPREAD = 3.0  # p99 over p50, at most
GROWTH = 2**20  # bytes, less than


@dataclass(frozen=True)
class Endurance:
    """Of very many single calls.

    Args:
        first: Seconds of the first call.
        seconds: Of the others.
        busy: Those that the calling thread was at work, whatever else runs.
        growth: Bytes of resident memory from the second fifth of the calls to the end; None: not known.
        same: Whether all repeats on one input gave the same bits.
        repeats: How many repeats.
    """

    first: float
    seconds: Sequence[float]
    busy: Sequence[float]
    growth: int | None
    same: bool
    repeats: int

    def table(self) -> dict[str, Any]:
        """As JSON, times in milliseconds; `met` says which requirements are met."""
        shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
        times, busy = (
            {name: float(np.quantile(some, share, method="inverted_cdf")) for name, share in shares.items()}
            for some in (self.seconds, self.busy)
        )
        return {
            "calls": len(self.seconds),
            "milliseconds": _milliseconds({"first": self.first, **times}),
            "p99_over_p50": round(times["p99"] / times["p50"], 2),
            "busy_milliseconds": _milliseconds({name: busy[name] for name in ("p50", "p99")}),
            "busy_p99_over_p50": round(busy["p99"] / busy["p50"], 2),
            "growth_bytes": self.growth,
            "same_over_repeats": self.same,
            "repeats": self.repeats,
            "met": {
                "p99 at most 3 x p50": times["p99"] <= SPREAD * times["p50"],
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
    same = _same(call, inputs[0], repeats)
    return Endurance(first, seconds.tolist(), busy.tolist(), growth, same, repeats)


def _milliseconds(times: Mapping[str, float]) -> dict[str, float]:
    return {name: round(1e3 * value, 4) for name, value in times.items()}


def _same(call: Callable[[Any], list[np.ndarray]], given: Any, repeats: int) -> bool:
    """Whether the answers to one input are the same bits every time."""
    expected = [np.array(array).tobytes() for array in call(given)]
    return all([np.asarray(a).tobytes() for a in call(given)] == expected for _ in range(repeats))
