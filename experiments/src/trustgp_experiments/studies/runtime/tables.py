"""Tables and findings of the runtime study: times, quality, and where peers are ahead."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from ...core.pivot import Measure, Pivot, flat_measure, flat_table
from ...core.result import Column, Table, note
from .calls import RUNTIMES
from .fixtures import DEFAULT, ours

HEADLINE = (1, 1)  # one row, one thread
WHY_NOT = Measure("reason", Column.text("why not"), words=str)
TIMES = [
    *(flat_measure(key, key, 2, unit="ms", factor=1e3) for key in ("median", "p99")),
    flat_measure("over_network", "over the network", 2, unit="x"),
    flat_measure("passes_over_this", "20 passes over it", 1, unit="x"),
    flat_measure("over_ensemble", "over the ensemble", 2, unit="x"),
    flat_measure("peak", "memory of a call", 1, unit="MB", factor=1e-6),
    flat_measure("calls", "calls", 0),
    WHY_NOT,
]
TIMES_NOTE = note(__name__, "Times")
BUSY = " Other work ran on this machine: the ratios count, the milliseconds are for orientation."
QUALITY = Pivot(
    "How good, and how large",
    {"network": Column.text("network"), "method": Column.text("method")},
    [
        flat_measure("nll", "NLL", 3, "low"),
        flat_measure("auroc", "AUROC of new rows", 3, "high"),
        flat_measure("bytes", "held, network included", 1, unit="MB", factor=1e-6),
        WHY_NOT,
    ],
    block="network",
    note=note(__name__, "Quality"),
)

Entry = Mapping[str, Any]
Entries = Mapping[str, Sequence[Entry]]
"""Entries by network, one for each method, runtime, batch and number of threads."""
Quality = Mapping[tuple[str, str], Entry]
"""Scores by network and method."""


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables of quality and of each network's times; findings on peers ahead and on skipped networks."""
    labels = ("method", "runtime", "batch", "threads")
    entries, quality = {}, {}
    for name, seeds in numbers["networks"].items():
        entries[name] = _merged((seed["entries"] for seed in seeds), *labels)
        rows = ([{"method": m, **scores} for m, scores in seed["quality"].items()] for seed in seeds)
        quality |= {(name, one["method"]): one for one in _merged(rows, "method")}
    times = [time_table(name, entries_of, numbers["device"]) for name, entries_of in entries.items()]
    skipped = [f"{name} skipped: {why}." for name, why in numbers["skipped"].items()]
    first = {n: [e for e in of if (e["batch"], e["threads"]) == HEADLINE] for n, of in entries.items()}
    findings = [*lower_nll(quality), *against_ensembles(first), *skipped]
    return [flat_table(QUALITY, quality), *times], findings


def _merged(seeds: Iterable[Sequence[Entry]], *labels: str) -> list[Entry]:
    """Entries merged by labels, with means of the numbers that every seed has, and the first reason."""
    groups: dict[tuple, list[Entry]] = {}
    for entry in chain.from_iterable(seeds):
        groups.setdefault(tuple(entry[label] for label in labels), []).append(entry)

    def together(key: str, values: list[Any]) -> Any:
        if key in labels or isinstance(values[0], str):
            return next(filter(None, values), "")
        return None if None in values else fmean(values)

    return [{key: together(key, [e[key] for e in group]) for key in group[0]} for group in groups.values()]


def time_table(network: str, entries: Sequence[Entry], device: str) -> Table:
    """Table of times by batch, threads, runtime and method."""

    def where(entry: Entry) -> str:
        threads = entry["threads"]
        return f"batch {entry['batch']}, {threads} thread{'s' if threads > 1 else ''}, {entry['runtime']}"

    order = sorted(entries, key=lambda e: (e["batch"], e["threads"], RUNTIMES.index(e["runtime"])))
    cells = {(where(entry), entry["method"]): {**entry, "calls": entry["calls"] or None} for entry in order}
    rows = {"where": Column.text("where"), "method": Column.text("method")}
    note = TIMES_NOTE + ("" if device == "cuda" else BUSY)
    return flat_table(Pivot(f"{network}: time of a call", rows, TIMES, block="where", note=note), cells)


def lower_nll(quality: Quality) -> list[str]:
    """Sentence on peers with a lower NLL than the default, by network, the lowest first."""
    lost = []
    for network in dict.fromkeys(network for network, _ in quality):
        nll = {m: one["nll"] for (n, m), one in quality.items() if n == network and one["nll"] is not None}
        own = nll.get(ours(DEFAULT), -math.inf)
        ahead = [m for m in sorted(nll, key=nll.__getitem__) if nll[m] < own and not m.startswith(ours(""))]
        if ahead:
            lost.append(f"{network}, {own:.3f}: {', '.join(f'{m} {nll[m]:.3f}' for m in ahead)}")
    return [f"Lower NLL than the default has, on {'; '.join(lost)}."] if lost else []


def against_ensembles(entries: Entries) -> list[str]:
    """Sentence on the time of the default's call over five networks in one runtime, the slowest first."""
    ratios = [
        (entry["over_ensemble"], f"{network} in {entry['runtime']} {entry['over_ensemble']:.2f}")
        for network, entries_of in entries.items()
        for entry in entries_of
        if entry["method"] == ours(DEFAULT) and entry["over_ensemble"] is not None
    ]
    slower = sum(ratio > 1 for ratio, _ in ratios)
    listed = ", ".join(words for _, words in sorted(ratios, reverse=True))
    start = "A call of the default over one of an ensemble of 5, one row and one thread, both in the same"
    return [f"{start} runtime: dearer in {slower} of {len(ratios)} ({listed})."] if ratios else []
