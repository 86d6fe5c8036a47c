"""What a model is worth against what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .style import BLUE, GREY, ORANGE, RED, figure

MIB = 2.0**20


def draw_frontier(
    trials: Sequence[Any], path: str | Path | None = None, *, chosen: str = "", dpi: int = 120
) -> Any:
    """Four panels: NLL and AUROC against memory and against the time of one row.

    Args:
        trials: With `name`, `nll`, `corrected`, `auroc`, `nbytes`, `milliseconds` and `fits`; see
            `trustgp.tune`.
        path: The PNG, PDF or SVG to write; None: none.
        chosen: The name of the one to mark.
        dpi: Pixels per inch of a PNG.

    Returns:
        The matplotlib figure.
    """
    costs = {"memory, MiB": [t.nbytes / MIB for t in trials], "ms, batch 1": [t.milliseconds for t in trials]}
    with figure(path, width=8.4, height=6.0, dpi=dpi) as drawn:
        grid = drawn.subplots(2, 2, sharex="col")
        for column, (name, cost) in enumerate(costs.items()):
            _draw(grid[0][column], trials, cost, {"nll": BLUE, "corrected": ORANGE}, chosen)
            _draw(grid[1][column], trials, cost, {"auroc": BLUE}, chosen)
            grid[1][column].set_xlabel(name)
        grid[0][0].set(ylabel="NLL, lower is better", title="Likelihood")
        grid[1][0].set(ylabel="AUROC, higher is better", title="Novelty")
        grid[0][0].legend(fontsize=8)
    return drawn


def _draw(
    axes: Any, trials: Sequence[Any], cost: Sequence[float], scores: dict[str, str], chosen: str
) -> None:
    """Each trial as a dot, hollow where it does not fit, and a line along those that none beats."""
    for score, colour in scores.items():
        worth = [getattr(t, score) * (-1 if score == "auroc" else 1) for t in trials]
        for t, x in zip(trials, cost, strict=True):
            face = colour if t.fits else "none"
            axes.scatter([x], [getattr(t, score)], s=26, facecolors=face, edgecolors=colour, zorder=3)
        best = [
            k for k in range(len(trials)) if not any(_beats(cost, worth, j, k) for j in range(len(trials)))
        ]
        best.sort(key=lambda k: cost[k])
        label = {"nll": "network's output", "corrected": "corrected mean"}.get(score)
        line = [(cost[k], getattr(trials[k], score)) for k in best]
        axes.plot(*zip(*line, strict=True), color=colour, lw=1, label=label)
    for t, x in zip(trials, cost, strict=True):
        if t.name == chosen:
            axes.axvline(x, color=RED, lw=0.8, ls="--")
    axes.set_xscale("log")
    axes.tick_params(colors=GREY)


def _beats(cost: Sequence[float], worth: Sequence[float], j: int, k: int) -> bool:
    """Whether j is no dearer and better than k, or cheaper and no worse."""
    return cost[j] <= cost[k] and worth[j] <= worth[k] and (cost[j] < cost[k] or worth[j] < worth[k])
