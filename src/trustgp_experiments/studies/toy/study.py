"""`trustgp study toy`: the paper's 1-D figure. Does the band step at the experts' borders?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness
from trustgp.model import UncertaintyModel

from ...core.borders import find_borders, jump_factors, jump_sentences
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Figure, Result, Setting, provenance
from ...core.toy import (
    EPOCHS,
    INDEPENDENT,
    NUM_EXPERTS,
    PATCHWORK,
    QUICK_EPOCHS,
    WIDTH,
    ToyData,
    fit_toy,
    toy_data,
    train_toy,
)
from ...datasets import standardise
from .figure import draw_toy

LOWER, UPPER = -2.0, 8.0  # where bands are drawn: the rows lie between 0 and 6
POINTS = 1001
MEAN, LARGEST = "mean_jump", "largest_jump"
VARIANTS: dict[str, dict[str, Any]] = {
    "independent": {"patchwork": INDEPENDENT},
    "patchwork": {"patchwork": PATCHWORK},
    "default": {"patchwork": Patchwork()},
    "witness": {"patchwork": Patchwork(), "witness": Witness()},
}
NAMES = {
    "independent": "independent experts",
    "patchwork": "2 neighbours x 100 % (paper)",
    "default": "4 neighbours x 10 %",
    "witness": "4 neighbours x 10 %, witness (default)",
}
MEASURES = (
    Measure(MEAN, Column("mean jump", digits=3, better="low")),
    Measure(LARGEST, Column("largest", digits=3, better="low")),
    Measure("rows_std", Column("std at rows", digits=2)),
    Measure("gap_std", Column("in the gap", digits=2)),
    Measure("left_std", Column(f"at {LOWER:g}", digits=2)),
    Measure("right_std", Column(f"at {UPPER:g}", digits=2)),
)
NOTE = (
    "Jump: the larger std over the smaller one on the two sides of a border; 1 is none. Then the std itself: "
    "its median at the rows, its largest value in the gap, and both ends of the figure. Mean ± standard "
    "deviation over seeds."
)


def run(setting: Setting) -> Result:
    """Train, fit with and without patchwork, and measure every border, for each seed."""
    data, epochs = toy_data(), _epochs(setting)
    grid = Grid.run(setting, one_seed, [()], axes=("variant",), read=_read)
    runs = grid.parts[()]
    draw_toy(runs[0]["drawn"], data.gap, setting.out / "toy.png")
    cells = {name: {m.key: grid.spread((name,), m.key) for m in MEASURES} for name in VARIANTS}
    borders = min(grid.values(("independent",), "borders") or ())
    title = f"Toy: jumps of the std at {borders} borders or more, and the std itself"
    table = Pivot(title, {"variant": Column.text("experts")}, MEASURES, names=NAMES, note=NOTE).table(grid)
    return Result(
        study="toy",
        title="Does the error bar step where one expert hands over to the next?",
        protocol=_protocol(data, setting, epochs),
        tables=[table],
        figures=[Figure("toy.png", "Bands of one, two and three sigma", _caption(data))],
        findings=[*jump_sentences(grid, NAMES, MEAN, LARGEST), _on_the_gap(grid)],
        numbers={"variants": cells, "seeds": [run["variants"] for run in runs]},
        provenance=provenance(
            setting,
            "toy",
            data=data.source,
            rows=len(data.inputs),
            gap=list(data.gap),
            network=f"1-{WIDTH}-1 tanh, {epochs} epochs",
            experts=NUM_EXPERTS,
        ),
    )


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """All variants on one network; what the figure needs is in "drawn"."""
    data = toy_data()
    scaling = standardise(data.inputs, data.targets)
    rows = data.scaled, data.targets
    network = train_toy(*rows, seed=seed, epochs=_epochs(setting), **setting.place)
    models = {
        name: fit_toy(network, rows, seed=seed, **options, **setting.place)
        for name, options in VARIANTS.items()
    }
    grid = torch.linspace(LOWER, UPPER, POINTS)[:, None]
    found, bands = {}, {}
    for name, model in models.items():
        prediction = model.predict(scaling.inputs(grid))
        std = prediction.std.cpu().flatten()
        inside = (grid > data.gap[0]) & (grid < data.gap[1])
        found[name] = {
            **_jumps(model, scaling.inputs(grid[:1]), scaling.inputs(grid[-1:])),
            "rows_std": float(model.predict(rows[0]).std.median()),
            "gap_std": float(std[inside.flatten()].max()),
            "left_std": float(std[0]),
            "right_std": float(std[-1]),
        }
        bands[name] = {"mean": prediction.mean.cpu().flatten().tolist(), "std": std.tolist()}
    drawn = {"grid": grid.flatten().tolist(), "bands": bands}
    drawn |= {"x": data.inputs.flatten().tolist(), "y": data.targets.flatten().tolist()}
    drawn["borders"] = [LOWER + place * (UPPER - LOWER) for place in found["independent"].pop("places")]
    for name in found.keys() - {"independent"}:
        del found[name]["places"]  # the division does not depend on the patchwork
    return {"variants": found, "drawn": drawn}


def _jumps(model: UncertaintyModel, start: Tensor, end: Tensor) -> dict[str, Any]:
    """Factors by which the error bar jumps along the line from start to end, each of shape [1, 1]."""
    borders = find_borders(lambda x: model.predict(x).expert, start, end, cells=POINTS - 1)
    left, right = (model.predict(side).std.cpu().flatten() for side in (borders.left, borders.right))
    jumps = jump_factors(left, right)
    return {
        "borders": len(borders),
        "places": borders.place.tolist(),
        "jumps": jumps.tolist(),
        MEAN: float(jumps.mean()),
        LARGEST: float(jumps.max()),
    }


def _read(part: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
    return {(name,): numbers for name, numbers in part["variants"].items()}


def _epochs(setting: Setting) -> int:
    return QUICK_EPOCHS if setting.quick else EPOCHS


def _on_the_gap(grid: Grid) -> str:
    names = ("rows_std", "gap_std", "left_std", "right_std")
    rows, gap, left, right = (grid.mean(("patchwork",), name) for name in names)
    return (
        f"With patchwork the error bar is {gap / rows:.1f} times as wide in the gap as at the rows, and at "
        f"least {min(left, right) / rows:.1f} times two units beyond them."
    )


def _protocol(data: ToyData, setting: Setting, epochs: int) -> list[str]:
    return [
        f"Data: {data.about}; {len(data.inputs)} rows train, none is held out.",
        f"Network: one hidden layer of {WIDTH} tanh units, {epochs} epochs of all rows at once. "
        f"{NUM_EXPERTS} experts in 4 kernel principal components. They speak alone, as in the paper, except "
        "where a witness is named; besides that only the patchwork differs.",
        f"Borders are looked for from x = {LOWER:g} to {UPPER:g} and pinned down by bisection; the jump is "
        "the larger std over the smaller one on their two sides.",
        f"Seeds: {setting.seeds}, of the network's weights and of the division; the rows stay the same.",
    ]


def _caption(data: ToyData) -> str:
    return (
        f"Seed 0. No row lies between {data.gap[0]:g} and {data.gap[1]:g}, nor outside 0 to 6. "
        "The colours at the bottom are the experts; dotted lines are their borders."
    )
