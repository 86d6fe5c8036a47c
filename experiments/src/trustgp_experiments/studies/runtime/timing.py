"""How long do several calls take, in turn, so that what else the machine does falls on all of them?"""

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

from ...core.stage_timer import Peak

ENOUGH = 100  # calls below which a 99th percentile means nothing
QUICK = 0.02  # seconds below which a call is made twice
Name = TypeVar("Name", bound=Hashable)


@dataclass
class Times:
    """Of one call, by the number of the round."""

    seconds: dict[int, float] = field(default_factory=dict)
    busy: dict[int, float] = field(default_factory=dict)  # that the thread was at work, where asked for
    reason: str = ""  # why it was not, or no longer, made

    @property
    def median(self) -> float | None:
        """Seconds; None: it was never made."""
        return median(self.seconds.values()) if self.seconds else None

    @property
    def p99(self) -> float | None:
        """Seconds of the call that 99 % do not exceed; None: it was not made often enough to tell."""
        if len(self.seconds) < ENOUGH:
            return None
        return float(np.quantile([*self.seconds.values()], 0.99, method="inverted_cdf"))

    def summary(self) -> dict[str, float | None]:
        """How often it was made, and how long it took, as JSON."""
        return {"calls": len(self.seconds), "median": self.median, "p99": self.p99}

    def over(self, other: Times) -> float | None:
        """Median ratio to another call of the same round, of busy seconds if known; None: no common round."""
        own, others = (self.busy, other.busy) if self.busy and other.busy else (self.seconds, other.seconds)
        shared = own.keys() & others.keys()
        return median(own[r] / others[r] for r in shared) if shared else None


@dataclass(frozen=True)
class Interleaved:
    """Rounds in which every call is made once; each round begins with another of them.

    A slow call takes part in fewer rounds, evenly spread, so that it takes about `patience` seconds in all. A
    quick one is made once more before, without the clock: what it needs is then in the caches, as in a loop.
    """

    rounds: int = 200  # how often a call is made at most
    warm_up: int = 3  # calls that do not count; the last, or one longer than all may be, tells how slow it is
    patience: float = 10.0  # seconds for all calls of one kind
    least: int = 5  # rounds in which the slowest takes part, whatever that takes
    device: str = "cpu"  # waited for before and after a call
    clock: Callable[[], float] = time.perf_counter  # tells the seconds
    busy: Callable[[], float] | None = None  # those that this thread was at work; None: nobody asks

    def __post_init__(self) -> None:
        counts = {"rounds": self.rounds, "warm_up": self.warm_up, "least": self.least}
        if min(counts.values()) < 1:
            raise ValueError(f"{', '.join(f'{k}={v}' for k, v in counts.items())}; at least 1 of each.")

    def run(self, calls: Mapping[Name, Callable[[], object]]) -> dict[Name, Times]:
        """The times of all calls, by name; one that raises is left out from then on, and says why."""
        found = {name: Times() for name in calls}
        slowness: dict[Name, float] = {}
        for name, call in calls.items():
            with noting(found[name]):
                for _ in range(self.warm_up):
                    slowness[name], _ = self._timed(call)
                    if slowness[name] > self.patience:
                        break
        names = [name for name, times in found.items() if not times.reason]
        rounds = {name: self.chosen(slowness[name]) for name in names}
        collects = gc.isenabled()
        gc.collect()
        gc.disable()  # as `timeit` does: a collection of garbage is nobody's time
        try:
            for number in range(self.rounds):
                shift = number % max(1, len(names))
                for name in names[shift:] + names[:shift]:
                    if number in rounds[name] and not found[name].reason:
                        with noting(found[name]):
                            if slowness[name] < QUICK:
                                calls[name]()
                            seconds, busy = self._timed(calls[name])
                            found[name].seconds[number] = seconds
                            if self.busy is not None:
                                found[name].busy[number] = busy
        finally:
            if collects:
                gc.enable()
        return found

    def chosen(self, seconds: float) -> frozenset[int]:
        """The rounds in which a call that takes so long takes part."""
        affordable = int(self.patience / max(seconds, 1e-9))
        count = min(self.rounds, max(min(self.least, self.rounds), affordable))
        return frozenset(number * self.rounds // count for number in range(count))

    def _timed(self, call: Callable[[], object]) -> tuple[float, float]:
        """Seconds, and those that this thread was at work, 0 where nobody asks."""
        busy = self.busy or float
        before = busy()
        self._wait()
        began = self.clock()
        call()
        self._wait()
        return self.clock() - began, busy() - before

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


def call_peak(call: Callable[[], object], device: str) -> int | None:
    """Bytes at the peak of one call beside those that were held; None where that cannot be told."""
    peak = Peak(device)
    call()
    return peak.bytes().get("cuda" if device.startswith("cuda") else "cpu")


def reason_of(error: BaseException) -> str:
    """An error as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


@contextmanager
def noting(times: Times) -> Iterator[None]:
    """An error inside, of any kind, is the reason of this call: the others are measured all the same."""
    try:
        yield
    except Exception as error:
        times.reason = reason_of(error)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch's own threads for one operation inside; outside, as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
