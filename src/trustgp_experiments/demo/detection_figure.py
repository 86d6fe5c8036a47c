"""The demo's detections: a few scenes of each style."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustgp import plots
from trustgp.plots.boxes import annotate, as_picture, draw_picture, lay_out

from ..datasets.scenes import CLASSES

if TYPE_CHECKING:
    from .detection import SeenPictures

ACROSS = 4
TITLES = {
    "known": "Known things, seen as in training",
    "novel": "Novel things: a rock, an astronaut, a second rover",
    "flight": "In flight: from high up, low sun, haze, motion blur",
}


def draw_scenes(path: Path, seen: dict[str, SeenPictures], *, threshold: float) -> None:
    """The first pictures of each group in which something of it was found.

    Args:
        path: The PNG to write.
        seen: By group.
        threshold: Of the novelty.
    """
    with plots.figure(path, width=2.6 * ACROSS + 0.7, height=2.65 * len(seen) + 0.2, dpi=90) as drawn:
        grid = drawn.subplots(len(seen), ACROSS, squeeze=False)
        shown = []
        for row, (key, group) in zip(grid, seen.items(), strict=True):
            chosen = [i for i, counts in enumerate(group.counts) if bool(counts.any())][:ACROSS]
            for place, axes in enumerate(row):
                if place >= len(chosen):
                    axes.set_axis_off()
                    continue
                title = TITLES[key] if place == 0 else None
                draw_picture(axes, as_picture(group.images[chosen[place]]), title)
                shown.append((axes, group.found[chosen[place]]))
        _draw_scale(drawn, grid, threshold)
        lay_out(drawn)
        for axes, found in shown:
            annotate(axes, found, names=CLASSES, level=0.95, threshold=threshold)


def _draw_scale(drawn: Any, grid: Any, threshold: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(0, 2 * threshold), plots.colour_map())
    bar = drawn.colorbar(scale, ax=grid, shrink=0.5, aspect=28, pad=0.015, extend="max")
    bar.outline.set_visible(False)
    bar.set_ticks([0, threshold, 2 * threshold], labels=["0", f"{threshold:.2f}", f"{2 * threshold:.2f}"])
    bar.set_label("novelty; the threshold in the middle", fontsize=8)
