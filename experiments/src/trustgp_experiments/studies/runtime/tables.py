"""Tables, figures and findings of the runtime study: how long, how good, how large, and what is promised."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from trustgp import plots

from ...core.pivot import Measure, Pivot, flat_measure, flat_table
from ...core.result import Column, Table
from .calls import RUNTIMES
from .fixtures import BATCHED, DEFAULT, ENSEMBLE, PLAIN, SERIAL, ours

HEADLINE = (1, 1)  # one row, one thread
LOSS = 0.02  # of NLL or AUROC to the default

Entry = Mapping[str, Any]
Entries = Mapping[str, Sequence[Entry]]
"""By network, what was measured, an entry for each method, runtime, batch and number of threads."""
Quality = Mapping[str, Entry]
"""By method."""


def merged_networks(found: Mapping[str, Sequence[Entry]]) -> tuple[Entries, Mapping[str, Quality]]:
    """By network, its entries and its quality, of all seeds together."""
    entries = {name: merged_times([seed["entries"] for seed in seeds]) for name, seeds in found.items()}
    qualities = {}
    for name, seeds in found.items():
        methods = ({"method": m, **scores} for seed in seeds for m, scores in seed["quality"].items())
        qualities[name] = {entry["method"]: entry for entry in _merged(methods, "method")}
    return entries, qualities


def headline(entries: Entries) -> Entries:
    """Those of one row and one thread."""
    return {n: [e for e in some if (e["batch"], e["threads"]) == HEADLINE] for n, some in entries.items()}


def tables(entries: Entries, qualities: Mapping[str, Quality], device: str) -> list[Table]:
    """What is required, how good and how large, and the times of each network."""
    first, absolute = headline(entries), device.startswith("cuda")
    times = [time_table(name, some, absolute=absolute) for name, some in entries.items()]
    return [requirement_table(first, qualities), quality_table(qualities, first), *times]


def findings(entries: Entries, qualities: Mapping[str, Quality], skipped: Mapping[str, str]) -> list[str]:
    """Who is better, what is met, and what was skipped."""
    told = on_peers(qualities) + requirement_findings(headline(entries), qualities)
    return told + [f"{name} skipped: {why}." for name, why in skipped.items()]


def merged_times(seeds: Sequence[Sequence[Entry]]) -> list[Entry]:
    """Of calls, over seeds: means of the numbers that every seed has, the first reason."""
    return _merged(chain.from_iterable(seeds), "method", "runtime", "batch", "threads")


def _merged(entries: Iterator[Entry], *by: str) -> list[Entry]:
    """Entries that have the same labels, as one each."""
    lots: dict[tuple, list[Entry]] = {}
    for entry in entries:
        lots.setdefault(tuple(entry[label] for label in by), []).append(entry)

    def together(key: str, values: list[Any]) -> Any:
        if key in by or isinstance(values[0], str):
            return next(filter(None, values), "")
        return None if None in values else fmean(values)

    return [{key: together(key, [entry[key] for entry in lot]) for key in lot[0]} for lot in lots.values()]


WHY_NOT = Measure("reason", Column.text("why not"), words=str)
OVER = flat_measure("over_network", "over the network", 2, unit="x")
UNDER = flat_measure("passes_over_this", "20 passes over it", 1, unit="x")
MEMBERS = flat_measure("over_ensemble", "over the ensemble", 2, unit="x")
SECONDS = [flat_measure(key, key, 2, unit="ms", factor=1e3) for key in ("median", "p99")]
MEMORY = flat_measure("peak", "memory of a call", 1, unit="MB", factor=1e-6)
TIMES = [*SECONDS, OVER, UNDER, MEMBERS, MEMORY, flat_measure("calls", "calls", 0), WHY_NOT]


def _texts(*names: str) -> dict[str, Column]:
    """Columns of labels, by axis."""
    return {name: Column.text(name) for name in names}


def time_table(network: str, entries: Sequence[Entry], *, absolute: bool) -> Table:
    """Every method, runtime, batch and threads, merged over seeds; if not `absolute`, the note says so."""

    def where(entry: Entry) -> str:
        threads = entry["threads"]
        return f"batch {entry['batch']}, {threads} thread{'s' if threads > 1 else ''}, {entry['runtime']}"

    order = sorted(entries, key=lambda e: (e["batch"], e["threads"], RUNTIMES.index(e["runtime"])))
    cells = {(where(entry), entry["method"]): {**entry, "calls": entry["calls"] or None} for entry in order}
    note = "Ratios are medians over rounds, both sides from the same round and the same runtime. "
    note += "No p99 below 100 calls. Memory: at the peak of a call, beside what was held before it."
    if not absolute:
        note += " Other work ran on this machine: the ratios count, the milliseconds are for orientation."
    title = f"{network}: time of a call"
    return flat_table(Pivot(title, _texts("where", "method"), TIMES, block="where", note=note), cells)


QUALITY = Pivot(
    "How good, and how large",
    _texts("network", "method"),
    [
        flat_measure("nll", "NLL", 3, "low"),
        flat_measure("auroc", "AUROC of new rows", 3, "high"),
        flat_measure("bytes", "held, network included", 1, unit="MB", factor=1e-6),
        flat_measure("file", "ONNX file", 1, unit="MB", factor=1e-6),
        WHY_NOT,
    ],
    block="network",
    note="NLL of test rows, per output in a regression. AUROC by the epistemic variance; of classes by the "
    "variance of the logits, or the entropy of methods without one. An ensemble without scores was timed "
    "with members that were not trained.",
)


def quality_table(qualities: Mapping[str, Quality], entries: Entries) -> Table:
    """How good every method is, and how much it holds; the entries know the sizes of exported files."""
    cells = {}
    for network, methods in qualities.items():
        files = {e["method"]: e["file_bytes"] for e in entries.get(network, ()) if e["file_bytes"]}
        cells |= {(network, name): {**found, "file": files.get(name)} for name, found in methods.items()}
    return flat_table(QUALITY, cells)


@dataclass(frozen=True)
class Requirement:
    """Of a network, at batch 1 and one thread, both sides in the same runtime."""

    faster: float  # times faster than 20 passes one after another, at least
    slower: float  # times the plain network, at most

    def is_met(self, entry: Entry) -> bool:
        """Whether an entry is as fast as required."""
        fast = entry["passes_over_this"] is not None and entry["passes_over_this"] >= self.faster
        return fast and entry["over_network"] <= self.slower

    @property
    def words(self) -> str:
        """In a table."""
        return f"{self.faster:g} times faster than 20 passes, {self.slower:g} times the network at most"


REQUIREMENTS = {"DETR": Requirement(12.0, 1.6), "ResNet-18": Requirement(8.0, 2.5)}
PROMISED = Pivot(
    "What was promised",
    {**_texts("network", "promise", "runtime"), "method": Column.text("the fastest that loses little")},
    [
        OVER,
        UNDER,
        *(flat_measure(key, f"{key.upper()} lost", 1, unit="%", factor=100) for key in ("nll", "auroc")),
        Measure("met", Column.text("kept"), words=lambda met: "yes" if met else "no"),
    ],
    note="Batch 1, one thread, like with like: both sides of a ratio in the same runtime. Loses little: at "
    f"most {100 * LOSS:.0f} % of NLL or of AUROC to the default. Negative: it is better.",
)


def shares_lost(quality: Quality, method: str) -> dict[str, float | None]:
    """What a budget costs in NLL and AUROC, as shares of the default; negative: it is better."""
    whole, here = quality[ours(DEFAULT)], quality[method]

    def share(name: str, sign: float) -> float | None:
        a, b = whole[name], here[name]
        return None if a is None or b is None or a == 0 else sign * (b - a) / abs(a)

    return {"nll": share("nll", 1.0), "auroc": share("auroc", -1.0)}


def fastest(entries: Sequence[Entry], quality: Quality) -> list[Entry]:
    """Of each runtime that has one, the fastest of our models that loses little of NLL or AUROC."""
    names = [name for name in quality if name.startswith(ours(""))]
    lost = {name: shares_lost(quality, name) for name in names}
    good = [name for name in names if any(v is not None and v <= LOSS for v in lost[name].values())]
    tried = [{**e, **lost[e["method"]]} for e in entries if e["method"] in good]
    tried = [entry for entry in tried if entry["over_network"] is not None]
    chosen = [[entry for entry in tried if entry["runtime"] == runtime] for runtime in RUNTIMES]
    return [min(some, key=lambda entry: entry["over_network"]) for some in chosen if some]


def requirement_table(entries: Entries, qualities: Mapping[str, Quality]) -> Table:
    """A line for each requirement and runtime, from entries of one row and one thread."""
    cells = {}
    for network, required in REQUIREMENTS.items():
        for found in fastest(entries.get(network, ()), qualities.get(network, {})):
            labels = (network, required.words, found["runtime"], found["method"])
            cells[labels] = {**found, "met": required.is_met(found)}
    return flat_table(PROMISED, cells)


def requirement_findings(entries: Entries, qualities: Mapping[str, Quality]) -> list[str]:
    """One sentence for each network and what is required of it."""
    found = []
    for network, required in REQUIREMENTS.items():
        if network not in entries:
            continue
        tried = fastest(entries[network], qualities[network])
        if not tried:
            found.append(f"{network}: no budget loses as little as {100 * LOSS:.0f} %.")
            continue
        good = [entry["runtime"] for entry in tried if required.is_met(entry)]
        words = "; ".join(
            f"{entry['runtime']} ({entry['method']}) {entry['over_network']:.2f} times the network, "
            f"{_faster(entry['passes_over_this'])}"
            for entry in tried
        )
        verdict = f"kept in {', '.join(good)}" if good else "not kept"
        found.append(f"{network}, promised {required.words}: {verdict}. {words}.")
    return on_ensembles(entries) + found


def _faster(ratio: float | None) -> str:
    return "20 passes not timed" if ratio is None else f"{ratio:.1f} times faster than 20 passes"


def on_peers(qualities: Mapping[str, Quality]) -> list[str]:
    """Of the default: which peers have the lower NLL, by network, the lowest first."""
    lost = []
    for network, methods in qualities.items():
        nll = {method: entry["nll"] for method, entry in methods.items() if entry["nll"] is not None}
        own = nll.get(ours(DEFAULT), -math.inf)
        peers = [method for method in sorted(nll, key=nll.__getitem__) if not method.startswith(ours(""))]
        ahead = [method for method in peers if nll[method] < own]
        if ahead:
            lost.append(
                f"{network}, {own:.3f}: {', '.join(f'{method} {nll[method]:.3f}' for method in ahead)}"
            )
    return [f"Lower NLL than the default has, on {'; '.join(lost)}."] if lost else []


def on_ensembles(entries: Entries) -> list[str]:
    """Of the default: what a call costs beside five networks in the same runtime, the dearest first."""
    found = [
        (entry["over_ensemble"], f"{network} in {entry['runtime']} {entry['over_ensemble']:.2f}")
        for network, some in entries.items()
        for entry in some
        if entry["method"] == ours(DEFAULT) and entry["over_ensemble"] is not None
    ]
    if not found:
        return []
    dear = sum(ratio > 1 for ratio, _ in found)
    told = ", ".join(words for _, words in sorted(found, reverse=True))
    return [
        "A call of the default over one of an ensemble of 5, one row and one thread, both in the same "
        f"runtime: dearer in {dear} of {len(found)} ({told})."
    ]


COLOURS = {PLAIN: plots.GREY, SERIAL: plots.ORANGE, BATCHED: plots.ORANGE, ENSEMBLE: plots.RED}
MARKERS: dict[str, str] = dict(zip(RUNTIMES, ("o", "D", "^", "v", "s"), strict=True))


def _colour_of(method: str) -> str:
    """Ours are blue, Laplace's green."""
    return COLOURS.get(method, plots.BLUE if method.startswith(ours("")) else plots.GREEN)


def draw_bars(entries: Entries, path: Path) -> None:
    """Times the plain network in the same runtime, a panel for each network, a bar for each method."""
    with plots.figure(path, width=3.4 * max(2, len(entries)), height=5.2, dpi=110) as figure:
        panels = figure.subplots(1, len(entries), squeeze=False)[0]
        for axes, (network, some) in zip(panels, entries.items(), strict=True):
            bars = [e for r in RUNTIMES for e in some if e["runtime"] == r and e["over_network"] is not None]
            names = [f"{e['method']}, {e['runtime'].removeprefix('torch ')}" for e in bars]
            values, colours = [e["over_network"] for e in bars], [_colour_of(e["method"]) for e in bars]
            drawn = axes.barh(range(len(bars)), values, color=colours, height=0.75)
            axes.bar_label(drawn, fmt=" %.1f", fontsize=6)
            axes.set_yticks(range(len(bars)), names, fontsize=6)
            axes.invert_yaxis()
            axes.set(xscale="log", xlabel="times the network", title=network)


def draw_frontier(entries: Entries, qualities: Mapping[str, Quality], path: Path) -> None:
    """NLL above and AUROC below against milliseconds, by network; a marker for each runtime."""
    with plots.figure(path, width=3.4 * max(2, len(entries)), height=5.6, dpi=110) as figure:
        panels = figure.subplots(2, len(entries), squeeze=False)
        for column, (network, some) in enumerate(entries.items()):
            for row, (key, label) in enumerate((("nll", "NLL"), ("auroc", "AUROC of new rows"))):
                axes = panels[row][column]
                _points(axes, some, qualities[network], key)
                axes.set(xscale="log", xlabel="milliseconds a call", ylabel=label)
                axes.set_title(network if row == 0 else "")
        used = {entry["runtime"] for some in entries.values() for entry in some}
        for runtime in (one for one in RUNTIMES if one in used):
            panels[0][0].plot([], [], MARKERS[runtime], color=plots.GREY, label=runtime)
        panels[0][0].legend(fontsize=6)


def _points(axes: Any, entries: Sequence[Entry], quality: Quality, key: str) -> None:
    named = set()
    for entry in sorted(entries, key=lambda entry: RUNTIMES.index(entry["runtime"])):
        method = SERIAL if entry["method"] == BATCHED else entry["method"]  # the same answers
        value = quality.get(method, {}).get(key)
        if value is None or entry["median"] is None:
            continue
        x = 1e3 * entry["median"]
        axes.plot([x], [value], MARKERS[entry["runtime"]], color=_colour_of(entry["method"]), markersize=4)
        if entry["method"] not in named:  # where it comes first
            named.add(entry["method"])
            axes.annotate(entry["method"], (x, value), fontsize=5, xytext=(3, 2), textcoords="offset points")
