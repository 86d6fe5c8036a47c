"""Times of several calls made in turn, so that other load of the machine falls on all of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

import numpy as np
import torch

ENOUGH = 100  # calls below which there is no 99th percentile
SHORT = 0.02  # seconds below which a call is made twice
Name = TypeVar("Name", bound=Hashable)


@dataclass
class Times:
    """Times of one call, by the number of the round."""

    seconds: dict[int, float] = field(default_factory=dict)
    busy: dict[int, float] = field(default_factory=dict)  # CPU seconds of the thread, where measured
    reason: str = ""  # why it was not, or no longer, made

    @property
    def median(self) -> float | None:
        """Median seconds; None if the call was never made."""
        return median(self.seconds.values()) if self.seconds else None

    def summary(self) -> dict[str, float | None]:
        """Number of calls, their median, and their 99 % quantile, if there are at least `ENOUGH`."""
        seconds = [*self.seconds.values()]
        p99 = float(np.quantile(seconds, 0.99, method="inverted_cdf")) if len(seconds) >= ENOUGH else None
        return {"calls": len(seconds), "median": self.median, "p99": p99}

    def over(self, other: Times) -> float | None:
        """Median ratio to another call of the same round, of CPU seconds if known; None if none is shared."""
        own, others = (self.busy, other.busy) if self.busy and other.busy else (self.seconds, other.seconds)
        shared = own.keys() & others.keys()
        return median(own[r] / others[r] for r in shared) if shared else None


@dataclass(frozen=True)
class Interleaved:
    """Rounds in which every call is made once; each round begins with another call.

    A slow call takes part in fewer rounds, evenly spread, so that it takes about `patience` seconds in all. A
    short call is made once more before it is timed, so that caches are warm, as in a loop.
    """

    rounds: int = 200  # how often a call is made at most
    warm_up: int = 3  # calls that do not count; the last, or one longer than `patience`, estimates the time
    patience: float = 10.0  # seconds for all calls of one kind
    least: int = 5  # rounds in which the slowest takes part, whatever that takes
    device: str = "cpu"  # synchronised before and after a call
    clock: Callable[[], float] = time.perf_counter
    busy: Callable[[], float] | None = None  # CPU seconds of this thread, such as `time.thread_time`

    def run(self, calls: Mapping[Name, Callable[[], object]]) -> dict[Name, Times]:
        """Times of all calls by name; a call that raises is left out from then on, with the reason."""
        times = {name: Times() for name in calls}
        slowness: dict[Name, float] = {}
        for name, call in calls.items():
            with noting(times[name]):
                for _ in range(self.warm_up):
                    slowness[name], _ = self._timed(call)
                    if slowness[name] > self.patience:
                        break
        names = [name for name in times if not times[name].reason]
        rounds = {name: self.chosen(slowness[name]) for name in names}
        collects = gc.isenabled()
        gc.collect()
        gc.disable()  # as `timeit` does
        try:
            for number in range(self.rounds):
                shift = number % max(1, len(names))
                for name in names[shift:] + names[:shift]:
                    if number in rounds[name] and not times[name].reason:
                        with noting(times[name]):
                            if slowness[name] < SHORT:
                                calls[name]()
                            times[name].seconds[number], busy = self._timed(calls[name])
                            if self.busy is not None:
                                times[name].busy[number] = busy
        finally:
            if collects:
                gc.enable()
        return times

    def chosen(self, seconds: float) -> frozenset[int]:
        """Numbers of the rounds in which a call of this many seconds takes part."""
        affordable = int(self.patience / max(seconds, 1e-9))
        count = min(self.rounds, max(min(self.least, self.rounds), affordable))
        return frozenset(number * self.rounds // count for number in range(count))

    def _timed(self, call: Callable[[], object]) -> tuple[float, float]:
        busy = self.busy or float
        before, began = busy(), self._now()
        call()
        return self._now() - began, busy() - before

    def _now(self) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        return self.clock()


def reason_of(error: BaseException) -> str:
    """An error as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


@contextmanager
def noting(times: Times) -> Iterator[None]:
    """Record an error of any kind as the reason of this call, so that the others are still measured."""
    try:
        yield
    except Exception as error:
        times.reason = reason_of(error)
