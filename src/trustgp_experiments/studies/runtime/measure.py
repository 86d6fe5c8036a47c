"""One cell of the runtime study: all methods in all runtimes, on one batch size and number of threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .calls import EAGER, ONNX, Calls, Cell
from .fixtures import FittedCase
from .quality import ENSEMBLE, PLAIN, SERIAL
from .timing import Interleaved, Times, call_peak, noting, threads

NO_GPU = "onnxruntime is measured on the CPU only"


@dataclass(frozen=True)
class Workload:
    """Where calls are measured: rows of a call, threads of one operation, and in which runtimes."""

    batch: int
    threads: int
    runtimes: Sequence[str]


def measure(case: FittedCase, load: Workload, timing: Interleaved, folder: Path) -> list[dict[str, Any]]:
    """What was measured, an entry for each method and runtime: seconds, ratios within rounds, bytes, reasons.

    Args:
        case: The network and its error bars.
        load: Batch, threads and runtimes.
        timing: How often, and how patiently.
        folder: For files that onnxruntime reads.
    """
    with threads(load.threads):
        calls = Calls(case, batch=load.batch, threads=load.threads, folder=folder)
        for runtime in load.runtimes:
            if runtime == ONNX and case.device.startswith("cuda"):
                calls.reasons[PLAIN, runtime] = NO_GPU
                continue
            calls.add(runtime)
        alone = load.threads == 1 and case.device == "cpu"
        timing = replace(timing, device=case.device, busy=time.thread_time if alone else None)
        times = timing.run(calls.made)
        peaks = {cell: _peak(calls, cell, found) for cell, found in times.items() if found.seconds}
    entries = [_entry(cell, times, peaks.get(cell), calls.bytes.get(cell)) for cell in times]
    entries += [_entry(cell, {cell: Times(reason=why)}, None, None) for cell, why in calls.reasons.items()]
    return [{**entry, "batch": load.batch, "threads": load.threads} for entry in entries]


def _entry(cell: Cell, times: dict[Cell, Times], peak: int | None, size: int | None) -> dict[str, Any]:
    (method, runtime), own, none = cell, times[cell], Times()
    return {
        "method": method,
        "runtime": runtime,
        "calls": len(own.seconds),
        "median": own.median,
        "p99": own.p99,
        "over_network": own.over(times.get((PLAIN, runtime), none)),
        "passes_over_this": times.get((SERIAL, runtime), none).over(own),
        "over_eager_ensemble": own.over(times.get((ENSEMBLE, EAGER), none)),
        "peak": peak,
        "file_bytes": size,
        "reason": own.reason,
    }


def _peak(calls: Calls, cell: Cell, times: Times) -> int | None:
    """Bytes that one call takes beside what was held; None where that cannot be told."""
    if cell[1] == ONNX:
        return None  # it keeps what it once took
    with noting(times):
        return call_peak(calls.made[cell], calls.case.device)
    return None
