"""Part one of the demo: does patchwork smooth the steps that the borders of experts cut into the band?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trustgp import plots
from trustgp.likelihoods.prediction import Prediction

from ..core.borders import jump_factors
from ..core.toy import INDEPENDENT, PATCHWORK, fit_toy, train_toy
from ..datasets import snelson_like, standardise, truth

GAP = (2.4, 3.6)
NOISE = 0.28
VARIANTS = {"independent": INDEPENDENT, "patchwork": PATCHWORK}


@dataclass(frozen=True)
class Band:
    """The error bar along the grid.

    Args:
        prediction: On the grid, g rows.
        row_expert: Which expert owns each training row, shape [n].
        borders: Grid points just left of a border, shape [b].
        jumps: max(a/b, b/a) of the standard deviations a, b on its two sides, shape [b].
    """

    prediction: Prediction
    row_expert: Tensor
    borders: Tensor
    jumps: Tensor

    def summary(self) -> dict[str, float | int]:
        """The numbers of the table."""
        return {
            "borders": len(self.jumps),
            "mean_jump": float(self.jumps.mean()),
            "largest_jump": float(self.jumps.max()),
        }


@dataclass(frozen=True)
class Toy:
    """What part one found.

    Args:
        inputs, targets: The training rows, shape [n].
        grid: Where the bands are drawn, shape [g].
        bands: By variant: "independent" and "patchwork".
    """

    inputs: Tensor
    targets: Tensor
    grid: Tensor
    bands: dict[str, Band]

    def summary(self) -> dict[str, Any]:
        """The numbers of the table, by variant."""
        return {name: band.summary() for name, band in self.bands.items()}


def run_toy(*, seed: int = 0, progress: bool = False) -> Toy:
    """Train a 1-200-1 tanh network and fit it twice; only the patchwork differs."""
    inputs, targets = snelson_like(gap=GAP, noise=NOISE, seed=seed)
    scaling = standardise(inputs, targets)
    rows = scaling.inputs(inputs), targets

    network = train_toy(*rows, seed=seed, progress=progress)
    grid = torch.linspace(-0.4, 6.4, 3401)[:, None]
    bands = {}
    for name, patchwork in VARIANTS.items():
        model = fit_toy(network, rows, patchwork, seed=seed, progress=progress)
        prediction = model.predict(scaling.inputs(grid))
        bands[name] = Band(prediction, model.predict(rows[0]).expert, *border_jumps(prediction))
    return Toy(inputs[:, 0], targets[:, 0], grid[:, 0], bands)


def border_jumps(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Where the expert changes along a fine grid, and by which factor the error bar jumps there.

    Args:
        prediction: Along a line, one output, g rows.

    Returns:
        Grid points just left of the borders [b], and max(a/b, b/a) >= 1 of the deviations [b].
    """
    expert, std = prediction.expert, prediction.std.flatten()
    borders = (expert[1:] != expert[:-1]).nonzero().flatten()
    return borders, jump_factors(std[borders], std[borders + 1])


def draw_toy(toy: Toy, path: Path) -> None:
    """Both bands, one above the other, and their standard deviations."""
    titles = {
        "independent": "Independent experts: the band steps at their borders",
        "patchwork": "Patchwork: neighbours lend each other rows",
    }
    with plots.figure(path, width=8.0, height=8.2, dpi=110) as figure:
        upper, middle, lower = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
        for axes, (name, band) in zip((upper, middle), toy.bands.items(), strict=True):
            _draw_variant(axes, toy, band)
            found = band.summary()
            steps = f"steps: mean {found['mean_jump']:.2f}, largest {found['largest_jump']:.2f}"
            axes.set_title(f"{titles[name]}   ({steps})")
            axes.set_ylabel("y")
            axes.set_ylim(-4.6, 4.6)
        upper.legend(loc="upper right", ncols=2, fontsize=8)
        _draw_deviations(lower, toy)


def _draw_variant(axes: Any, toy: Toy, band: Band) -> None:
    """Band, truth, borders, and the rows in the colour of their expert."""
    prediction = band.prediction
    for border in band.borders.tolist():
        axes.axvline(float(toy.grid[border]), color=plots.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
    mean, deviation = prediction.mean.flatten(), prediction.std.flatten()
    axes.plot(toy.grid, truth(toy.grid), color=plots.INK, linewidth=1, linestyle="--", label="truth")
    plots.draw_band(axes, toy.grid, mean, 3 * deviation, label="three sigma", line="network")
    for colour, expert in enumerate(_left_to_right(band.row_expert, toy.inputs)):
        rows = band.row_expert == expert
        dots = {"s": 11, "color": plots.PALETTE[colour % len(plots.PALETTE)], "zorder": 3}
        axes.scatter(toy.inputs[rows], toy.targets[rows], **dots, edgecolors="white", linewidths=0.3)


def _draw_deviations(axes: Any, toy: Toy) -> None:
    colours = {"independent": plots.ORANGE, "patchwork": plots.BLUE}
    for name, band in toy.bands.items():
        axes.plot(toy.grid, band.prediction.std.flatten(), color=colours[name], linewidth=1.5, label=name)
    axes.axhline(NOISE, color=plots.INK, linewidth=1, linestyle="--", label="true noise")
    axes.axvspan(*GAP, color=plots.GREY, alpha=0.12, linewidth=0)
    axes.text(sum(GAP) / 2, 0.32, "no rows", ha="center", color=plots.GREY)
    axes.set_yscale("log")
    axes.set_yticks((0.25, 0.5, 1.0, 2.0), ("0.25", "0.5", "1", "2"))
    axes.minorticks_off()
    axes.set_title("Standard deviation of both")
    axes.set_ylabel("std of y")
    axes.set_xlabel("x")
    axes.set_xlim(float(toy.grid[0]), float(toy.grid[-1]))
    axes.legend(loc="upper right", ncols=3, fontsize=8)


def _left_to_right(row_expert: Tensor, inputs: Tensor) -> list[int]:
    """The experts in the order of their rows, so that neighbours take different colours."""
    return sorted(row_expert.unique().tolist(), key=lambda e: float(inputs[row_expert == e].mean()))
