"""One cell of the runtime study: all methods in all runtimes, on one batch size and number of threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .peaks import Peak
from .runtime_calls import EAGER, ONNX, Calls, Cell
from .runtime_quality import ENSEMBLE, PLAIN, SERIAL
from .runtime_timing import Interleaved, Times, reason_of, threads
from .runtime_workshop import Workshop

NO_GPU = "onnxruntime is measured on the CPU only"


@dataclass(frozen=True)
class Place:
    """Where calls are measured.

    Args:
        batch: Rows of a call.
        threads: Of one operation.
        runtimes: In which.
    """

    batch: int
    threads: int
    runtimes: Sequence[str]

    @property
    def words(self) -> str:
        """For tables: "batch 1, 2 threads"."""
        return f"batch {self.batch}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def measure(shop: Workshop, place: Place, timing: Interleaved, folder: Path) -> list[dict[str, Any]]:
    """What was measured, an entry for each method and runtime: seconds, ratios within rounds, bytes, reasons.

    Args:
        shop: The network and its error bars.
        place: Batch, threads and runtimes.
        timing: How often, and how patiently.
        folder: For files that onnxruntime reads.
    """
    with threads(place.threads):
        calls = Calls(shop, batch=place.batch, threads=place.threads, folder=folder)
        for runtime in place.runtimes:
            if runtime == ONNX and shop.device.startswith("cuda"):
                calls.reasons[PLAIN, runtime] = NO_GPU
                continue
            calls.add(runtime)
        cells = list(calls.made)
        alone = place.threads == 1 and shop.device == "cpu"
        timing = replace(timing, device=shop.device, busy=time.thread_time if alone else None)
        found = timing.run({_key(cell): calls.made[cell] for cell in cells})
        times = {cell: found[_key(cell)] for cell in cells}
        peaks = {cell: _peak(calls, cell) for cell in cells if times[cell].seconds}
    entries = [_entry(cell, times, peaks.get(cell), calls.bytes.get(cell)) for cell in cells]
    blank = [_blank(cell, reason) for cell, reason in calls.reasons.items()]
    return [{**entry, "batch": place.batch, "threads": place.threads} for entry in entries + blank]


def _key(cell: Cell) -> str:
    return " | ".join(cell)


def _entry(cell: Cell, times: dict[Cell, Times], peak: int | None, size: int | None) -> dict[str, Any]:
    method, runtime = cell
    own, none = times[cell], Times()
    plain, serial = (times.get((name, runtime), none) for name in (PLAIN, SERIAL))
    return {
        "method": method,
        "runtime": runtime,
        "calls": len(own.seconds),
        "median": own.median,
        "p99": own.p99,
        "over_network": own.over(plain),
        "passes_over_this": serial.over(own),
        "over_eager_ensemble": own.over(times.get((ENSEMBLE, EAGER), none)),
        "peak": peak,
        "file_bytes": size,
        "reason": own.reason,
    }


def _blank(cell: Cell, reason: str) -> dict[str, Any]:
    return {**_entry(cell, {cell: Times()}, None, None), "reason": reason}


def _peak(calls: Calls, cell: Cell) -> int | None:
    """Bytes that one call takes beside what was held; None where that cannot be told."""
    if cell[1] == ONNX:
        return None  # it keeps what it once took
    try:
        peak = Peak(calls.shop.device)
        calls.made[cell]()
        return peak.bytes().get("cuda" if calls.shop.device.startswith("cuda") else "cpu")
    except Exception as error:
        calls.reasons[cell] = reason_of(error)
        return None
