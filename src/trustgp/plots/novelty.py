"""Which colour has a novelty? From calm blue to alarming red, by way of yellow: told apart without green."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .style import ORANGE, RED, require_matplotlib

CALM, PALE, MIDDLE = "#2b8cd6", "#8fd3f0", "#f6d55c"
SCALE = ((0.0, CALM), (0.35, PALE), (0.5, MIDDLE), (0.75, ORANGE), (1.0, RED))  # where, and which colour


def alarm(novelty: float, threshold: float | None = None) -> float:
    """Where on the scale of colours a novelty stands, in [0, 1].

    Args:
        novelty: In [0, 1]; what is no number stands at the end.
        threshold: That stands in the middle of the scale, which then ends at twice of it; None: the scale
            is that of the novelty.
    """
    place = novelty if threshold is None else novelty / max(2.0 * threshold, 1e-12)
    return 1.0 if np.isnan(place) else float(min(max(place, 0.0), 1.0))


def colour_of(novelty: float, threshold: float | None = None) -> tuple[float, float, float]:
    """Red, green and blue, each from 0 to 1; the same as in `colour_map`, without matplotlib."""
    place = alarm(novelty, threshold)
    stops = [at for at, _ in SCALE]
    shades = np.array([shade_of(colour) for _, colour in SCALE])
    red, green, blue = (float(np.interp(place, stops, shades[:, k])) for k in range(3))
    return red, green, blue


def colour_map() -> Any:
    """The scale as a colour map of matplotlib, for a colour bar."""
    require_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("novelty", list(SCALE))


def ink_on(colour: Sequence[float]) -> str:
    """White or nearly black, whichever reads better on a colour."""
    red, green, blue = colour
    return "#1b1e22" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def shade_of(colour: str) -> tuple[float, float, float]:
    """Red, green and blue of "#rrggbb", each from 0 to 1."""
    red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue
