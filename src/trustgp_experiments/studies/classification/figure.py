"""The figures of the classification study: reliability, histograms in and out, risk against coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trustgp import plots

from ...core.cases import IN_DOMAIN
from .rows import NAMES

Curves = Mapping[str, Mapping[str, Any]]
"""By method, what `score_method` gave under "curves": by test set."""

OURS = "trustgp"


def draw_reliability(curves: Curves, tests: Sequence[str], path: Path) -> None:
    """Share of right ones against confidence, a panel for each set of test images.

    Args:
        curves: Of one training and seed.
        tests: Names of labelled test sets.
        path: The picture to write.
    """
    with plots.figure(path, width=3.6 * len(tests) + 0.6, height=3.6) as figure:
        panels = figure.subplots(1, len(tests), squeeze=False, sharey=True)[0]
        for axes, test in zip(panels, tests, strict=True):
            axes.plot([0, 1], [0, 1], color=plots.INK, linewidth=1, linestyle="--")
            for method, colour in _coloured(curves):
                _, confidence, share = curves[method][test]["reliability"]
                axes.plot(
                    confidence, share, "o-", markersize=3, color=colour, label=method, **_weight(method)
                )
            axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", title=test)
        panels[0].set_ylabel("share of right ones")
        panels[-1].legend(fontsize=7)


def draw_histograms(trainings: Mapping[str, tuple[str, Curves]], score: str, label: str, path: Path) -> None:
    """Histograms of a score on familiar and on foreign images, a panel for each method that has it.

    Args:
        trainings: By what trained: the foreign test set, and the curves of one seed.
        score: "entropy", "variance" or "information".
        label: Of the axis.
        path: The picture to write.
    """
    methods = list(
        dict.fromkeys(
            method
            for foreign, curves in trainings.values()
            for method in curves
            if score in curves[method][foreign]
        )
    )
    with plots.figure(path, width=2.1 * len(methods) + 0.8, height=2.1 * len(trainings) + 0.5) as figure:
        grid = figure.subplots(len(trainings), len(methods), squeeze=False, sharey="row")
        for row, (trained, (foreign, curves)) in zip(grid, trainings.items(), strict=True):
            for axes, method in zip(row, methods, strict=True):
                bars = curves[method][foreign][score]
                for side, colour in (("in", plots.BLUE), ("out", plots.ORANGE)):
                    name = NAMES[trained if side == "in" else foreign]
                    axes.stairs(bars[side], bars["edges"], fill=True, alpha=0.6, color=colour, label=name)
                if score != "entropy":
                    axes.set_xscale("log")
                    axes.tick_params(axis="x", which="minor", labelbottom=False)
                axes.set_title(method, fontsize=8)
            row[0].set_ylabel(f"trained on {NAMES[trained]}\nshare of images")
            row[-1].legend(fontsize=7)
        for axes in grid[-1]:
            axes.set_xlabel(label)


def draw_risk(trainings: Mapping[str, tuple[str, Curves]], path: Path) -> None:
    """Share of wrong ones among the images kept, familiar and foreign together.

    Args:
        trainings: By what trained: the foreign test set, and the curves of one seed.
        path: The picture to write.
    """
    with plots.figure(path, width=4.4 * len(trainings) + 0.6, height=3.6) as figure:
        panels = figure.subplots(1, len(trainings), squeeze=False)[0]
        for axes, (trained, (foreign, curves)) in zip(panels, trainings.items(), strict=True):
            for method, colour in _coloured(curves):
                score, best = min(curves[method][foreign].items(), key=lambda entry: entry[1]["area"])
                kept = np.linspace(0, 1, len(best["risk"]))
                axes.plot(kept, best["risk"], color=colour, label=f"{method}, {score}", **_weight(method))
            axes.set(xlim=(0, 1), xlabel="share of images kept, the most familiar first")
            axes.set_title(f"{NAMES[trained]} and {NAMES[foreign]} mixed")
            axes.legend(fontsize=6.5)
        panels[0].set_ylabel("share of them wrong or foreign")


def drawn_tests(curves: Curves, wanted: Sequence[str]) -> list[str]:
    """The test sets to draw the reliability of: familiar images, and those wanted that are there."""
    known = next(iter(curves.values()))
    return [IN_DOMAIN, *(test for test in wanted if test in known)]


def _coloured(curves: Curves) -> list[tuple[str, str]]:
    """Methods and their colours; ours is drawn last, on top."""
    others = [method for method in curves if method != OURS]
    colours = [colour for colour in plots.PALETTE if colour != plots.BLUE]
    return [
        *zip(others, colours, strict=False),
        *((method, plots.BLUE) for method in curves if method == OURS),
    ]


def _weight(method: str) -> dict[str, float]:
    return {"linewidth": 2.2 if method == OURS else 1.1}
