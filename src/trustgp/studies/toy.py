"""`trustgp study toy`: the paper's 1-D figure. Does the band step at the experts' borders?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import plots
from ..datasets import load, snelson_like, standardise
from ..model import UncertaintyModel
from ..patchwork import Patchwork
from ..witness import Witness
from .alone import alone
from .base import Column, Figure, Result, Setting, Table, provenance
from .borders import find_borders, jump_factors
from .summaries import change, mean_spread
from .toy_figure import draw_toy
from .toy_models import EPOCHS, INDEPENDENT, NUM_EXPERTS, PATCHWORK, WIDTH, fit_toy, train_toy

LOWER, UPPER = -2.0, 8.0  # where bands are drawn: the rows lie between 0 and 6
POINTS = 1001
QUICK_EPOCHS = 300
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
COLUMNS = {
    MEAN: Column("mean jump", digits=3, better="low"),
    LARGEST: Column("largest", digits=3, better="low"),
    "rows_std": Column("std at rows", digits=2),
    "gap_std": Column("in the gap", digits=2),
    "left_std": Column(f"at {LOWER:g}", digits=2),
    "right_std": Column(f"at {UPPER:g}", digits=2),
}

Cells = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class ToyData:
    """Rows of one input and one output.

    Args:
        inputs, targets: Shape [n, 1].
        gap: The interval without rows.
        source: Name of the data.
        about: In words.
    """

    inputs: Tensor
    targets: Tensor
    gap: tuple[float, float]
    source: str
    about: str


def run(setting: Setting) -> Result:
    """Train, fit with and without patchwork, and measure every border, for each seed."""
    plots.require_matplotlib()
    data = toy_data()
    epochs = QUICK_EPOCHS if setting.quick else EPOCHS
    runs = [
        setting.once(f"seed-{seed}", lambda seed=seed: alone(lambda: _one_seed(data, seed, epochs, setting)))
        for seed in range(setting.seeds)
    ]
    draw_toy(runs[0]["drawn"], data.gap, setting.out / "toy.png")
    cells = {
        variant: {key: mean_spread([run["variants"][variant][key] for run in runs]) for key in COLUMNS}
        for variant in VARIANTS
    }
    return Result(
        study="toy",
        title="Does the error bar step where one expert hands over to the next?",
        protocol=_protocol(data, setting, epochs),
        tables=[_table(cells, runs)],
        figures=[Figure("toy.png", "Bands of one, two and three sigma", _caption(data))],
        findings=_findings(cells, runs),
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


def toy_data() -> ToyData:
    """Snelson's rows with the paper's gap cut into them, or generated ones where those are not there."""
    try:
        recording = load("snelson")
    except FileNotFoundError:
        gap = (2.4, 3.6)
        about = "generated rows in the manner of Snelson's (his own are not here)"
        return ToyData(*snelson_like(gap=gap), gap, "snelson_like", about)
    gap = (1.5, 3.0)  # as in the paper
    x = recording.inputs
    kept = ((x < gap[0]) | (x > gap[1])).flatten()
    about = f"Snelson's rows; the {int((~kept).sum())} of them between {gap[0]:g} and {gap[1]:g} are left out"
    return ToyData(x[kept].float(), recording.targets[kept].float(), gap, "snelson", about)


def _one_seed(data: ToyData, seed: int, epochs: int, setting: Setting) -> dict[str, Any]:
    """All variants on one network; what the figure needs is in "drawn"."""
    scaling = standardise(data.inputs, data.targets)
    rows = scaling.inputs(data.inputs), data.targets
    shown = not setting.console.quiet
    network = train_toy(*rows, seed=seed, epochs=epochs, device=setting.device, progress=shown)
    common: dict[str, Any] = {"seed": seed, "device": setting.device, "progress": shown}
    models = {name: fit_toy(network, rows, **options, **common) for name, options in VARIANTS.items()}
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


def _table(cells: Cells, runs: list[dict[str, Any]]) -> Table:
    borders = [run["variants"]["independent"]["borders"] for run in runs]
    rows = [[NAMES[name], *(numbers[key] for key in COLUMNS)] for name, numbers in cells.items()]
    return Table(
        f"Toy: jumps of the std at {min(borders)} borders or more, and the std itself",
        [Column("experts", digits=-1), *COLUMNS.values()],
        rows,
        note="Jump: the larger std over the smaller one on the two sides of a border; 1 is none. Then the "
        "std itself: its median at the rows, its largest value in the gap, and both ends of the figure. "
        "Mean ± standard deviation over seeds.",
    )


def _findings(cells: Cells, runs: list[dict[str, Any]]) -> list[str]:
    def from_none(variant: str, key: str) -> str:
        without, with_ = ([run["variants"][v][key] for run in runs] for v in ("independent", variant))
        return change(without, with_)

    found = [
        f"With {NAMES[name]}, the mean jump of the std {from_none(name, MEAN)}; the largest "
        f"{from_none(name, LARGEST)}."
        for name in ("patchwork", "default", "witness")
    ]
    ours = cells["patchwork"]
    wider = ours["gap_std"][0] / ours["rows_std"][0]
    edge = min(ours["left_std"][0], ours["right_std"][0]) / ours["rows_std"][0]
    found.append(
        f"With patchwork the error bar is {wider:.1f} times as wide in the gap as at the rows, and at least "
        f"{edge:.1f} times two units beyond them."
    )
    return found


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
