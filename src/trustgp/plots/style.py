"""The style of figures: colours, settings, and a figure that is written at the end."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.atomic_file import atomic_file
from ..data.user_warnings import optional_package

BLUE, ORANGE, GREEN, RED, GREY, INK = "#2f6fb5", "#e07b26", "#3a9a6b", "#c8423b", "#8a8f98", "#22262b"
PALETTE = (BLUE, ORANGE, GREEN, "#8d5bb5", RED, "#c79a1b", "#3fa7b8", "#d470a4")
"""Colours for the successive lines or samples of a figure."""

_STYLE = {
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "axes.edgecolor": GREY, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "grid.color": "#e8eaed", "grid.linewidth": 0.8,
    "figure.facecolor": "white", "savefig.facecolor": "white",
}  # fmt: skip


@contextmanager
def figure(path: str | Path | None, *, width: float, height: float, dpi: int = 120) -> Iterator[Any]:
    """A matplotlib figure in our style, width and height in inches, written to `path` at the end, whole or
    not at all; without a path the caller keeps the figure. Nothing global is changed."""
    with require_matplotlib().rc_context(_STYLE):
        # a bare Figure needs neither pyplot nor a display
        drawn = importlib.import_module("matplotlib.figure").Figure((width, height), layout="constrained")
        yield drawn
        if path is not None:
            path = Path(path) if Path(path).suffix else Path(path).with_suffix(".png")
            with atomic_file(path) as temporary:
                drawn.savefig(temporary, dpi=dpi, format=path.suffix[1:])


def require_matplotlib() -> Any:
    """The package matplotlib; an ImportError names the extra to install."""
    missing = 'Figures need matplotlib, which is not installed: pip install "trustgp[plots]"'
    return optional_package("matplotlib", missing)


def numbers(values: Tensor) -> np.ndarray:
    """Tensor as an array of float64."""
    return values.detach().cpu().to(torch.float64).numpy()
