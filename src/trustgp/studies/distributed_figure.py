"""The figure of the distributed study: time against workers, beside the ideal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import plots


def draw_times(curves: Mapping[str, Mapping[int, Sequence[float]]], path: Path) -> None:
    """Seconds of the experts against workers; the ideal halves with twice the workers.

    Args:
        curves: Mean and spread of the seconds, by the kind of executor and the number of workers.
        path: Of the picture.
    """
    with plots.figure(path, width=5.6, height=4.0, dpi=110) as figure:
        axes = figure.subplots()
        for (kind, curve), colour in zip(curves.items(), plots.PALETTE, strict=False):
            workers = sorted(curve)
            mean, spread = zip(*(curve[count] for count in workers), strict=True)
            axes.errorbar(
                workers, mean, yerr=spread, color=colour, marker="o", markersize=4, capsize=2, label=kind
            )
        first = next(iter(curves.values()))
        counts = sorted(first)
        ideal = [first[counts[0]][0] * counts[0] / count for count in counts]
        axes.plot(counts, ideal, color=plots.GREY, linestyle="--", label="ideal, from the first")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        low, high = axes.get_ylim()
        ticks = [2.0**power for power in range(-12, 20) if low <= 2.0**power <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("workers")
        axes.set_ylabel("seconds to solve the experts")
        axes.legend(fontsize=8)
