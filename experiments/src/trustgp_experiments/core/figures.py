"""The two kinds of figures that most studies draw: dots by method, and curves, in panels."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustgp import plots

from .grid import Grid, Place, is_infinite

OURS = "trustgp"  # methods whose names begin so are drawn in bold


@dataclass(frozen=True)
class Curve:
    """Values over x, which may be text, with their spread over seeds where it is known."""

    label: str
    x: Sequence[Any]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    colour: str = plots.BLUE
    line: str = "-"


def draw_curves(
    path: Path, panels: Mapping[str, Sequence[Curve]], xlabel: str, ylabel: str, *, log: str = ""
) -> None:
    """A panel for each title and one legend for all; `log` names the logarithmic axes, such as "xy"."""
    with _panels(path, list(panels), height=3.2, columns=4) as axes:
        labels = {}
        for title, curves in panels.items():
            for one in curves:
                style = {"color": one.colour, "linestyle": one.line, "marker": ".", "capsize": 2}
                drawn = axes[title].errorbar(one.x, one.y, yerr=one.spread, linewidth=1.3, **style)
                labels.setdefault(one.label, drawn)
            axes[title].set(xlabel=xlabel, ylabel=ylabel, **{f"{axis}scale": "log" for axis in log})
            axes[title].tick_params(labelsize=7)
        figure = next(iter(axes.values())).figure
        figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=4, fontsize=8)


def draw_dots(
    path: Path, grid: Grid, panels: Mapping[str, Mapping[str, Place]], key: str, *, symlog: bool = True
) -> None:
    """Mean over seeds of a measure by method, the grid's last axis: a panel for each title, a colour for each
    named place. Infinite values are left to the tables; NLL spans decades, hence `symlog`."""
    methods = grid.along("method")
    with _panels(path, list(panels), height=0.2 * len(methods) + 1.0, columns=4) as axes:
        for title, places in panels.items():
            panel = axes[title]
            for (name, place), colour in zip(places.items(), plots.PALETTE * 3, strict=False):
                values = [grid.values((*place, method), key) for method in methods]
                means = [math.nan if not v or is_infinite(v) else sum(v) / len(v) for v in values]
                panel.scatter(means, range(len(methods)), s=14, color=colour, label=name)
            panel.set_yticks(range(len(methods)), methods, fontsize=7)
            for label, method in zip(panel.get_yticklabels(), methods, strict=True):
                label.set_fontweight("bold" if method.startswith(OURS) else "normal")
            panel.set_ylim(len(methods) - 0.5, -0.5)
            panel.set(xlabel=key.upper(), **({"xscale": "symlog"} if symlog else {}))
            if len(places) > 1:
                panel.legend(fontsize=6)


@contextmanager
def _panels(path: Path, titles: Sequence[str], *, height: float, columns: int) -> Iterator[dict[str, Any]]:
    """The axes of a figure by title, in rows of so many columns."""
    across = min(columns, len(titles))
    down = math.ceil(len(titles) / across)
    with plots.figure(path, width=3.2 * across + 1.0, height=height * down + 0.6, dpi=100) as figure:
        flat = figure.subplots(down, across, squeeze=False).flatten()
        for axes in flat[len(titles) :]:
            axes.set_axis_off()
        for axes, title in zip(flat, titles, strict=False):
            axes.set_title(title, fontsize=9)
        yield dict(zip(titles, flat, strict=False))
