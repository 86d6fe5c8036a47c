"""What a fit will do, and what it needs in memory and time: estimated, chosen and refused before the work."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from ..data.chunking import CHUNK_ROWS, at_once, most_rows, near_bytes, row_bytes, rows_at_once
from ..data.quantities import size_text
from ..data.rows import SPARED_BYTES
from ..data.trees import Inputs
from ..data.user_warnings import warn_user
from ..executors import Executor, nearby
from ..executors.progress import Reporter, rate_text
from ..experts.features import chunk_rows
from ..experts.gate import DISTANCES, OVERSIZE
from ..experts.neighbours import CANDIDATES, lend_rows
from ..experts.system import by_columns
from ..experts.witness import AT_ONCE, Witness, vectors_of
from ..experts.witness_fit import MOST_JUDGED, NEARBY, PRIOR_SUBSET, witness_applies, witness_bytes
from ..math.evidence import LENGTHS, RATIOS
from ..tangents.base import TangentMap, chunk_bytes
from ..tangents.jacobian.strategies import WORKSPACE
from ..tangents.rows import WORKING_SET
from .divide import Sizing, bound_rows, expert_bytes, gate_bytes
from .duration import seconds_left
from .options import FitOptions
from .prepare import PROBE_ROWS, FitRows, Prepared

ROWS_PER_EXPERT = 1000  # of exact experts
# Small experts tell novel rows better than large ones; many take memory.
LIGHT_ROWS, MOST_EXPERTS = 250, 48
RANK = 256  # directions that an expert of a light model keeps, at most
CHUNK = 1.5  # what a chunk of rows takes while its features are made, over `chunk_bytes`
COLUMN_BLOCK = 8192  # columns of explicit features that are taken to float64 at a time
WITNESS_SHARE = 0.75  # of a budget, that a witness takes at most
WITNESS_MARGIN = 1.05  # what it may hold, over the estimate
INPUT_COPIES = 4  # of the inputs in a chunk of rows, with what the allocator keeps of earlier chunks
KEPT_FEATURES = 2**30  # bytes of explicit features kept in memory during a fit, or a quarter of what is free
SLACK = 64 * 2**20  # what libraries and the allocator take on their own account


@dataclass(frozen=True)
class Plan:
    """What a fit will do."""

    num_experts: int  # M, for each kernel
    rank: int | None  # the most directions that an expert keeps; None: all
    subset: int  # rows of the gate
    state_bytes: int  # what the model will hold, about
    peak_bytes: int  # what the fit will need in memory at its peak, beside the data, at most
    seconds: float  # how long what is left will take, roughly
    witness_bytes: int  # what the witness may hold of it; 0 without one
    kept_bytes: int = 0  # features of all rows, where they are kept during the fit
    kept_peak_bytes: int = 0  # what is then needed beside them
    kept_seconds: float = 0.0
    keep_features: bool = False  # whether they are kept
    mapped: bool = False  # in a mapped file

    def keeping(self, *, mapped: bool = False) -> Plan:
        """The plan of a fit that keeps the features of all rows, in memory or in a mapped file."""
        peak = self.kept_peak_bytes + (0 if mapped else self.kept_bytes)
        return replace(self, peak_bytes=peak, seconds=self.kept_seconds, keep_features=True, mapped=mapped)


def choose_plan(ready: Prepared, data: FitRows, options: FitOptions) -> tuple[Executor, Plan]:
    """The first of the executors for which the memory is there, and the plan; MemoryError: there is none."""
    refused = None
    for executor, plan in _ways(ready, data, options):
        try:
            check_memory(plan, options.memory, ready.network.device)
            return executor, plan
        except MemoryError as error:
            refused = error
    assert refused is not None
    raise refused


def _ways(ready: Prepared, data: FitRows, options: FitOptions) -> Iterator[tuple[Executor, Plan]]:
    """What may be tried, the best first: with the features of all rows kept during the fit, and without.

    Gradients are dear: without that they are made about three times. Only explicit features are as short as
    it takes.
    """
    maps, rows = [tangent_map for tangent_map, _ in ready.maps], data.rows
    sample = rows.take(torch.arange(min(PROBE_ROWS, chunk_rows(maps[0]), len(rows))))
    sizes = {"num_outputs": len(ready.blends) or ready.num_outputs}
    sizes["answered"] = 0 if data.validation is None else len(data.validation)
    double = rows.targets.dtype == torch.float64
    explicit, device = maps[0].num_columns(expert=False) is not None, ready.network.device
    room = max(KEPT_FEATURES, (_available(device) or 0 if options.memory is None else options.memory) // 4)
    for executor in options.executors(device):
        near = nearby(executor)  # memory is planned for this machine
        plan = make_plan(maps, sample, len(rows), options, workers=near.workers, double=double, **sizes)
        if explicit and plan.kept_bytes <= room:
            yield executor, plan.keeping()
        elif explicit and near is executor and _disk_has(plan.kept_bytes):  # a file does not travel
            yield executor, plan.keeping(mapped=True)
        yield executor, plan


def _disk_has(size: int) -> bool:
    """Whether a temporary file of features may be so large; says so where not."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free - SPARED_BYTES
    if size > free:
        warn_user(
            f"the features take {size_text(size)}, more than memory should hold, and {folder} has room for "
            f"{size_text(max(0, free))}: they are made about three times. Let TMPDIR name a larger folder."
        )
    return size <= free


def say_plan(report: Reporter, plan: Plan, num_rows: int, ready: Prepared, outputs: str) -> None:
    """Tell the user what is about to be done, and what it takes."""
    count = ready.num_outputs
    shared, separate = f"{count} backward passes", f"{count} kernels"
    passes = {"shared": shared, "separate": separate, "pseudo": "one backward pass"}
    report.say(f"tangents: {ready.tangents}, {ready.reason}")
    if ready.maps[0][0].apart:
        report.say(f"parameters {ready.maps[0][0].apart}")
    report.say(
        f"{num_rows} rows, {plan.num_experts} experts: the fit needs at most about "
        f"{size_text(plan.peak_bytes)} beside the data, and about {rate_text(plan.seconds)} s."
    )
    if plan.mapped:
        report.say(f"features: {size_text(plan.kept_bytes)} in a temporary file in {tempfile.gettempdir()}")
    report.say(f"outputs: {outputs}, {passes[outputs]} for {count} {'output' if count == 1 else 'outputs'}")


def make_plan(
    maps: list[TangentMap],
    sample: Inputs,
    n: int,
    options: FitOptions,
    *,
    num_outputs: int,
    workers: int,
    answered: int = 0,
    double: bool = False,
) -> Plan:
    """Check the sizes that were asked for, and estimate memory and time, with rows to calibrate on; `double`:
    whether the targets are in float64."""
    explicit = maps[0].num_columns(expert=True) is not None
    light = options.light and explicit
    rank = (options.rank or RANK) if light else None
    experts = usual_experts(n, light=light) if options.num_experts is None else options.num_experts
    if experts > n:
        raise ValueError(f"num_experts={experts} exceeds the {n} rows; lower it or pass more data.")
    tangents, kernels, division, budget = maps[0], len(maps), options.division, options.budget.size
    served, device = num_outputs // kernels, tangents.network.device
    subset = max(2, division.subset_size(n, experts))  # also where there is a single row
    outputs = tangents.mix.shape[1]
    second, search, work = witness_needs(options.witness, sample, n, outputs, workers, double)
    sizing = Sizing(maps, n, served, division, options.patchwork)
    if budget is not None:  # see `choose_within`
        second = _witness_room(second, budget, sizing.expected(experts, rank))
    counts = {"outputs": num_outputs, "served": served, "workers": workers, "answered": answered}
    shape = _Shape.of(n, experts, options, subset, **counts)
    if explicit:
        state = sizing.expected(experts, rank)
    else:  # sizes are uneven, and count squared
        each = int(1.3 * experts * expert_bytes(tangents, shape.rows, served))
        state = kernels * (gate_bytes(tangents, subset, division.components, experts) + each)
    state = state + second if budget is None else min(state + second, budget)
    given = min(n, most_rows(device), rows_at_once(sample, device)) * row_bytes(sample)
    always = 8 * n * (3 * num_outputs + division.components + 4) + SLACK + INPUT_COPIES * workers * given
    always += near_bytes(n + answered, sample, device)  # of which some may have been split off
    early = second + max(search, _division_bytes(tangents, shape))
    peak = always + max(early, state + _solving_bytes(tangents, shape))
    making = min(n * tangents.working_bytes(), workers * int(CHUNK * chunk_bytes(tangents)))
    solving = state + _solving_bytes(tangents, shape, kept=True)
    kept, features = always + max(early, second + making, solving), n * tangents.row_bytes()
    seconds = seconds_left(maps, sample, shape, options, work)
    return Plan(experts, rank, subset, state, int(peak), seconds[0], second, features, int(kept), seconds[1])


def _witness_room(wanted: int, budget: int, needed: int) -> int:
    """What a witness may hold of a budget, of which the experts need so much; 0: it is left out."""
    allowed = min(budget - needed, int(WITNESS_SHARE * budget))
    return min(math.ceil(WITNESS_MARGIN * wanted), allowed) if wanted <= allowed else 0


def usual_experts(n: int, *, light: bool) -> int:
    """How many experts n rows get where nobody says."""
    return min(math.ceil(n / LIGHT_ROWS), MOST_EXPERTS) if light else math.ceil(n / ROWS_PER_EXPERT)


def witness_needs(
    witness: Witness | None, sample: Inputs, n: int, num_outputs: int, workers: int, double: bool
) -> tuple[int, int, float]:
    """Of a witness: bytes that it will hold, bytes that its search takes at its peak, and multiplications of
    each worker over three: distances, small systems and the grid."""
    if witness is None or not witness_applies(n, sample, witness):
        return 0, 0, 0.0
    cells, width = math.ceil(n / witness.rows), vectors_of(sample).shape[1]
    held = witness_bytes(n, width, num_outputs, witness, double=double)
    largest = min(n, 2 * witness.rows)
    offered = min(n, NEARBY * witness.rows)
    apart = min(workers, 2 * cells) * largest * offered  # distances to rows of other cells
    judged = min(n, max(MOST_JUDGED, 32 * cells))
    labels = 2 * judged * (2 * cells if cells > 1 else 1)  # distances to all centroids, every cell split
    factors = min(workers, len(LENGTHS)) * 3 * len(RATIOS) * largest**2
    pairs = 3 * min(n, 1000) ** 2  # for the typical distance
    p = witness.neighbours + 1
    solved = min(AT_ONCE // 8, n * (cells + 4 * largest + 4 * p * (p + width + num_outputs)))
    peak = held + 8 * (max(apart, labels, factors, pairs, solved) + 4 * n * (width + num_outputs))
    grid = len(LENGTHS) * len(RATIOS) * min(PRIOR_SUBSET, cells) * math.ceil(n / cells) ** 3
    asked = n * (offered * width + p**3)
    return held, peak, (grid + 3 * asked) / 3 / workers


class _Shape(NamedTuple):
    """What is known of the experts before there are any."""

    n: int
    experts: int
    components: int
    subset: int  # rows of the gate
    neighbours: int
    lend: int  # rows from each neighbour
    rows: int  # of an average expert, its neighbours' rows among them
    largest: int  # own rows of the largest expert
    offered: int  # rows of neighbours among which the largest expert may choose
    outputs: int  # that the experts learn
    served: int  # of them, by each kernel
    workers: int
    answered: int  # rows to calibrate on

    @classmethod
    def of(cls, n: int, experts: int, options: FitOptions, subset: int, **counts: int) -> _Shape:
        mean, components = math.ceil(n / experts), options.division.components
        neighbours = min(options.patchwork.neighbours, experts - 1)
        lend = lend_rows(options.patchwork, n, experts)
        largest = min(n, math.ceil(OVERSIZE * mean)) if experts > 1 else n
        offered = min(CANDIDATES * lend * neighbours, n - largest)
        rows = mean + lend * neighbours
        return cls(n, experts, components, subset, neighbours, lend, rows, largest, offered, **counts)


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
    rows = max(shape.subset, bound_rows(shape.n))
    kernel = _features_bytes(tangents, rows, expert=False) + 6 * 8 * rows * rows
    kernel += 8 * rows * (tangents.num_columns(expert=False) or 0)
    rows_and_labels = 8 * shape.n * (3 * shape.components + 10)
    return max(kernel, rows_and_labels + 3 * at_once(DISTANCES, tangents.network.device))


def _solving_bytes(tangents: TangentMap, shape: _Shape, *, kept: bool = False) -> int:
    """What the workers need beside the state: each the largest expert, while there are rows for it. Where
    features are kept, none are made."""
    total, left = 0, shape.n
    for _ in range(min(shape.workers, 2 * shape.experts if shape.experts > 1 else 1)):  # every expert split
        own = min(shape.largest, left)
        left -= own
        making = 0 if kept else _making_bytes(tangents, own)
        total += making + (_expert_peak(tangents, own, shape, kept=kept) if own else 0)
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


def _expert_peak(tangents: TangentMap, own: int, shape: _Shape, *, kept: bool) -> int:
    """What solving one expert needs beside the making of features, with so many rows of its own, while it
    borrows or is solved."""
    offered, width = shape.offered, tangents.num_columns(expert=True)
    rows = own + min(offered, shape.lend * shape.neighbours)
    if width is not None and by_columns(width, own):
        stay = kept and shape.experts == 1 and width == tangents.num_columns(expert=False)
        table = 0 if stay else 2 * rows * width * tangents.network.dtype.itemsize
        return table + 8 * (12 * width**2 + 4 * width * (offered + CHUNK_ROWS) + 12 * rows * shape.outputs)
    given = 6 * own**2 + 4 * own * offered + 3 * offered**2  # candidates, given the own rows
    borrowing = _features_bytes(tangents, own + offered, expert=True) + 8 * given
    spectrum = 5 * rows * (width or 0)  # singular vectors of explicit features
    solving = _features_bytes(tangents, rows, expert=True) + 8 * (6 * rows**2 + spectrum)
    return max(borrowing, solving)


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
    except (AttributeError, ValueError, OSError):  # not known on this system
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
