"""`trustgp study toy`: the paper's 1-D figure. Does the band step at the experts' borders?"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness
from trustgp.model import UncertaintyModel

from ...core import toy
from ...core.borders import find_borders, jump_factors
from ...core.grid import Grid, Place
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Result, Setting, Table, make_result, note, prose
from ...datasets import standardise

LOWER, UPPER = -2.0, 8.0  # where bands are measured: the rows lie between 0 and 6
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


def run(setting: Setting) -> Result:
    """Train, fit with and without patchwork, and measure every border, for each seed."""
    data, epochs = toy.toy_data(), setting.sized(*toy.NETWORKS).epochs
    parts = Grid.run(setting, one_seed, [()], axes=("variant",), read=_read).parts[()]
    protocol = prose(__name__, setting=setting, data=data, epochs=epochs)
    origin = {"data": data.source, "rows": len(data.inputs), "gap": list(data.gap)}
    origin |= {"network": f"1-{toy.WIDTH}-1 tanh, {epochs} epochs", "experts": toy.NUM_EXPERTS}
    title = "Does the error bar step where one expert hands over to the next?"
    numbers = {"seeds": [part["variants"] for part in parts]}
    return make_result(setting, "toy", title, protocol, numbers, summarise, **origin)


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """Measurements of all variants on one network."""
    data = toy.toy_data()
    scaling, rows = standardise(data.inputs, data.targets), data.train
    network = setting.sized(*toy.NETWORKS).train(rows, seed=seed, **setting.place)
    grid = torch.linspace(LOWER, UPPER, POINTS)[:, None]
    inside = ((grid > data.gap[0]) & (grid < data.gap[1])).flatten()
    variants = {}
    for name, options in VARIANTS.items():
        model = toy.fit_toy(network, rows, seed=seed, **options, **setting.place)
        std, at_rows = (model.predict(x).std.cpu().flatten() for x in (scaling.inputs(grid), rows[0]))
        jumps = _jumps(model, scaling.inputs(grid[:1]), scaling.inputs(grid[-1:]))
        stds = map(float, (at_rows.median(), std[inside].max(), std[0], std[-1]))
        variants[name] = {**jumps, **dict(zip(STDS, stds, strict=True))}
    return {"variants": variants}


def _jumps(model: UncertaintyModel, start: Tensor, end: Tensor) -> dict[str, Any]:
    """Factors by which the error bar jumps at the borders on the line from start to end, [1, 1] each."""
    sides = find_borders(lambda x: model.predict(x).expert, start, end, cells=POINTS - 1)
    left, right = (model.predict(side).std.cpu().flatten() for side in sides)
    jumps = jump_factors(left, right)
    numbers = {"mean_jump": float(jumps.mean()), "largest_jump": float(jumps.max())}
    return {"borders": len(jumps), "jumps": jumps.tolist(), **numbers}


def _read(part: Mapping[str, Any]) -> dict[Place, dict[str, Any]]:
    return {(name,): numbers for name, numbers in part["variants"].items()}


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Table of all variants, and findings on what patchwork changes and on the width in the gap."""
    grid = Grid.of(("variant",), {(): [{"variants": seed} for seed in numbers["seeds"]]}, _read)
    borders = min(grid.values(("independent",), "borders") or ())
    title = f"Toy: jumps of the std at {borders} borders or more, and the std itself"
    table = Pivot(title, {"variant": Column.text("experts")}, MEASURES, names=NAMES, note=NOTE).table(grid)
    rows, gap, left, right = (grid.mean(("patchwork",), name) for name in STDS)
    width = (
        f"With patchwork the error bar is {gap / rows:.1f} times as wide in the gap as at the rows, and at "
        f"least {min(left, right) / rows:.1f} times two units beyond them."
    )
    jumps = [f"{grid.mean((name,), 'mean_jump'):.2f} with {words}" for name, words in NAMES.items()]
    return [table], [f"The mean jump of the std at a border is {', '.join(jumps)}.", width]
