"""The figure of the scale study: time and memory of each stage against the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from .. import plots
from .scale_tables import MEGABYTE, Runs


def draw_scale(runs: Sequence[Runs], place: str, path: Path) -> None:
    """Two panels on logarithmic axes.

    Args:
        runs: Of each seed.
        place: Whose memory is drawn: "cpu" or "cuda".
        path: Of the picture.
    """
    lines = list(zip(*runs, strict=True))
    rows = [line[0]["rows"] for line in lines]
    stages = list(runs[0][0]["stages"])

    def mean(number: Any) -> list[float]:
        return [fmean(number(entry) for entry in line) for line in lines]

    seconds = {stage: mean(lambda e, s=stage: e["stages"].get(s, 0.0)) for stage in stages}
    memory = {stage: mean(lambda e, s=stage: e["stage_peaks"].get(s, {}).get(place, 0)) for stage in stages}
    total, model = mean(lambda e: e["seconds"]), mean(lambda e: e["model_bytes"])
    with plots.figure(path, width=11.0, height=4.0, dpi=110) as figure:
        left, right = figure.subplots(1, 2)
        _panel(left, rows, seconds, ("all stages", total))
        left.set_title("time")
        left.set_ylabel("seconds")
        scaled = {stage: [size / MEGABYTE for size in sizes] for stage, sizes in memory.items()}
        _panel(right, rows, scaled, ("the model", [size / MEGABYTE for size in model]))
        right.set_title(f"memory at the peak, {'GPU' if place == 'cuda' else 'CPU'}")
        right.set_ylabel("MB")
        left.legend(handles=left.lines[-2:], loc="upper left", fontsize=8)  # the rest are those of the right
        right.legend(handles=right.lines[:-1], loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def _panel(
    axes: Any, rows: list[int], curves: dict[str, list[float]], whole: tuple[str, list[float]]
) -> None:
    for (name, values), colour in zip(curves.items(), plots.PALETTE, strict=False):
        drawn = [value if value > 0 else float("nan") for value in values]  # no place on such an axis
        axes.plot(rows, drawn, color=colour, marker="o", markersize=3, linewidth=1.2, label=name)
    name, values = whole
    axes.plot(rows, values, color=plots.INK, marker="o", markersize=3.5, linewidth=1.8, label=name)
    guide = [values[0] * n / rows[0] for n in rows]
    axes.plot(rows, guide, color=plots.GREY, linestyle="--", linewidth=1.0, label="in step with the rows")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows")
