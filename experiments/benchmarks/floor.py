"""How fast could a fit be at most? Multiplications over the device's measured peak, bytes over its bandwidth.

Counted from the sizes is what any fit of the kind must do: the network's passes in float32; in float64 the
products of feature rows (gate and experts) and one factorisation an expert, of its rows or, where these are
more, of the columns of their features. Features without columns are too many to be kept, so they are made
twice: to divide the rows, and to solve. Nothing is counted for k-means, copies, the search for the noise, or
calibration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

import trustgp
from trustgp_experiments.studies.scale.fits import held_rows

SIDE = {"cuda": 8192, "cpu": 2048}  # of the matrices that are timed
COPIED = {"cuda": 2**30, "cpu": 2**27}  # bytes of the copy that is timed


@dataclass(frozen=True)
class Peaks:
    """Of the device, measured: operations and bytes in a second."""

    float64: float
    float32: float
    bandwidth: float


def measure_peaks(device: torch.device, threads: int) -> Peaks:
    """From large products and a large copy, the fastest of several; on a CPU with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measured(device)
    finally:
        torch.set_num_threads(before)


def _measured(device: torch.device) -> Peaks:
    side, size = SIDE[device.type], COPIED[device.type]

    def operations(dtype: torch.dtype) -> float:
        left, right = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
        return 2 * side**3 / _fastest(lambda: left @ right, device)

    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * size / _fastest(lambda: target.copy_(source), device)  # read and written
    return Peaks(operations(torch.float64), operations(torch.float32), copied)


def _fastest(work: Callable[[], object], device: torch.device, repeat: int = 4) -> float:
    best = float("inf")
    for _ in range(repeat):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def floor(model: trustgp.UncertaintyModel, rows: int, parameters: int, peaks: Peaks) -> dict[str, object]:
    """Operations, bytes, and the seconds below which no fit of these sizes can be.

    Args:
        model: Fitted; tells how many rows its experts and its gate hold.
        rows: n.
        parameters: P, of the network.
        peaks: Of the device.
    """
    work = {"network": 2.0 * parameters * rows, "gate": 0.0, "products": 0.0, "factors": 0.0}
    moved = 0.0
    for mixture in model.mixtures:
        tangents = mixture.tangents
        width = tangents.row_bytes() / tangents.network.dtype.itemsize  # numbers of a feature row
        projection, columns = mixture.gate.projection, tangents.num_columns(expert=True)
        asked = 0 if projection is None else len(projection.features or projection.offset)
        backward, passes = len(tangents.mix), 2 if columns is None else 1
        work["network"] += passes * (1 + backward) * 2.0 * parameters * rows
        work["gate"] += 2.0 * rows * asked * width
        moved += passes * 2.0 * rows * tangents.row_bytes()  # written and read
        for expert in mixture.experts:
            held = len(expert.rows)
            side = held if columns is None else min(held, columns)
            work["products"] += held * side * width  # of rows with themselves: half of them
            work["factors"] += side**3
    doubles = work["gate"] + work["products"] + work["factors"]
    seconds = doubles / peaks.float64 + work["network"] / peaks.float32
    return {
        "operations": work,
        "operations_seconds": seconds,
        "bytes": moved,
        "bytes_seconds": moved / peaks.bandwidth,
        "seconds": max(seconds, moved / peaks.bandwidth),
        "peaks": asdict(peaks),
        "held_rows": sum(held_rows(model)),
    }
