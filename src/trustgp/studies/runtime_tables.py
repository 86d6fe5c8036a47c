"""Tables of the runtime study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from .base import Column, Table
from .runtime_calls import RUNTIMES

MEGABYTE = 1e6
NUMBERS = (
    "calls",
    "median",
    "p99",
    "over_network",
    "passes_over_this",
    "over_eager_ensemble",
    "peak",
    "file_bytes",
)
Entry = dict[str, Any]
Place = tuple[int, int]
"""Rows of a call, and threads."""


def merged(seeds: Sequence[Sequence[Entry]]) -> list[Entry]:
    """Entries of several seeds as one each: means of the numbers that every seed has, the first reason."""
    found = []
    for lot in _alike(seeds, ("method", "runtime", "batch", "threads")):
        numbers = {name: _mean([entry.get(name) for entry in lot]) for name in NUMBERS}
        found.append({**lot[0], **numbers, "reason": next((e["reason"] for e in lot if e["reason"]), "")})
    return found


def merged_quality(seeds: Sequence[Mapping[str, Entry]]) -> dict[str, Entry]:
    """The same for the quality of methods."""
    return {
        name: {
            **{key: _mean([seed[name][key] for seed in seeds]) for key in ("nll", "auroc", "bytes")},
            "reason": next((seed[name]["reason"] for seed in seeds if seed[name]["reason"]), ""),
        }
        for name in seeds[0]
    }


def at(entries: Sequence[Entry], place: Place) -> list[Entry]:
    """Those of one batch size and number of threads."""
    return [entry for entry in entries if (entry["batch"], entry["threads"]) == place]


def time_table(network: str, entries: Sequence[Entry], *, absolute: bool) -> Table:
    """Every method in every runtime, on all batches and threads.

    Args:
        network: Its name.
        entries: Merged over seeds.
        absolute: Whether milliseconds mean something; else they are for orientation, which the note says.
    """
    order = sorted(entries, key=lambda e: (e["batch"], e["threads"], RUNTIMES.index(e["runtime"])))
    rows = [
        [
            f"batch {e['batch']}, {e['threads']} thread{'s' if e['threads'] > 1 else ''}, {e['runtime']}",
            e["method"],
            _times(e["median"], 1e3),
            _times(e["p99"], 1e3),
            e["over_network"],
            e["passes_over_this"],
            _times(e["peak"], 1 / MEGABYTE),
            e["calls"] or None,
            e["reason"],
        ]
        for e in order
    ]
    columns = [
        Column("where", digits=-1),
        Column("method", digits=-1),
        Column("median", digits=2, unit="ms"),
        Column("p99", digits=2, unit="ms"),
        Column("over the network", digits=2, unit="x"),
        Column("20 passes over it", digits=1, unit="x"),
        Column("memory of a call", digits=1, unit="MB"),
        Column("calls", digits=0),
        Column("why not", digits=-1),
    ]
    note = "Ratios are medians over rounds, both sides from the same round and the same runtime. "
    note += "No p99 below 100 calls. Memory: at the peak of a call, beside what was held before it."
    if not absolute:
        note += " Other work ran on this machine: the ratios count, the milliseconds are for orientation."
    return Table(f"{network}: time of a call", columns, rows, block="where", note=note)


def quality_table(
    qualities: Mapping[str, Mapping[str, Entry]], entries: Mapping[str, Sequence[Entry]]
) -> Table:
    """How good every method is, and how much it holds.

    Args:
        qualities: By network and method.
        entries: By network; they know the sizes of exported files.
    """
    rows = []
    for network, methods in qualities.items():
        files = {e["method"]: e["file_bytes"] for e in entries.get(network, ()) if e["file_bytes"]}
        rows += [
            [
                network,
                method,
                found["nll"],
                found["auroc"],
                _times(found["bytes"], 1 / MEGABYTE),
                _times(files.get(method), 1 / MEGABYTE),
                found["reason"],
            ]
            for method, found in methods.items()
        ]
    columns = [
        Column("network", digits=-1),
        Column("method", digits=-1),
        Column("NLL", digits=3, better="low"),
        Column("AUROC of new rows", digits=3, better="high"),
        Column("held, network included", digits=1, unit="MB"),
        Column("ONNX file", digits=1, unit="MB"),
        Column("why not", digits=-1),
    ]
    note = (
        "NLL of test rows, per output in a regression. AUROC by the epistemic variance; of classes by the "
        "variance of the logits, or the entropy of methods without one. An ensemble without scores was timed "
        "with members that were not trained."
    )
    return Table("How good, and how large", columns, rows, block="network", note=note)


def _alike(seeds: Sequence[Sequence[Entry]], names: Sequence[str]) -> list[list[Entry]]:
    lots: dict[tuple, list[Entry]] = {}
    for seed in seeds:
        for entry in seed:
            lots.setdefault(tuple(entry[name] for name in names), []).append(entry)
    return list(lots.values())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value
