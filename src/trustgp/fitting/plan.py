"""What a fit will need, in memory and time: estimated, and refused, before the work."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..data.chunking import at_once, most_rows, near_bytes, row_bytes, rows_at_once
from ..data.quantities import size_text
from ..data.trees import Inputs, count, take
from ..experts.gate import DISTANCES, OVERSIZE, Division
from ..experts.neighbours import CANDIDATES, Patchwork, lend_rows
from ..experts.witness import Witness, vectors_of
from ..experts.witness_fit import MOST_JUDGED, NEARBY, PRIOR_SUBSET, witness_applies, witness_bytes
from ..math.stationary import LENGTHS, RATIOS
from ..tangents.base import TangentMap, chunk_bytes
from ..tangents.jacobian.strategies import WORKSPACE
from ..tangents.rows import WORKING_SET
from .budget import OVERHEAD, expert_bytes, gate_bytes, quota_for_budget, smallest_budget, subset_for_budget
from .divide import EXACT_BOUND

ROWS_PER_EXPERT = 1000
CHUNK = 1.5  # what a chunk of rows takes while its features are made, over `chunk_bytes`
COLUMN_BLOCK = 8192  # columns of explicit features that are taken to float64 at a time
WITNESS_SHARE = 4  # a witness takes at most one part in so many of a budget
INPUT_COPIES = 4  # of the inputs in a chunk of rows, with what the allocator keeps of earlier chunks
GPU_PROBE = 1024  # rows that a GPU is timed on
SLACK = 48 * 2**20  # what libraries and the allocator take on their own account


@dataclass(frozen=True)
class Plan:
    """What a fit will do.

    Args:
        num_experts: M, for each kernel.
        subset: Rows of the gate.
        state_bytes: What the model will hold, about.
        peak_bytes: What the fit will need in memory at its peak, beside the data, at most.
        seconds: How long it will take, roughly.
        witness_bytes: What the witness may hold of it; 0 without one.
        kept_peak_bytes, kept_seconds: The same, with the features of all rows kept during the fit.
        keep_features: Whether they are kept.
    """

    num_experts: int
    subset: int
    state_bytes: int
    peak_bytes: int
    seconds: float
    witness_bytes: int
    kept_peak_bytes: int = 0
    kept_seconds: float = 0.0
    keep_features: bool = False

    def keeping(self) -> Plan:
        """The plan of a fit that keeps the features of all rows."""
        return replace(self, peak_bytes=self.kept_peak_bytes, seconds=self.kept_seconds, keep_features=True)


def make_plan(
    tangents: list[TangentMap],
    sample: Inputs,
    n: int,
    num_experts: int | None,
    *,
    division: Division,
    patchwork: Patchwork,
    witness: Witness | None,
    num_outputs: int,
    budget: int | None,
    workers: int,
) -> Plan:
    """Check the sizes that were asked for, and estimate memory and time."""
    experts = math.ceil(n / ROWS_PER_EXPERT) if num_experts is None else num_experts
    if experts < 1:
        raise ValueError(f"num_experts={experts}; at least one is needed.")
    if experts > n:
        raise ValueError(f"num_experts={experts} exceeds the {n} rows; lower it or pass more data.")
    served = num_outputs // len(tangents)
    subset = division.subset_size(n, experts)
    if budget is not None:
        needed = sum(smallest_budget(t, n, experts, division, served) for t in tangents)
        if budget < needed:
            raise ValueError(
                f"budget={size_text(budget)} is too small for {experts} experts; the smallest that works "
                f"is {needed} bytes ({size_text(needed)}). Fewer experts, outputs='pseudo' or "
                "parameters='last' need less."
            )
        share = budget // len(tangents)
        subset = subset_for_budget(tangents[0], n, experts, division, share)
    subset = max(2, subset)  # `Division` asks for two, also where there is a single row
    shape = _Shape(n, experts, num_outputs, division, patchwork, subset)
    second = _witness_bytes(witness, sample, n, num_outputs)
    if budget is not None:
        spare = max(0, budget - sum(smallest_budget(t, n, experts, division, served) for t in tangents))
        second = min(second, spare, budget // WITNESS_SHARE)
    one = gate_bytes(tangents[0], subset, division.components, experts)
    one += int(1.3 * experts * expert_bytes(tangents[0], shape.rows, served))  # sizes are uneven
    state = len(tangents) * one + second if budget is None else min(len(tangents) * one + second, budget)
    room = None if budget is None else budget // len(tangents)
    held = _held_rows(tangents[0], shape, room, served)
    device = tangents[0].network.device
    given = min(n, most_rows(device), rows_at_once(sample, device)) * row_bytes(sample)
    always = 8 * n * (3 * num_outputs + division.components + 4) + SLACK + INPUT_COPIES * workers * given
    always += near_bytes(n, sample, device)
    early = second + max(_witness_peak(witness, sample, n, workers), _division_bytes(tangents[0], shape))
    peak = always + max(early, state + _solving_bytes(tangents[0], shape, held, workers))
    making = min(n * tangents[0].working_bytes(), workers * int(CHUNK * chunk_bytes(tangents[0])))
    solving = state + _solving_bytes(tangents[0], shape, held, workers, kept=True)
    kept = always + n * tangents[0].row_bytes() + max(early, second + making, solving)
    work = _witness_work(witness, sample, n, workers)
    seconds = _seconds(tangents[0], sample, shape, work, len(tangents), workers)
    return Plan(experts, subset, state, int(peak), seconds[0], second, int(kept), seconds[1])


def _witness_bytes(witness: Witness | None, sample: Inputs, n: int, num_outputs: int) -> int:
    """What a witness will hold."""
    if witness is None or not witness_applies(n, sample, witness):
        return 0
    cells = math.ceil(n / witness.rows)
    sizes = [_cell_rows(n, cells)] * cells
    # sizes are uneven
    return int(1.3 * witness_bytes(sizes, vectors_of(sample).shape[1], num_outputs))


def _witness_peak(witness: Witness | None, sample: Inputs, n: int, workers: int) -> int:
    """What the search for a witness needs at its peak: distances to rows of other cells, or a few factors."""
    if witness is None or not witness_applies(n, sample, witness):
        return 0
    cells = math.ceil(n / witness.rows)
    largest = min(n, 2 * witness.rows)
    apart = 3 * largest * min(n - largest, NEARBY * witness.rows)
    judged = min(n, max(MOST_JUDGED, 32 * cells))
    labels = 2 * judged * (2 * cells if cells > 1 else 1)  # distances to all centroids, every cell split
    factors = min(workers, 2 * cells) * 6 * largest**2
    pairs = 3 * min(n, 1000) ** 2  # for the typical distance
    return 8 * (max(apart, labels, factors, pairs) + 4 * n * vectors_of(sample).shape[1])


def _witness_work(witness: Witness | None, sample: Inputs, n: int, workers: int) -> float:
    """Multiplications of each worker while a witness is found: three factors' worth a cell, and the grid."""
    if witness is None or not witness_applies(n, sample, witness):
        return 0.0
    cells = math.ceil(n / witness.rows)
    grid = len(LENGTHS) * len(RATIOS) * min(PRIOR_SUBSET, cells)  # on one worker
    return (3 * cells / workers + grid) * (_cell_rows(n, cells) ** 3) / 3


def _cell_rows(n: int, cells: int) -> int:
    """Rows of a cell, those it borrows among them: two thirds as many as its own."""
    return n if cells == 1 else math.ceil(5 / 3 * n / cells)


@dataclass(frozen=True)
class _Shape:
    """What is known of the experts before there are any."""

    n: int
    experts: int
    num_outputs: int
    division: Division
    patchwork: Patchwork
    subset: int

    @property
    def most(self) -> int:
        """Experts when every one of them has been split."""
        return 2 * self.experts if self.experts > 1 else 1

    @property
    def neighbours(self) -> int:
        return min(self.patchwork.neighbours, self.experts - 1)

    @property
    def lend(self) -> int:
        """Rows from each neighbour."""
        return lend_rows(self.patchwork, self.n, self.experts)

    @property
    def rows(self) -> int:
        """Of an average expert, its neighbours' rows among them."""
        return math.ceil(self.n / self.experts) + self.lend * self.neighbours

    @property
    def largest(self) -> int:
        """Own rows of the largest expert."""
        target = math.ceil(self.n / self.experts)
        return min(self.n, math.ceil(OVERSIZE * target)) if self.experts > 1 else self.n

    @property
    def offered(self) -> int:
        """Rows of neighbours among which the largest expert may choose."""
        return min(CANDIDATES * self.lend * self.neighbours, self.n - self.largest)


def _held_rows(tangents: TangentMap, shape: _Shape, room: int | None, num_outputs: int) -> int:
    """Own rows that the largest expert keeps: all, or what a budget leaves it."""
    if room is None:
        return shape.largest
    room -= OVERHEAD + gate_bytes(tangents, shape.subset, shape.division.components, shape.experts)
    sizes, near = [shape.largest] * shape.experts, [shape.neighbours] * shape.experts
    cap = quota_for_budget(tangents, sizes, near, shape.lend, room, num_outputs).own
    return min(shape.largest, 2 * cap)  # smaller experts leave the larger ones more


def _features_bytes(tangents: TangentMap, rows: int, *, expert: bool) -> int:
    """Features of so many rows while a kernel is made of them: chunks, the whole, float64 copies."""
    size, width = tangents.network.dtype.itemsize, tangents.num_columns(expert=expert)
    if width is None:
        double = 0 if size == 8 else 8 // size  # of the widest layer, at most all
        return rows * tangents.row_bytes() * (2 + double)
    return rows * (2 * width * size + 2 * 8 * min(width, COLUMN_BLOCK))


def _division_bytes(tangents: TangentMap, shape: _Shape) -> int:
    """Kernel PCA of the subset, the bound on a sample, and the distances to all centroids."""
    if shape.experts == 1:
        return 0
    rows = max(shape.subset, shape.n if shape.n <= EXACT_BOUND else 512)
    kernel = _features_bytes(tangents, rows, expert=False) + 6 * 8 * rows * rows
    kernel += 8 * rows * (tangents.num_columns(expert=False) or 0)
    rows_and_labels = 8 * shape.n * (3 * shape.division.components + 10)
    return max(kernel, rows_and_labels + 3 * at_once(DISTANCES, tangents.network.device))


def _solving_bytes(
    tangents: TangentMap, shape: _Shape, held: int, workers: int, *, kept: bool = False
) -> int:
    """What the workers need beside the state: each the largest expert, while there are rows for it.

    Args:
        kept: Whether the features are there, so that none are made.
    """
    total, left = 0, shape.n
    for _ in range(min(workers, shape.most)):
        own = min(shape.largest, left)
        left -= own
        making = 0 if kept else _making_bytes(tangents, own)
        total += making + (_expert_peak(tangents, own, min(held, own), shape) if own else 0)
    return total


def _making_bytes(tangents: TangentMap, own: int) -> int:
    """What a worker needs while it makes the features of an expert with so many rows; 0: of some chunk."""
    chunk = int(CHUNK * chunk_bytes(tangents))
    if tangents.network.device.type == "cuda":
        chunk += 2 * at_once(WORKSPACE, tangents.network.device)
    if not own:
        return chunk
    # columns are chosen on larger chunks
    if tangents.num_columns(expert=True) != tangents.num_columns(expert=False):
        return 2 * min(own * tangents.working_bytes(), WORKING_SET)
    return min(int(CHUNK * own * tangents.working_bytes()), chunk)


def _expert_peak(tangents: TangentMap, own: int, held: int, shape: _Shape) -> int:
    """What solving one expert needs beside the making of features, at the worst of its three stages.

    Args:
        own: Its rows.
        held: Those of them that a budget lets it keep.
    """
    offered, width = shape.offered, tangents.num_columns(expert=True)
    rows = held + min(offered, shape.lend * shape.neighbours)
    kept = 2 * held * own if held < own else 0
    choosing = _features_bytes(tangents, own, expert=True) + 8 * (3 * own**2 + kept)
    given = 6 * held**2 + 4 * held * offered + 3 * offered**2  # candidates, given the rows held
    borrowing = _features_bytes(tangents, held + offered, expert=True) + 8 * given
    spectrum = 5 * rows * (width or 0)  # singular vectors of explicit features
    solving = _features_bytes(tangents, rows, expert=True) + 8 * (6 * rows**2 + spectrum)
    if kept:  # the others count through the rows that are held
        seen = own + rows - held
        solving += _features_bytes(tangents, seen, expert=True) + 8 * 6 * rows * seen
    return max(choosing, borrowing, solving)


def check_memory(plan: Plan, limit: int | None, device: torch.device) -> None:
    """Refuse before allocating what will not fit."""
    available = _available(device) if limit is None else limit
    if available is not None and plan.peak_bytes > available:
        what = "the memory that is free" if limit is None else "memory"
        raise MemoryError(
            f"the fit would need up to {size_text(plan.peak_bytes)}, more than {what} "
            f"({size_text(available)}). More experts, a budget, outputs='pseudo', witness=None or fewer "
            "workers need less."
        )


def _available(device: torch.device) -> int | None:
    """Bytes that this process may still take; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = [size for size in (_free_memory(), _free_in_container()) if size is not None]
    return min(known, default=None)


def _free_memory() -> int | None:
    """Of the machine, with what the file cache would give back."""
    try:
        table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:  # without the cache: less than there is
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known on this system
        return None


def _free_in_container() -> int | None:
    """What the control group that we run in leaves; None outside of one."""
    folder = Path("/sys/fs/cgroup")
    try:
        most, used = ((folder / f"memory.{name}").read_text() for name in ("max", "current"))
        table = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(most) - int(used) + int(table["inactive_file"])
    except (OSError, KeyError, ValueError):  # no such group, or no limit ("max")
        return None


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds that `work` takes."""
    _finish(device)
    start = time.perf_counter()
    work()
    _finish(device)
    return time.perf_counter() - start


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(
    tangents: TangentMap, sample: Inputs, shape: _Shape, witness_work: float, kernels: int, workers: int
) -> tuple[float, float]:
    """Rough time of a fit, from a small probe of this machine; and where features are made only once."""
    device = tangents.network.device
    if device.type == "cuda":  # a few rows would take as long as many
        chunk = chunk_bytes(tangents) // max(1, tangents.working_bytes())
        sample = take(sample, torch.arange(max(1, min(GPU_PROBE, chunk))) % count(sample))
    n, size = count(sample), GPU_PROBE if device.type == "cuda" else 256
    with torch.no_grad():
        features = tangents(sample)  # and whatever is done once
        per_row = timed(lambda: tangents(sample), device) / n
        features.gram(features)
        per_pair = timed(lambda: features.gram(features), device) / n**2
        probe = torch.eye(size, dtype=torch.float64, device=device)
        torch.linalg.cholesky(probe)
        flop = timed(lambda: torch.linalg.cholesky(probe), device) / (size**3 / 3)
    rows = shape.rows + shape.offered
    once, again = shape.n * per_row, shape.experts * rows * per_row
    pairs = (shape.n * shape.subset + shape.experts * rows**2) * per_pair
    solving = shape.experts * 30 * flop * shape.rows**3 / 3
    kept = kernels * (once + pairs + solving) / workers + flop * witness_work
    return kept + kernels * again / workers, kept
