"""The figure of the distributed study: time against workers, beside the ideal."""

from __future__ import annotations

from pathlib import Path

from trustgp import plots

from ...core.grid import Grid


def draw_times(grid: Grid, path: Path) -> None:
    """Seconds of the experts against workers, by executor; the ideal halves with twice as many."""
    kinds = grid.along("executor")
    counts = sorted(grid.along("workers", executor=kinds[0]))
    with plots.figure(path, width=5.6, height=4.0, dpi=110) as figure:
        axes = figure.subplots()
        for kind, colour in zip(kinds, plots.PALETTE, strict=False):
            workers = sorted(grid.along("workers", executor=kind))
            mean, spread = zip(*(grid.spread((kind, count), "seconds") for count in workers), strict=True)
            axes.errorbar(
                workers, mean, yerr=spread, color=colour, marker="o", markersize=4, capsize=2, label=kind
            )
        first = grid.mean((kinds[0], counts[0]), "seconds") * counts[0]
        ideal = [first / count for count in counts]
        axes.plot(counts, ideal, color=plots.GREY, linestyle="--", label="ideal, from the first")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        low, high = axes.get_ylim()
        ticks = [2.0**power for power in range(-12, 20) if low <= 2.0**power <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel="workers", ylabel="seconds to solve the experts")
        axes.legend(fontsize=8)
