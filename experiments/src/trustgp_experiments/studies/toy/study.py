"""`trustgp study toy`: the paper's 1-D figure. Does the band step at the experts' borders?"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trustgp import plots
from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness
from trustgp.model import UncertaintyModel

from ...core import toy
from ...core.borders import draw_borders, find_borders, jump_factors, jump_words
from ...core.grid import Grid, Place
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Figure, Result, Setting, Table, make_result, note, prose
from ...datasets import standardise

LOWER, UPPER = -2.0, 8.0  # where bands are drawn: the rows lie between 0 and 6
POINTS = 1001
VARIANTS: dict[str, dict[str, Any]] = {
    "independent": {"patchwork": toy.INDEPENDENT},
    "patchwork": {"patchwork": toy.PATCHWORK},
    "tenth": {"patchwork": Patchwork(neighbours=4, fraction=0.1)},
    "default": {"patchwork": Patchwork()},
    "witness": {"patchwork": Patchwork(), "witness": Witness()},
}
NAMES = {
    "independent": "independent experts",
    "patchwork": "2 neighbours x 100 % (paper)",
    "tenth": "4 neighbours x 10 %",
    "default": "4 neighbours x 10 %, 25 rows at least",
    "witness": "the same with a witness (default)",
}
STDS = {"rows_std": "std at rows", "gap_std": "in the gap"}
STDS |= {"left_std": f"at {LOWER:g}", "right_std": f"at {UPPER:g}"}
MEASURES = (
    Measure("mean_jump", Column("mean jump", digits=3, better="low")),
    Measure("largest_jump", Column("largest", digits=3, better="low")),
    *(Measure(key, Column(name, digits=2)) for key, name in STDS.items()),
)
NOTE = note(__name__, "Table")
BANDS = {
    "independent": "Independent experts: the band steps at their borders",
    "patchwork": "Patchwork: experts share rows with their neighbours",
}
COLOURS = {  # of the variants, by the labels of their curves
    "independent": plots.ORANGE,
    "patchwork": plots.BLUE,
    "4 x 10 %": plots.GREY,
    "25 rows at least": plots.GREEN,
    "witness": plots.RED,
}
TICKS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the std


def run(setting: Setting) -> Result:
    """Train, fit with and without patchwork, and measure every border, for each seed."""
    data, epochs = toy.toy_data(), setting.sized(*toy.NETWORKS).epochs
    parts = Grid.run(setting, one_seed, [()], axes=("variant",), read=_read).parts[()]
    draw_toy(parts[0]["drawn"], data.gap, setting.out / "toy.png")
    caption = (
        f"Seed 0. No row lies between {data.gap[0]:g} and {data.gap[1]:g}, nor outside 0 to 6. "
        "The colours at the bottom are the experts; dotted lines are their borders."
    )
    protocol = prose(__name__, setting=setting, data=data, epochs=epochs)
    origin = {"data": data.source, "rows": len(data.inputs), "gap": list(data.gap)}
    origin |= {"network": f"1-{toy.WIDTH}-1 tanh, {epochs} epochs", "experts": toy.NUM_EXPERTS}
    figures = [Figure("toy.png", "Bands of one, two and three sigma", caption)]
    title = "Does the error bar step where one expert hands over to the next?"
    numbers = {"seeds": [part["variants"] for part in parts]}
    return make_result(setting, "toy", title, protocol, numbers, summarise(numbers), figures, **origin)


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """All variants on one network; what the figure needs is in "drawn"."""
    data = toy.toy_data()
    scaling, rows = standardise(data.inputs, data.targets), data.train
    network = setting.sized(*toy.NETWORKS).train(rows, seed=seed, **setting.place)
    grid = torch.linspace(LOWER, UPPER, POINTS)[:, None]
    inside = ((grid > data.gap[0]) & (grid < data.gap[1])).flatten()
    variants, bands, borders = {}, {}, {}
    for name, options in VARIANTS.items():
        model = toy.fit_toy(network, rows, seed=seed, **options, **setting.place)
        prediction = model.predict(scaling.inputs(grid))
        std, at_rows = prediction.std.cpu().flatten(), model.predict(rows[0]).std.median()
        borders[name], jumps = _jumps(model, scaling.inputs(grid[:1]), scaling.inputs(grid[-1:]))
        stds = map(float, (at_rows, std[inside].max(), std[0], std[-1]))
        variants[name] = {**jumps, **dict(zip(STDS, stds, strict=True))}
        bands[name] = {"mean": prediction.mean.cpu().flatten().tolist(), "std": std.tolist()}
    # the division does not depend on the patchwork
    edges = [LOWER + place * (UPPER - LOWER) for place in borders["independent"]]
    drawn = {"grid": grid, "x": data.inputs, "y": data.targets}
    lists = {name: value.flatten().tolist() for name, value in drawn.items()}
    return {"variants": variants, "drawn": {**lists, "bands": bands, "borders": edges}}


def _jumps(model: UncertaintyModel, start: Tensor, end: Tensor) -> tuple[list[float], dict[str, Any]]:
    """Borders on the line from start to end, [1, 1] each, and the factors by which the error bar jumps."""
    borders = find_borders(lambda x: model.predict(x).expert, start, end, cells=POINTS - 1)
    left, right = (model.predict(side).std.cpu().flatten() for side in (borders.left, borders.right))
    jumps = jump_factors(left, right)
    numbers = {"mean_jump": float(jumps.mean()), "largest_jump": float(jumps.max())}
    return borders.place.tolist(), {"borders": len(borders), "jumps": jumps.tolist(), **numbers}


def _read(part: Mapping[str, Any]) -> dict[Place, dict[str, Any]]:
    return {(name,): numbers for name, numbers in part["variants"].items()}


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """One table of all variants; what patchwork changes, and the width in the gap."""
    grid = Grid.of(("variant",), {(): [{"variants": seed} for seed in numbers["seeds"]]}, _read)
    borders = min(grid.values(("independent",), "borders") or ())
    title = f"Toy: jumps of the std at {borders} borders or more, and the std itself"
    table = Pivot(title, {"variant": Column.text("experts")}, MEASURES, names=NAMES, note=NOTE).table(grid)
    rows, gap, left, right = (grid.mean(("patchwork",), name) for name in STDS)
    width = (
        f"With patchwork the error bar is {gap / rows:.1f} times as wide in the gap as at the rows, and at "
        f"least {min(left, right) / rows:.1f} times two units beyond them."
    )
    return [table], [*jump_words(grid, NAMES, "mean_jump", "largest_jump"), width]


def draw_toy(drawn: Mapping[str, Any], gap: tuple[float, float], path: Path) -> None:
    """Two bands with the experts below them, and the deviations of all variants."""
    with plots.figure(path, width=8.0, height=8.4, dpi=110) as figure:
        *upper, lower = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
        for axes, (name, title) in zip(upper, BANDS.items(), strict=True):
            _draw_band(axes, drawn, drawn["bands"][name])
            axes.set(title=title, ylabel="y", ylim=(-4.6, 4.6))
        upper[0].legend(loc="upper right", fontsize=8)
        stds = [band["std"] for band in drawn["bands"].values()]
        curves = {label: (std, COLOURS[label]) for label, std in zip(COLOURS, stds, strict=True)}
        toy.draw_deviations(lower, drawn["grid"], curves, gap, TICKS)
        lower.set_title("Standard deviation; grey: no rows")
        lower.legend(loc="upper center", ncols=5, fontsize=8)


def _draw_band(axes: Any, drawn: Mapping[str, Any], band: Mapping[str, list[float]]) -> None:
    """The rows in a band; at its bottom a colour for each expert, and lines at their borders."""
    grid, mean, std = (torch.tensor(values) for values in (drawn["grid"], band["mean"], band["std"]))
    for sigma in (3, 2, 1):
        labels = {"label": "one, two, three sigma", "line": "network"} if sigma == 3 else {}
        plots.draw_band(axes, grid, mean, sigma * std, **labels)
    axes.scatter(drawn["x"], drawn["y"], s=9, color=plots.INK, linewidths=0, zorder=3, label="rows")
    edges = [drawn["grid"][0], *drawn["borders"], drawn["grid"][-1]]
    for number, (start, stop) in enumerate(pairwise(edges)):
        colour = plots.PALETTE[number % len(plots.PALETTE)]
        axes.axvspan(start, stop, ymax=0.035, color=colour, alpha=0.9, linewidth=0)
    draw_borders(axes, drawn["borders"])
