"""Tables of the runtime study: how long every call takes, how good and how large every method is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Table
from .calls import RUNTIMES

MEGABYTE = 1e6
TIMED = ("method", "runtime", "batch", "threads")
TIMES = ("median", "p99", "over_network", "passes_over_this", "over_eager_ensemble", "peak", "file_bytes")
QUALITY = ("nll", "auroc", "bytes")
Entry = Mapping[str, Any]


def merged(seeds: Sequence[Sequence[Entry]], by: Sequence[str], numbers: Sequence[str]) -> list[Entry]:
    """Entries of several seeds as one each: means of the numbers that every seed has, the first reason.

    Args:
        seeds: The entries of each.
        by: What entries that belong together have in common.
        numbers: Of which the means are taken.
    """
    lots: dict[tuple, list[Entry]] = {}
    for entry in chain.from_iterable(seeds):
        lots.setdefault(tuple(entry[name] for name in by), []).append(entry)
    return [
        {
            **lot[0],
            **{name: _mean([entry.get(name) for entry in lot]) for name in numbers},
            "reason": next((entry["reason"] for entry in lot if entry["reason"]), ""),
        }
        for lot in lots.values()
    ]


def merged_times(seeds: Sequence[Sequence[Entry]]) -> list[Entry]:
    """Of calls."""
    return merged(seeds, TIMED, ("calls", *TIMES))


def merged_quality(seeds: Sequence[Mapping[str, Entry]]) -> dict[str, Entry]:
    """Of methods, by name."""
    entries = [[{"method": name, **found} for name, found in seed.items()] for seed in seeds]
    return {entry["method"]: entry for entry in merged(entries, ("method",), QUALITY)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def time_table(network: str, entries: Sequence[Entry], *, absolute: bool) -> Table:
    """Every method in every runtime, on all batches and threads.

    Args:
        network: Its name.
        entries: Merged over seeds.
        absolute: Whether milliseconds mean something; else they are for orientation, which the note says.
    """
    order = sorted(entries, key=lambda e: (e["batch"], e["threads"], RUNTIMES.index(e["runtime"])))
    cells = {(_where(entry), entry["method"]): {**entry, "calls": entry["calls"] or None} for entry in order}
    note = "Ratios are medians over rounds, both sides from the same round and the same runtime. "
    note += "No p99 below 100 calls. Memory: at the peak of a call, beside what was held before it."
    if not absolute:
        note += " Other work ran on this machine: the ratios count, the milliseconds are for orientation."
    rows = {name: Column.text(name) for name in ("where", "method")}
    measures = [
        _number("median", Column("median", digits=2, unit="ms"), 1e3),
        _number("p99", Column("p99", digits=2, unit="ms"), 1e3),
        _number("over_network", Column("over the network", digits=2, unit="x")),
        _number("passes_over_this", Column("20 passes over it", digits=1, unit="x")),
        _number("peak", Column("memory of a call", digits=1, unit="MB"), 1 / MEGABYTE),
        _number("calls", Column("calls", digits=0)),
        WHY_NOT,
    ]
    grid = Grid.of(("where", "method"), {(): [cells]}, dict)
    return Pivot(f"{network}: time of a call", rows, measures, block="where", note=note).table(grid)


def quality_table(
    qualities: Mapping[str, Mapping[str, Entry]], entries: Mapping[str, Sequence[Entry]]
) -> Table:
    """How good every method is, and how much it holds.

    Args:
        qualities: By network and method.
        entries: By network; they know the sizes of exported files.
    """
    cells = {}
    for network, methods in qualities.items():
        files = {e["method"]: e["file_bytes"] for e in entries.get(network, ()) if e["file_bytes"]}
        cells |= {(network, name): {**found, "file": files.get(name)} for name, found in methods.items()}
    note = (
        "NLL of test rows, per output in a regression. AUROC by the epistemic variance; of classes by the "
        "variance of the logits, or the entropy of methods without one. An ensemble without scores was timed "
        "with members that were not trained."
    )
    rows = {name: Column.text(name) for name in ("network", "method")}
    measures = [
        _number("nll", Column("NLL", digits=3, better="low")),
        _number("auroc", Column("AUROC of new rows", digits=3, better="high")),
        _number("bytes", Column("held, network included", digits=1, unit="MB"), 1 / MEGABYTE),
        _number("file", Column("ONNX file", digits=1, unit="MB"), 1 / MEGABYTE),
        WHY_NOT,
    ]
    grid = Grid.of(("network", "method"), {(): [cells]}, dict)
    return Pivot("How good, and how large", rows, measures, block="network", note=note).table(grid)


WHY_NOT = Measure("reason", Column.text("why not"), words=str)


def _number(key: str, column: Column, factor: float = 1.0) -> Measure:
    return Measure(key, column, factor, statistic=fmean)  # seeds are merged already


def _where(entry: Entry) -> str:
    threads = entry["threads"]
    return f"batch {entry['batch']}, {threads} thread{'s' if threads > 1 else ''}, {entry['runtime']}"
