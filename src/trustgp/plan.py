"""How large and how long: estimates before the work, and the rows that fit a budget."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass

import torch

from .data import Inputs, count
from .gating import OVERSIZE, Division
from .patchwork import Patchwork
from .solving import CANDIDATES, Handout, lend_rows
from .tangents.base import TangentMap

ROWS_PER_EXPERT = 1000
FEWEST_ROWS = 8  # an expert with fewer rows than this, if it has them, is not worth its gate
OVERHEAD = 64 * 2**10  # names, scales and settings
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Plan:
    """What a fit will do.

    Args:
        num_experts: M, for each kernel.
        subset: Rows of the gate.
        state_bytes: What the model will hold, about.
        peak_bytes: What the fit will need in memory at its peak, beside the data, at most.
        seconds: How long it will take, roughly.
    """

    num_experts: int
    subset: int
    state_bytes: int
    peak_bytes: int
    seconds: float


def parse_bytes(value: int | str, *, name: str) -> int:
    """Bytes from a number or a text like "64 MiB"."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]+)\s*", value)
        if match is None or match[2].lower() not in _UNITS:
            raise ValueError(f'{name}="{value}"; write bytes, or a text like "64 MiB" or "2 GB".')
        value = int(float(match[1]) * _UNITS[match[2].lower()])
    if value < 1:
        raise ValueError(f"{name}={value} bytes; a positive size is needed.")
    return value


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def expert_bytes(tangents: TangentMap, rows: int, num_outputs: int) -> int:
    """What an expert of so many rows holds."""
    width = tangents.width(expert=True)
    if width is None:
        return rows * (tangents.row_bytes() + 8 * rows + 8 * num_outputs + 8)
    rank = min(rows, width)
    basis = width * (rank * tangents.network.dtype.itemsize + 8 * num_outputs + 8)
    return basis + 8 * rank + 8 * rows


def gate_bytes(tangents: TangentMap, subset: int, components: int, num_experts: int) -> int:
    """What a gate holds."""
    if num_experts == 1:
        return 8
    width = tangents.width(expert=False)
    projection = subset * (tangents.row_bytes() + 8 * components)
    if width is not None:
        projection = 8 * width * components
    return projection + 8 * components * (num_experts + 1)


def smallest_subset(division: Division, n: int, num_experts: int) -> int:
    """The gate's rows below which a budget may not push it."""
    return min(division.subset_size(n, num_experts), max(32, 2 * num_experts), n)


def smallest_budget(
    tangents: TangentMap, n: int, num_experts: int, division: Division, num_outputs: int
) -> int:
    """The least memory with which a model of so many experts, each split once, is possible."""
    most = min(2 * num_experts, n) if num_experts > 1 else 1
    subset = smallest_subset(division, n, num_experts)
    gate = gate_bytes(tangents, subset, division.components, most)
    return OVERHEAD + gate + most * expert_bytes(tangents, min(FEWEST_ROWS, n), num_outputs)


def subset_for_budget(tangents: TangentMap, n: int, num_experts: int, division: Division, budget: int) -> int:
    """The gate's rows such that it takes at most a quarter of the budget, if that is possible."""
    wanted = division.subset_size(n, num_experts)
    if tangents.width(expert=False) is not None:  # contracted: its size does not depend on the rows
        return wanted
    room = budget // 4 // (tangents.row_bytes() + 8 * division.components)
    return min(wanted, max(room, smallest_subset(division, n, num_experts)))


def handout_for_budget(
    tangents: TangentMap,
    sizes: list[int],
    neighbours: list[int],
    lend: int,
    room: int,
    num_outputs: int,
) -> Handout:
    """The most rows per expert such that all experts together stay within `room` bytes.

    Args:
        sizes: Own rows of each expert.
        neighbours: How many neighbours each has.
        lend: Rows wanted from each neighbour.
        room: Bytes for the experts.
    """

    def total(cap: int) -> int:
        share = min(lend, cap // 10)
        return sum(
            expert_bytes(tangents, min(own, cap) + share * near, num_outputs)
            for own, near in zip(sizes, neighbours, strict=True)
        )

    low, high = 1, max(sizes)
    if total(high) <= room and lend <= high // 10:
        return Handout(high, lend)
    while low < high:  # the largest cap that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if total(middle) <= room else (low, middle - 1)
    return Handout(low, min(lend, low // 10))


def make_plan(
    tangents: list[TangentMap],
    sample: Inputs,
    n: int,
    num_experts: int | None,
    *,
    division: Division,
    patchwork: Patchwork,
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
    target, lend = math.ceil(n / experts), lend_rows(patchwork, n, experts)
    rows = target + lend * min(patchwork.neighbours, experts - 1)
    state = len(tangents) * (
        gate_bytes(tangents[0], subset, division.components, experts)
        + int(1.3 * experts * expert_bytes(tangents[0], rows, served))  # sizes are uneven
    )
    state = state if budget is None else min(state, budget)
    largest = min(n, math.ceil(OVERSIZE * target) if experts > 1 else n)
    offered = CANDIDATES * lend * min(patchwork.neighbours, experts - 1)
    peak = state + workers * working_bytes(tangents[0], largest, min(offered, n - largest))
    peak += working_bytes(tangents[0], subset, 0) + 8 * n * (3 * num_outputs + division.components + 4)
    seconds = len(tangents) * _seconds(tangents[0], sample, n, experts, rows, offered, subset, workers)
    return Plan(experts, subset, state, int(peak), seconds)


def working_bytes(tangents: TangentMap, own: int, offered: int) -> int:
    """What solving one expert needs beside its state, at most."""
    rows = own + offered
    features = 2 * rows * tangents.row_bytes()  # chunks and their concatenation
    doubled = 2 * rows * tangents.row_bytes()  # float64 copies of the widest layer, at most all
    return features + doubled + 6 * 8 * rows * rows + 96 * 2**20


def check_memory(plan: Plan, limit: int | None, device: torch.device) -> None:
    """Refuse before allocating what will not fit."""
    available = _available(device) if limit is None else limit
    if available is not None and plan.peak_bytes > available:
        what = "the memory that is free" if limit is None else "memory"
        raise MemoryError(
            f"the fit would need up to {size_text(plan.peak_bytes)}, more than {what} "
            f"({size_text(available)}). More experts, a budget, outputs='pseudo' or fewer workers need less."
        )


def _available(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known on this system
        return None


def _seconds(
    tangents: TangentMap,
    sample: Inputs,
    n: int,
    experts: int,
    rows: int,
    offered: int,
    subset: int,
    workers: int,
) -> float:
    """Rough time of a fit, from a small probe of this machine."""
    with torch.no_grad():
        tangents(sample)
        start = time.perf_counter()
        features = tangents(sample)
        per_row = (time.perf_counter() - start) / count(sample)
        start = time.perf_counter()
        features.gram(features)
        per_pair = (time.perf_counter() - start) / count(sample) ** 2
        probe = torch.eye(256, dtype=torch.float64, device=tangents.network.device)
        start = time.perf_counter()
        for _ in range(3):
            torch.linalg.cholesky(probe)
        flop = (time.perf_counter() - start) / 3 / (256**3 / 3)
    division = n * (per_row + subset * per_pair)
    one = (rows + offered) * per_row + (rows + offered) ** 2 * per_pair + 30 * flop * rows**3 / 3
    return (division + experts * one) / workers
