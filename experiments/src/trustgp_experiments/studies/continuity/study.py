"""`trustgp study continuity`: how far does the variance jump at the experts' borders, in 21 dimensions?"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trustgp import plots
from trustgp.api import fit
from trustgp.executors.progress import reporting
from trustgp.experts.gate import nearest_two
from trustgp.experts.neighbours import Patchwork
from trustgp.model import UncertaintyModel

from ...core.arm import arm_recipe, arm_rows
from ...core.borders import APART, Borders, both_sides, draw_borders, find_borders, jump_factors, jump_words
from ...core.claim import mean_spread, words
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Figure, Result, Setting, provenance

CELLS = "cells"
VARIANTS: dict[str, dict[str, Any]] = {
    "independent": {"patchwork": Patchwork(neighbours=0), "witness": None},
    "patchwork": {"patchwork": Patchwork(), "witness": None},
    "large": {"patchwork": Patchwork(neighbours=4, fraction=0.5), "witness": None},
    "default": {},
}
NAMES = {
    "independent": "independent experts",
    "patchwork": "4 neighbours x 10 %",
    "large": "4 neighbours x 50 %",
    "default": "4 neighbours x 10 %, witness (default)",
    CELLS: "the same, at the witness's borders",
}
COLOURS = dict(zip(VARIANTS, (plots.ORANGE, plots.BLUE, plots.GREEN, plots.RED), strict=True))
DRAWN = ("independent", "patchwork", "default")  # along the lines
QUANTITIES = {"std": "std", "epistemic": "epistemic std"}
NUM_EXPERTS, QUICK_EXPERTS = 16, 4
LINES, QUICK_LINES = 200, 12
EXAMPLES = 3  # lines in the figure
GRID = 64  # cells of the grid on a line
LINES_AT_ONCE = 20
FINE = 400  # points of a line in the figure
QUANTILES = 200  # of the jumps, kept for the figure
MEASURES = (
    Measure("mean", Column("mean jump", digits=3, better="low")),
    Measure("median", Column("median", digits=3, better="low")),
    Measure("upper", Column("95th percentile", digits=3, better="low")),
    Measure("largest", Column("largest", digits=2, better="low")),
)
TABLE = Pivot(
    "Continuity: the larger over the smaller value on the two sides of a border",
    {"quantity": Column.text("of"), "variant": Column.text("experts")},
    MEASURES,
    names={**QUANTITIES, **NAMES},
    block="of",
    note="A factor of 1 is no jump. Every border and torque; mean ± standard deviation over seeds.",
)


def run(setting: Setting) -> Result:
    """Fit with and without patchwork, and measure every border on lines between test rows, for each seed."""
    grid = Grid.run(setting, one_seed, [()], axes=("quantity", "variant"), read=_read)
    runs = grid.parts[()]
    first, network = runs[0], arm_recipe(setting.quick).words()
    draw_continuity(runs, setting.out / "continuity.png")
    cells: dict[str, dict[str, Any]] = {quantity: {} for quantity in QUANTITIES}
    for quantity, name in grid.along("quantity", "variant"):
        cells[quantity][name] = {m.key: grid.spread((quantity, name), m.key) for m in MEASURES}
    kept = ("borders", "experts", "rows", "jumps", "control", "training_seconds", "fit_seconds")
    rows, experts = ([run[key] for run in runs] for key in ("rows", "experts"))
    origin = {"data": first["source"], "split": first["about"], "rows": rows, "network": network}
    origin |= {"experts": experts, "lines": first["num_lines"]}
    return Result(
        study="continuity",
        title="How far does the variance jump where one expert hands over to the next?",
        protocol=[
            f"Data: {first['about']}",
            f"Network: {network}. {first['experts']} experts for the first seed, calibrated on the "
            "validation rows. Only the patchwork differs, the division does not; the experts speak alone "
            "except in the library's default, whose witness (a second opinion, from the inputs) divides the "
            "inputs in a way of its own.",
            f"{first['num_lines']} straight lines join random pairs of test rows. The expert is looked up on "
            f"{GRID + 1} points of each; where it changes, the border is pinned down by bisection, and "
            f"the error bar compared on its two sides, {APART:g} of the line's length apart: what is "
            "measured is the jump, not the slope.",
            f"Seeds: {setting.seeds}, of split, network, division and lines.",
        ],
        tables=[TABLE.table(grid)],
        figures=[Figure("continuity.png", "Error bars along three lines, and all jumps", CAPTION)],
        findings=_findings(grid, runs),
        numbers={"jumps": cells, "seeds": [{key: run[key] for key in kept} for run in runs]},
        provenance=provenance(setting, "continuity", **origin),
    )


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """All variants on one network; the borders are those of the division, which all variants share."""
    rows, place = arm_rows(seed=seed, quick=setting.quick), {"seed": seed, **setting.place}
    start = time.perf_counter()
    network = arm_recipe(setting.quick).train(rows.train, **place)
    trained = time.perf_counter()
    place |= {"validation": rows.validation, "num_experts": setting.sized(NUM_EXPERTS, QUICK_EXPERTS)}
    models = {name: fit(network, rows.train, **options, **place) for name, options in VARIANTS.items()}
    fitted = time.perf_counter()
    lines = line_ends(rows.test[0], setting.sized(LINES, QUICK_LINES), seed=seed)
    borders = borders_on_lines(models["independent"], *lines, progress=not setting.console.quiet)
    found = {name: jumps_of(model, borders) for name, model in models.items()}
    if (others := cell_borders(models["default"], *lines)) is not None:
        found[CELLS] = jumps_of(models["default"], others)
    control = random_places(*lines, len(borders), seed=seed)
    summaries = {name: {kind: summary(one[kind]) for kind in QUANTITIES} for name, one in found.items()}
    return {
        "source": rows.source,
        "about": rows.about,
        "rows": rows.sizes,
        "experts": models["independent"].num_experts,
        "num_lines": len(lines[0]),
        "borders": len(borders),
        "jumps": summaries,
        "control": summary(jumps_of(models["independent"], control)["std"]),
        "quantiles": {name: quantiles(one["std"]) for name, one in found.items()},
        "lines": example_lines({name: models[name] for name in DRAWN}, *lines, borders, EXAMPLES),
        "training_seconds": trained - start,
        "fit_seconds": fitted - trained,
    }


def _read(part: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
    return {(kind, name): part["jumps"][name][kind] for kind in QUANTITIES for name in part["jumps"]}


def _findings(grid: Grid, runs: Sequence[dict[str, Any]]) -> list[str]:
    found = jump_words(grid, {name: NAMES[name] for name in VARIANTS}, "mean", "largest", "std")
    crossed = mean_spread([run["borders"] / run["num_lines"] for run in runs])
    found.append(
        f"A line between two test rows crosses {crossed[0]:.1f} borders on average; at half of them the std "
        f"changes by less than {100 * (grid.mean(('std', 'default'), 'median') - 1):.0f} % with the default."
    )
    if CELLS in grid.along("variant"):
        mean, largest = (words(grid.spread(("std", CELLS), key)) for key in ("mean", "largest"))
        found.append(
            f"The witness of the default has borders of its own; there the std jumps by {mean} "
            f"on average, by {largest} at most."
        )
    control = mean_spread([run["control"]["mean"] for run in runs])
    found.append(
        f"As a control, the same measure at as many random places on the lines gives {control[0]:.5f} on "
        "average: it is the borders that are measured, not the slope."
    )
    return found


def draw_continuity(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Lines of the first seed through the experts, and how large all jumps are."""
    lines = runs[0]["lines"]
    with plots.figure(path, width=9.0, height=5.6, dpi=110) as figure:
        left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
        panels = left.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0]
        for axes, line in zip(panels, lines, strict=True):
            draw_borders(axes, line["borders"])
            for name, deviations in line["std"].items():
                axes.plot(line["place"], deviations, color=COLOURS[name], linewidth=1.3)
            axes.set_ylim(bottom=0)
            axes.set(xlim=(0, 1), ylabel="std")
        panels[0].set_title("Std of the first torque along a line")
        panels[-1].set_xlabel("from one test row (0) to another (1)")
        _draw_shares(right.subplots(), {name: [run["quantiles"][name] for run in runs] for name in VARIANTS})


def _draw_shares(axes: Any, shares: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """By variant, for each seed, the jumps at evenly spaced ranks."""
    for name, seeds in shares.items():
        for number, ranked in enumerate(seeds):
            rank, label = 100 * np.linspace(0, 1, len(ranked)), NAMES[name] if number == 0 else None
            axes.plot(ranked, rank, color=COLOURS[name], linewidth=1.2, alpha=0.85, label=label)
    top = max(ranked[-1] for seeds in shares.values() for ranked in seeds)
    ticks = [tick for tick in (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50) if tick <= max(top, 1.5)]
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(ylim=(0, 100), title="All borders, all torques", xlabel="jump of the std, as a factor")
    axes.set_ylabel("share of jumps no larger, %")
    axes.legend(loc="lower right", fontsize=8)


CAPTION = (
    "Left: std of the first torque along three lines of seed 0; dotted lines are the experts' borders. Small "
    "steps between them are the network's own: where a ReLU switches, its gradient and so the kernel jump. "
    "Right: the share of all borders and torques at which the std jumps by no more than a factor; "
    "one thin curve for each seed."
)


def line_ends(points: Tensor, lines: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Both ends of at most so many random lines between points [n, d], each used at most once."""
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    count = min(lines, len(points) // 2)
    return points[order[:count]], points[order[count : 2 * count]]


def borders_on_lines(model: UncertaintyModel, starts: Tensor, ends: Tensor, *, progress: bool) -> Borders:
    """Borders between experts on all lines [l, d], a few lines at a time."""
    parts = list(torch.arange(len(starts)).split(LINES_AT_ONCE))
    found = []
    with reporting(enabled=progress) as report:
        for part in report.track(parts, stage="looking for borders", total=len(parts)):
            one = find_borders(lambda x: model.predict(x).expert, starts[part], ends[part], cells=GRID)
            found.append(Borders(part[one.line], one.place, one.left, one.right))
    whole = Borders(*(torch.cat([getattr(one, field.name) for one in found]) for field in fields(Borders)))
    if len(whole) == 0:
        raise ValueError("no line crosses a border between experts; take more lines or more experts.")
    return whole


def cell_borders(model: UncertaintyModel, starts: Tensor, ends: Tensor) -> Borders | None:
    """Borders between the cells of the witness on the lines [l, d]; None where there is none to cross."""
    witness = model.witness
    if witness is None:
        return None

    def cell_of(points: Tensor) -> Tensor:
        here = points.to(witness.centroids.device)
        return nearest_two(witness.scaled(here), witness.centroids)[0].to(points.device)

    found = find_borders(cell_of, starts, ends, cells=GRID)
    return found if len(found) else None


def random_places(starts: Tensor, ends: Tensor, count: int, *, seed: int) -> Borders:
    """Places anywhere on the lines, as a control: what the measure finds where there is no border."""
    generator = torch.Generator().manual_seed(seed)
    line = torch.randint(len(starts), (count,), generator=generator)
    place = torch.rand(count, generator=generator, dtype=torch.float64)
    return both_sides(starts, ends, line, place)


def jumps_of(model: UncertaintyModel, borders: Borders) -> dict[str, Tensor]:
    """Factors by which the error bar and its epistemic part differ on two sides, shape [b, C] each."""
    sides = [model.predict(points) for points in (borders.left, borders.right)]
    pairs = {"std": [said.std for said in sides], "epistemic": [said.epistemic.sqrt() for said in sides]}
    return {name: jump_factors(*pair).double().cpu() for name, pair in pairs.items()}


def summary(jumps: Tensor) -> dict[str, float]:
    """Mean, median, 95th percentile and largest of some"""
    flat = jumps.flatten()
    found = flat.mean(), flat.median(), flat.quantile(0.95), flat.max()
    return dict(zip(("mean", "median", "upper", "largest"), map(float, found), strict=True))


def quantiles(jumps: Tensor) -> list[float]:
    """The jumps at evenly spaced ranks, ascending."""
    ranks = torch.linspace(0, 1, QUANTILES + 1, dtype=torch.float64)
    return jumps.flatten().quantile(ranks).tolist()


def example_lines(
    models: Mapping[str, UncertaintyModel], starts: Tensor, ends: Tensor, borders: Borders, count: int
) -> list[dict[str, Any]]:
    """The std of the first torque along the first lines [l, d] with two borders, else those with most."""
    crossed = torch.bincount(borders.line, minlength=len(starts))
    chosen = crossed.clamp(max=2).argsort(descending=True, stable=True)[:count]
    place = torch.linspace(0, 1, FINE + 1)[:, None]
    found = []
    for line in chosen.tolist():
        points = starts[line] + place * (ends[line] - starts[line])
        std = {name: model.predict(points).std[:, 0].double().tolist() for name, model in models.items()}
        own = borders.place[borders.line == line].tolist()
        found.append({"place": place.flatten().tolist(), "std": std, "borders": own})
    return found
