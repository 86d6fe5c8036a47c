"""Drawing predictions: bands, histograms and bars, on axes that the caller owns."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLUE, ORANGE, GREEN, RED, GREY, INK = "#2f6fb5", "#e07b26", "#3a9a6b", "#c8423b", "#8a8f98", "#22262b"
PALETTE = (BLUE, ORANGE, GREEN, "#8d5bb5", RED, "#c79a1b", "#3fa7b8", "#d470a4")
"""Colours that neighbours in a figure take in turn."""

_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8eaed",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextmanager
def figure(path: str | Path, *, width: float, height: float, dpi: int = 120) -> Iterator[Any]:
    """A matplotlib figure in our style, written to `path` at the end; nothing global is changed.

    Args:
        path: The PNG, PDF or SVG to write.
        width, height: In inches.
        dpi: Pixels per inch of a PNG.
    """
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(_STYLE):
        # a bare Figure needs neither pyplot nor a display
        drawn = importlib.import_module("matplotlib.figure").Figure((width, height), layout="constrained")
        yield drawn
        drawn.savefig(path, dpi=dpi)


def require_matplotlib() -> Any:
    """matplotlib, or an error that says how to get it."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise ImportError(
            'Figures need matplotlib, which is not installed: pip install "trustgp[plots]"'
        ) from error


def draw_band(
    axes: Any, x: Tensor, mean: Tensor, half: Tensor, *, colour: str = BLUE, label: str = "", line: str = ""
) -> None:
    """A line and the band mean - half .. mean + half around it.

    Args:
        axes: Of matplotlib.
        x: Ascending, shape [n].
        mean: Shape [n].
        half: Half the width of the band, shape [n].
        colour: Of both.
        label: Of the band, in the legend.
        line: Of the line, in the legend.
    """
    place, centre, width = (_numbers(values) for values in (x, mean, half))
    low, high = centre - width, centre + width
    axes.fill_between(place, low, high, color=colour, alpha=0.2, linewidth=0, label=label or None)
    axes.plot(place, centre, color=colour, linewidth=1.6, label=line or None)


def draw_histograms(
    axes: Any, samples: Mapping[str, Tensor], *, colours: Sequence[str] = PALETTE, bins: int = 60
) -> None:
    """Histograms of positive numbers on a logarithmic scale, one for each name, each of area one.

    Args:
        axes: Of matplotlib.
        samples: By name, each of shape [n], positive.
        colours: One for each.
        bins: From the smallest to the largest of all samples.
    """
    values = {name: _numbers(sample) for name, sample in samples.items()}
    every = np.concatenate(list(values.values()))
    edges = np.geomspace(every.min(), every.max(), bins + 1)
    for (name, sample), colour in zip(values.items(), colours, strict=False):
        share = np.full(len(sample), 1.0 / len(sample))
        axes.hist(sample, edges, weights=share, color=colour, alpha=0.65, label=name)
    axes.set_xscale("log")


def draw_bars(
    axes: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    colours: Sequence[str] = PALETTE,
) -> None:
    """Horizontal bars, the series of a group side by side, the first group on top.

    Args:
        axes: Of matplotlib.
        groups: Their names.
        series: By name, one number for each group.
        colours: One for each series.
    """
    thick = 0.8 / len(series)
    places = np.arange(len(groups))
    for number, ((name, values), colour) in enumerate(zip(series.items(), colours, strict=False)):
        offset = (number - (len(series) - 1) / 2) * thick
        axes.barh(places + offset, values, height=0.9 * thick, color=colour, alpha=0.85, label=name)
    axes.set_yticks(places, groups)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _numbers(values: Tensor) -> np.ndarray:
    return values.detach().cpu().to(torch.float64).numpy()
