"""The figure of part two of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trustgp import plots
from trustgp.metrics import mse

from .arm import Arm

JOINT = 3  # whose torque is drawn over time: the elbow
LABELS = {"same": "like the training", "shifted": "elsewhere", "fast": "faster, elsewhere"}
COLOURS = {"same": plots.BLUE, "shifted": plots.GREEN, "fast": plots.ORANGE}
Z95 = 1.959964


def draw_arm(arm: Arm, path: Path) -> None:
    """A torque over time with both error bars; how large they are; how often they are right."""
    with plots.figure(path, width=9.0, height=7.4, dpi=110) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=(1.25, 1))
        _draw_film(figure.add_subplot(grid[0, :]), arm)
        _draw_deviations(figure.add_subplot(grid[1, 0]), arm)
        _draw_coverage(figure.add_subplot(grid[1, 1]), arm)


def _draw_film(axes: Any, arm: Arm) -> None:
    """One slow trajectory, then a fast one, of one torque, in N m."""
    scaling = arm.data.scaling
    scale = float(scaling.target_scale[JOINT])
    start = 0.0
    for number, (motion, (_, targets)) in enumerate(arm.data.films.items()):
        times = start + torch.arange(len(targets)) / 100.0
        ours, constant = arm.films["trustgp"][motion], arm.films["constant noise"][motion]
        mean = scaling.restore_targets(ours.mean)[:, JOINT]
        band, narrow = (Z95 * scale * found.std[:, JOINT] for found in (ours, constant))
        first = number == 0
        labels = {"label": "95 % of trustgp", "line": "network"} if first else {}
        plots.draw_band(axes, times, mean, band, **labels)
        dashed = {"color": plots.RED, "linewidth": 0.8, "linestyle": "--"}
        axes.plot(times, mean - narrow, **dashed, label="95 % of constant noise" if first else None)
        axes.plot(times, mean + narrow, **dashed)
        truth = scaling.restore_targets(targets)[:, JOINT]
        axes.plot(times, truth, color=plots.INK, linewidth=1.2, label="true torque" if first else None)
        middle = float(times.mean())
        axes.text(middle, 0.97, LABELS[motion], ha="center", va="top", transform=axes.get_xaxis_transform())
        start = float(times[-1]) + 0.01
    axes.axvline(start / 2, color=plots.GREY, linewidth=1)
    axes.set_title(f"Torque of joint {JOINT + 1} along two trajectories that were never trained")
    axes.set_xlabel("time [s]")
    axes.set_ylabel("torque [N m]")
    axes.set_xlim(0, start)
    axes.legend(loc="lower left", ncols=4, fontsize=8)


def _draw_deviations(axes: Any, arm: Arm) -> None:
    deviations = {LABELS[m]: p.std.mean(1) for m, p in arm.predictions["trustgp"].items()}
    plots.draw_histograms(axes, deviations, colours=[COLOURS[m] for m in arm.predictions["trustgp"]])
    constant = arm.scores["constant noise"]["same"].std
    axes.axvline(constant, color=plots.RED, linewidth=1, linestyle="--", label="constant noise")
    for motion, prediction in arm.predictions["trustgp"].items():
        error = float(mse(prediction.mean, arm.data.tests[motion][1]).sqrt())
        axes.plot(error, 0, marker="^", color=COLOURS[motion], markersize=9, clip_on=False, zorder=5)
    axes.set_title("Standard deviation of trustgp (▲: true rmse)")
    axes.set_xlabel("std, in units of the training torques")
    axes.set_ylabel("share of rows")
    axes.legend(fontsize=8, loc="upper right")


def _draw_coverage(axes: Any, arm: Arm) -> None:
    motions = list(arm.data.tests)
    series = {LABELS[m]: [arm.scores[method][m].coverage for method in arm.scores] for m in motions}
    plots.draw_bars(axes, list(arm.scores), series, colours=[COLOURS[m] for m in motions])
    axes.axvline(0.95, color=plots.INK, linewidth=1, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_title("Torques inside the 95 % interval (dashed: ideal)")
    axes.set_xlabel("share")
