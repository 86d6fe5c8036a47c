"""The figures of the runtime study: the paper's bars, and quality against milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustgp import plots

from .calls import EAGER, RUNTIMES
from .quality import BATCHED, ENSEMBLE, PLAIN, SERIAL, ours
from .tables import Entry

COLOURS = {PLAIN: plots.GREY, SERIAL: plots.ORANGE, BATCHED: plots.ORANGE, ENSEMBLE: plots.RED}
MARKERS = dict(zip(RUNTIMES, ("o", "^", "v", "s"), strict=True))


def colour_of(method: str) -> str:
    """Ours are blue, Laplace's green."""
    return COLOURS.get(method, plots.BLUE if method.startswith(ours("")) else plots.GREEN)


def draw_bars(entries: Mapping[str, Sequence[Entry]], path: Path) -> None:
    """Times the plain network in the same runtime, a panel for each network, a bar for each method."""
    with plots.figure(path, width=3.4 * max(2, len(entries)), height=5.2, dpi=110) as figure:
        panels = figure.subplots(1, len(entries), squeeze=False)[0]
        for axes, (network, some) in zip(panels, entries.items(), strict=True):
            bars = [e for e in some if e["over_network"] is not None]
            bars.sort(key=lambda e: RUNTIMES.index(e["runtime"]))
            names = [f"{e['method']}, {e['runtime'].removeprefix('torch ')}" for e in bars]
            drawn = axes.barh(
                range(len(bars)),
                [e["over_network"] for e in bars],
                color=[colour_of(e["method"]) for e in bars],
                height=0.75,
            )
            axes.bar_label(drawn, fmt=" %.1f", fontsize=6)
            axes.set_yticks(range(len(bars)), names, fontsize=6)
            axes.invert_yaxis()
            axes.set(xscale="log", xlabel="times the network", title=network)


def draw_frontier(
    entries: Mapping[str, Sequence[Entry]], qualities: Mapping[str, Mapping[str, Entry]], path: Path
) -> None:
    """NLL above and AUROC below against milliseconds; a marker for each runtime.

    Args:
        entries: By network.
        qualities: By network and method.
        path: Of the picture.
    """
    with plots.figure(path, width=3.4 * max(2, len(entries)), height=5.6, dpi=110) as figure:
        panels = figure.subplots(2, len(entries), squeeze=False)
        for column, (network, some) in enumerate(entries.items()):
            for row, (key, label) in enumerate((("nll", "NLL"), ("auroc", "AUROC of new rows"))):
                axes = panels[row][column]
                _points(axes, some, qualities[network], key)
                axes.set(xscale="log", xlabel="milliseconds a call", ylabel=label)
                axes.set_title(network if row == 0 else "")
        for runtime, marker in MARKERS.items():
            panels[0][0].plot([], [], marker, color=plots.GREY, label=runtime)
        panels[0][0].legend(fontsize=6)


def _points(axes: Any, entries: Sequence[Entry], quality: Mapping[str, Entry], key: str) -> None:
    for entry in entries:
        method = SERIAL if entry["method"] == BATCHED else entry["method"]  # the same answers
        value = quality.get(method, {}).get(key)
        if value is None or entry["median"] is None:
            continue
        x = 1e3 * entry["median"]
        axes.plot([x], [value], MARKERS[entry["runtime"]], color=colour_of(entry["method"]), markersize=4)
        if entry["runtime"] == EAGER:
            axes.annotate(entry["method"], (x, value), fontsize=5, xytext=(3, 2), textcoords="offset points")
