"""Plan of a fit: its memory is estimated before the work, and a fit that needs too much is refused."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ..data.chunking import CHUNK_ROWS, at_once, most_rows, near_bytes, row_bytes, rows_at_once
from ..data.quantities import size_text
from ..data.rows import SPARED_BYTES
from ..data.trees import Inputs
from ..data.user_warnings import warn_user
from ..executors import Executor, nearby
from ..executors.progress import Reporter
from ..experts.features import chunk_rows
from ..experts.gate import DISTANCES
from ..experts.neighbours import CANDIDATES
from ..experts.stacked_system import DEVICES, group_bytes
from ..experts.system import prefer_primal
from ..experts.whole import MAX_DIM
from ..experts.witness import CHUNK_BYTES, Witness, vectors_of
from ..experts.witness_fit import MAX_SPLIT_ROWS, NEARBY_CELLS, witness_applies, witness_bytes
from ..math.evidence import LENGTHS, RATIOS
from ..tangents.base import TangentMap, chunk_bytes
from ..tangents.jacobian.strategies import WORKSPACE
from ..tangents.rows import WORKING_SET
from .divide import bound_rows
from .prepare import PROBE_ROWS, FitRows, Prepared
from .sizes import Sizing
from .whole import kept_bytes

ROWS_PER_EXPERT = 1000  # of exact experts
# Small experts detect novel rows better than large ones; many take memory.
LIGHT_ROWS, MAX_EXPERTS = 250, 48
RANK = 256  # directions that an expert of a light model keeps, at most
CHUNK = 1.5  # memory of a chunk of rows while its features are computed, over `chunk_bytes`
COLUMN_BLOCK = 8192  # columns of explicit features that are converted to float64 at a time
WITNESS_SHARE = 0.75  # share of a budget that a witness takes at most
WITNESS_MARGIN = 1.05  # what a witness may take, over the estimate
UNEVEN_MARGIN = 1.2  # size of exact experts, which grows with squared rows, over the estimate
INPUT_COPIES = 4  # copies of a chunk's inputs, with those of earlier chunks that the allocator keeps
KEPT_FEATURES = 2**30  # bytes of explicit features cached in memory during a fit, or a quarter of free memory
SLACK = 2**27  # overhead of libraries and of the allocator, which keeps what threads free


@dataclass(frozen=True)
class Plan:
    """Choices for a fit, and its estimated memory."""

    num_experts: int  # M, for each kernel
    rank: int | None  # the most directions that an expert keeps; None: all
    witness_bytes: int  # the largest size of the witness; 0 without one
    peak_bytes: int  # upper bound of the peak memory of the fit, without the data
    keep_features: bool = False  # whether the features of all rows are cached during the fit
    mapped: bool = False  # whether they are cached in a memory-mapped file


def choose_plan(ready: Prepared, data: FitRows, num_experts: int, rank: int | None) -> tuple[Executor, Plan]:
    """First executor for which there is enough memory, and its plan. Raise MemoryError if there is none."""
    refused = MemoryError()
    for executor, plan in _candidate_plans(ready, data, num_experts, rank):
        try:
            check_memory(plan, ready.options.memory, ready.network.device)
            return executor, plan
        except MemoryError as error:
            refused = error
    raise refused


def _candidate_plans(
    ready: Prepared, data: FitRows, num_experts: int, rank: int | None
) -> Iterator[tuple[Executor, Plan]]:
    """Executors and plans to try, best first: with the features of all rows cached during the fit, if they
    are explicit and small enough, then without, where the expensive gradients are computed three times."""
    tangents, device, memory = ready.maps[0][0], ready.network.device, ready.options.memory
    explicit, size = tangents.num_columns(expert=False) is not None, len(data.rows) * tangents.row_bytes()
    room = max(KEPT_FEATURES, (_available(device) or 0 if memory is None else memory) // 4)
    for executor in ready.options.executors(device):
        local = nearby(executor)  # memory is planned for this machine
        planned = partial(make_plan, ready, data, num_experts, rank, workers=local.workers)
        if explicit and size <= room:
            kept = planned(keep=True)
            yield executor, replace(kept, peak_bytes=kept.peak_bytes + size)
        elif explicit and local is executor and _disk_has(size):  # a file does not travel
            yield executor, replace(planned(keep=True), mapped=True)
        yield executor, planned()


def _disk_has(size: int) -> bool:
    """Whether there is disk space for a temporary file of `size` bytes of features; warn if not."""
    free = shutil.disk_usage(folder := tempfile.gettempdir()).free - SPARED_BYTES
    if size > free:
        warn_user(
            f"the features take {size_text(size)}, too much for memory, and {folder} has only "
            f"{size_text(max(0, free))} free: they are made about three times. Set TMPDIR to a larger folder."
        )
    return size <= free


def log_plan(report: Reporter, plan: Plan, ready: Prepared, num_rows: int) -> None:
    """Log what the fit will do, and the memory that it needs."""
    count, first, outputs = ready.num_outputs, ready.maps[0][0], ready.options.outputs
    passes = {"shared": f"{count} backward passes", "separate": f"{count} kernels"}
    report.log(f"tangents: {ready.tangents}, {ready.reason}")
    if first.separately_differentiated:
        report.log(f"differentiated separately: {first.separately_differentiated}")
    report.log(
        f"{num_rows} rows, {plan.num_experts} experts: the fit needs at most about "
        f"{size_text(plan.peak_bytes)} beside the data."
    )
    if plan.mapped:
        size = size_text(num_rows * first.row_bytes())
        report.log(f"features: {size} in a temporary file in {tempfile.gettempdir()}")
    of = f"{count} {'output' if count == 1 else 'outputs'}"
    report.log(f"outputs: {outputs}, {passes.get(outputs, 'one backward pass')} for {of}")


def default_sizes(ready: Prepared, n: int) -> tuple[int, int | None]:
    """Number of experts for n rows, and the most directions of each (None: all), without a budget."""
    light = ready.options.light and ready.maps[0][0].num_columns(expert=True) is not None
    usual = min(math.ceil(n / LIGHT_ROWS), MAX_EXPERTS) if light else math.ceil(n / ROWS_PER_EXPERT)
    num_experts = ready.options.num_experts or usual
    if num_experts > n:
        message = f"num_experts={num_experts} exceeds the {n} rows (repeats count once); "
        raise ValueError(f"{message}lower it or pass more data.")
    return num_experts, RANK if light else None


def make_plan(
    ready: Prepared, data: FitRows, num_experts: int, rank: int | None, *, workers: int, keep: bool = False
) -> Plan:
    """Estimate the memory of a fit: what is always allocated, plus its largest stage. With `keep`, the
    features of all rows are cached; their size is not included."""
    tangents, options, rows, n = ready.maps[0][0], ready.options, data.rows, len(data.rows)
    sizing, budget, device = Sizing(ready, n, num_experts), options.budget.size, tangents.network.device
    sample = rows.take(torch.arange(min(PROBE_ROWS, chunk_rows(tangents), n)))
    double = rows.targets.dtype == torch.float64
    second, search = witness_needs(options.witness, sample, n, ready.num_outputs, workers, double)
    state = sizing.expected(rank)
    if budget is not None:  # see `plan_for_budget`; a witness without room is left out
        allowed = min(budget - state, int(WITNESS_SHARE * budget))
        second = min(math.ceil(WITNESS_MARGIN * second), allowed) if second <= allowed else 0
        state = min(state, budget - second)
    elif tangents.num_columns(expert=True) is None:
        state = int(UNEVEN_MARGIN * state)
    answered = 0 if data.validation is None else len(data.validation)
    given = min(n, most_rows(device), rows_at_once(sample, device)) * row_bytes(sample)
    always = 8 * n * (3 * sizing.outputs + options.division.components + 4) + SLACK
    always += INPUT_COPIES * workers * given + kept_bytes(ready, n)
    always += near_bytes(n + answered, sample, device)  # of which some may have been split off
    making = min(n * tangents.working_bytes(), workers * int(CHUNK * chunk_bytes(tangents))) if keep else 0
    sums = 32 * sizing.outputs * min(tangents.num_columns(expert=False) or 0, MAX_DIM) ** 2  # of gradients
    early = max(search, _division_bytes(sizing), making, sums)
    solving = state + _solving_bytes(sizing, workers, kept=keep)
    peak = int(always + second + max(early, solving))
    return Plan(num_experts, rank, second, peak, keep_features=keep)


def witness_needs(
    witness: Witness | None, sample: Inputs, n: int, num_outputs: int, workers: int, double: bool
) -> tuple[int, int]:
    """Bytes of a witness, and peak memory of the search for it; `double`: targets are float64."""
    if witness is None or not witness_applies(n, sample, witness):
        return 0, 0
    cells, width = math.ceil(n / witness.rows), vectors_of(sample).shape[1]
    size = witness_bytes(n, width, num_outputs, witness, double=double)
    largest, offered = min(n, 2 * witness.rows), min(n, NEARBY_CELLS * witness.rows)
    borders = min(workers, 2 * cells) * largest * offered  # distances to rows of other cells
    judged = min(n, max(MAX_SPLIT_ROWS, 32 * cells))
    labels = 2 * judged * (2 * cells if cells > 1 else 1)  # distances to all centroids, every cell split
    factors = min(workers, len(LENGTHS)) * 3 * len(RATIOS) * largest**2
    pairs, p = 3 * min(n, 1000) ** 2, witness.neighbours + 1  # pairs: for the typical distance
    solved = min(CHUNK_BYTES // 8, n * (cells + 4 * largest + 4 * p * (p + width + num_outputs)))
    return size, size + 8 * (max(borders, labels, factors, pairs, solved) + 4 * n * (width + num_outputs))


def _features_bytes(tangents: TangentMap, rows: int, *, expert: bool) -> int:
    """Memory of the features of `rows` rows while their kernel is computed: chunks, all, float64 copies."""
    size, width = tangents.network.dtype.itemsize, tangents.num_columns(expert=expert)
    if width is None:
        double = 0 if size == 8 else 8 // size  # of the widest layer, at most all
        return rows * tangents.row_bytes() * (2 + double)
    return rows * (2 * width * size + 2 * 8 * min(width, COLUMN_BLOCK))


def _division_bytes(sizing: Sizing) -> int:
    """Memory of the kernel PCA of the subset, the bound on a sample, and the distances to all centroids."""
    if sizing.num_experts == 1:
        return 0
    tangents, components = sizing.ready.maps[0][0], sizing.ready.options.division.components
    rows = max(sizing.subset, bound_rows(sizing.n))
    kernel = _features_bytes(tangents, rows, expert=False) + 6 * 8 * rows * rows
    kernel += 8 * rows * (tangents.num_columns(expert=False) or 0)
    labels = 8 * sizing.n * (3 * components + 10)
    return max(kernel, labels + 3 * at_once(DISTANCES, tangents.network.device))


def _solving_bytes(sizing: Sizing, workers: int, *, kept: bool) -> int:
    """Memory of the workers beside the state: each solves the largest expert, while there are rows for it.
    With cached features, no features are computed."""
    tangents, largest = sizing.ready.maps[0][0], sizing.largest
    device, width = tangents.network.device, tangents.num_columns(expert=True)
    workers = min(workers, 2 * sizing.num_experts if sizing.num_experts > 1 else 1)  # every expert split
    busy = min(workers, math.ceil(sizing.n / largest))
    chunk, row = int(CHUNK * chunk_bytes(tangents)), int(CHUNK * tangents.working_bytes())
    if width != tangents.num_columns(expert=False):
        chunk, row = 2 * WORKING_SET, 2 * tangents.working_bytes()  # columns are chosen on larger chunks
    elif device.type == "cuda":
        chunk += 2 * at_once(WORKSPACE, device)
    making = 0 if kept else workers * min(largest * row, chunk)
    together = group_bytes(width) if kept and device.type in DEVICES and width else 0
    return making + max(busy * _expert_peak(sizing, kept=kept), together)


def _expert_peak(sizing: Sizing, *, kept: bool) -> int:
    """Peak memory of the largest expert while it borrows rows or is solved, without computing features."""
    tangents, own, borrowed = sizing.ready.maps[0][0], sizing.largest, sizing.borrowed(sizing.num_experts)
    offered = min(CANDIDATES * borrowed, sizing.n - own)  # rows of neighbours among which it may choose
    width, rows = tangents.num_columns(expert=True), own + min(offered, borrowed)
    if width is not None and prefer_primal(width, own):
        stay = kept and sizing.num_experts == 1 and width == tangents.num_columns(expert=False)
        table = 0 if stay else 2 * rows * width * tangents.network.dtype.itemsize
        return table + 8 * (12 * width**2 + 4 * width * (offered + CHUNK_ROWS) + 12 * rows * sizing.outputs)
    given = 6 * own**2 + 4 * own * offered + 3 * offered**2  # candidates, given the own rows
    borrowing = _features_bytes(tangents, own + offered, expert=True) + 8 * given
    spectrum = 5 * rows * (width or 0)  # singular vectors of explicit features
    solving = _features_bytes(tangents, rows, expert=True) + 8 * (6 * rows**2 + spectrum)
    return max(borrowing, solving)


def check_memory(plan: Plan, limit: int | None, device: torch.device) -> None:
    """Raise MemoryError, before anything is allocated, if the plan needs more memory than there is."""
    available = _available(device) if limit is None else limit
    if available is not None and plan.peak_bytes > available:
        what = "the memory that is free" if limit is None else "memory"
        raise MemoryError(
            f"the fit would need up to {size_text(plan.peak_bytes)}, more than {what} "
            f"({size_text(available)}). More experts, a budget, outputs='pseudo', witness=None or fewer "
            "workers need less."
        )


def _available(device: torch.device) -> int | None:
    """Bytes that this process may still allocate: the free memory of the GPU; or that of the machine, with
    reclaimable file cache, and at most what its control group leaves. None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    sizes, group = [], Path("/sys/fs/cgroup")
    with suppress(OSError, KeyError, ValueError):  # not Linux
        table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        sizes.append(int(table["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, KeyError, ValueError):  # no such group, or no limit ("max")
        most, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        table = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        sizes.append(int(most) - int(used) + int(table["inactive_file"]))
    return min(sizes, default=None)
