"""The figures of the sequence study: likelihoods, and the band along a stretch of a new motion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from trustgp import plots

from ...core.cases import IN_DOMAIN
from ...core.grid import Grid
from ..transfer.figure import OFFSET, known_nll, name_rows
from ..transfer.scores import others
from .tables import SPLIT


def draw_likelihoods(grid: Grid, path: Path) -> None:
    """NLL on new motions of the arm that trained (above) and on other arms (below), by method.

    Args:
        grid: Of the study.
        path: The picture to write.
    """
    arms, methods = grid.along("trained"), grid.along("method")
    with plots.figure(path, width=3.0 * len(arms) + 1.2, height=0.62 * len(methods) + 1.8) as figure:
        above, below = figure.subplots(2, len(arms), squeeze=False, sharey=True)
        for axes, arm in zip(above, arms, strict=True):
            _dots(axes, grid, arm, IN_DOMAIN, 0.0, plots.BLUE)
            axes.set_title(f"trained on {arm}")
            axes.set_xlabel("NLL per torque, new motions")
        for axes, arm in zip(below, arms, strict=True):
            for test, colour in zip(others(grid, arm, SPLIT), plots.PALETTE[1:], strict=False):
                _dots(axes, grid, arm, test, OFFSET, colour)
            axes.set_xscale("log")
            axes.tick_params(axis="x", which="minor", labelbottom=False)
            axes.set_xlabel(f"NLL per torque + {OFFSET:g}, other arms")
            axes.legend(fontsize=7)


def _dots(axes: Any, grid: Grid, arm: str, test: str, offset: float, colour: str) -> None:
    methods, known = grid.along("method"), known_nll(grid, (arm, SPLIT, test))
    means, spreads = [fmean(v) + offset for v in known.values()], [pstdev(v) for v in known.values()]
    places = [methods.index(method) for method in known]
    axes.errorbar(means, places, xerr=spreads, fmt="o", markersize=5, color=colour, label=test, zorder=3)
    name_rows(axes, methods)


def draw_tracks(tracks: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """One torque along a stretch of a new motion: measured, predicted, and the 95 % interval.

    Args:
        tracks: By arm: "truth", "mean", "lower" and "upper", one number a window.
        path: The picture to write.
    """
    with plots.figure(path, width=8.5, height=1.9 * len(tracks) + 0.3) as figure:
        panels = figure.subplots(len(tracks), 1, squeeze=False)[:, 0]
        for axes, (arm, track) in zip(panels, tracks.items(), strict=True):
            mean, lower, upper = (torch.tensor(track[key]) for key in ("mean", "lower", "upper"))
            place = torch.arange(len(mean))
            plots.draw_band(axes, place, mean, (upper - lower) / 2, label="95 %", line="network")
            axes.plot(place.numpy(), track["truth"], color=plots.INK, linewidth=0.9, label="measured")
            axes.set_title(arm)
            axes.set_ylabel("torque, standardised")
        panels[0].legend(fontsize=7, ncols=3)
        panels[-1].set_xlabel("windows, in the order of time")
