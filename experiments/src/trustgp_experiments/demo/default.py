"""The README's picture, the toy with the default fit: `python -m trustgp_experiments.demo.default OUT`."""

import sys
from pathlib import Path
from typing import Any

import torch

import trustgp
from trustgp import plots

from ..core.result import threads
from ..core.toy import NETWORK
from ..datasets import snelson_like, standardise, truth

GAP = (2.4, 3.6)


def draw_default(path: Path, *, seed: int = 0) -> None:
    """Rows with a gap, a network that has learnt them, its 95 % interval, and how novel each input is."""
    inputs, targets = snelson_like(gap=GAP, seed=seed)
    scaling = standardise(inputs, targets)
    rows = scaling.inputs(inputs), targets
    network = NETWORK.train(rows, seed=seed, progress=False)
    model = trustgp.fit(network, rows, progress=False)
    grid = torch.linspace(-1.5, 7.5, 901)[:, None]
    found = model.predict(scaling.inputs(grid))
    with plots.figure(path, width=8.0, height=4.4, dpi=110) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        _draw_interval(upper, grid[:, 0], found)
        upper.plot(inputs, targets, ".", color=plots.GREY, markersize=3, label="training rows")
        upper.legend(loc="upper center", ncols=4, fontsize=8)
        upper.set(ylabel="y", ylim=(-5, 5), title="A network's answer, and how far it can be trusted")
        lower.plot(grid[:, 0], found.novelty_rank, color=plots.ORANGE)
        lower.axvspan(*GAP, color=plots.GREY, alpha=0.12, linewidth=0)
        lower.set(xlabel="x", ylabel="novelty rank", ylim=(0, 1.05), xlim=(-1.5, 7.5))


def _draw_interval(axes: Any, grid: torch.Tensor, found: trustgp.Prediction) -> None:
    low, high = found.interval(0.95)
    axes.axvspan(*GAP, color=plots.GREY, alpha=0.12, linewidth=0)
    axes.fill_between(
        grid, low[:, 0], high[:, 0], color=plots.BLUE, alpha=0.2, linewidth=0, label="95 % interval"
    )
    axes.plot(grid, truth(grid), color=plots.INK, linewidth=1, linestyle="--", label="truth")
    axes.plot(grid, found.mean[:, 0], color=plots.BLUE, label="network")


if __name__ == "__main__":
    with threads(1):
        draw_default(Path(sys.argv[1]))
