"""The README's picture, the toy with the default fit: `python -m trustgp_experiments.demo.default OUT`."""

import sys
from pathlib import Path

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
    prediction = model.predict(scaling.inputs(grid))
    low, high = prediction.interval(0.95)
    with plots.figure(path, width=8.0, height=4.4, dpi=110) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        for axes in (upper, lower):
            axes.axvspan(*GAP, color=plots.GREY, alpha=0.12, linewidth=0)
        band = {"color": plots.BLUE, "alpha": 0.2, "linewidth": 0, "label": "95 % interval"}
        upper.fill_between(grid[:, 0], low[:, 0], high[:, 0], **band)
        upper.plot(grid, truth(grid), color=plots.INK, linewidth=1, linestyle="--", label="truth")
        upper.plot(grid, prediction.mean, color=plots.BLUE, label="network")
        upper.plot(inputs, targets, ".", color=plots.GREY, markersize=3, label="training rows")
        upper.legend(loc="upper center", ncols=4, fontsize=8)
        upper.set(ylabel="y", ylim=(-5, 5), title="A network's answer, and how far it can be trusted")
        lower.plot(grid[:, 0], prediction.novelty_rank, color=plots.ORANGE)
        lower.set(xlabel="x", ylabel="novelty rank", ylim=(0, 1.05), xlim=(-1.5, 7.5))


if __name__ == "__main__":
    with threads(1):
        draw_default(Path(sys.argv[1]))
