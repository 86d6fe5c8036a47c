"""`trustgp study continuity`: how far does the variance jump at the experts' borders, in 21 dimensions?"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from trustgp.api import fit
from trustgp.experts.gate import nearest_two
from trustgp.experts.neighbours import Patchwork
from trustgp.model import UncertaintyModel

from ...core.arm import arm_recipe, arm_rows
from ...core.borders import DISTANCE, Borders, both_sides, find_borders, jump_factors, jump_words
from ...core.claim import mean_spread, words
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Result, Setting, Table, make_result, prose

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
QUANTITIES = {"std": "std", "epistemic": "epistemic std"}
NUM_EXPERTS, QUICK_EXPERTS = 16, 4
LINES, QUICK_LINES = 200, 12
LINE_CELLS = 64  # of the grid on a line
LINES_AT_ONCE = 20
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
KEPT = ("borders", "num_lines", "experts", "rows", "jumps", "control")


def run(setting: Setting) -> Result:
    """Fit with and without patchwork, and measure every border on lines between test rows, for each seed."""
    parts = Grid.run(setting, one_seed, [()], axes=("quantity", "variant"), read=_read).parts[()]
    first, network = parts[0], arm_recipe(setting.quick).words()
    protocol = prose(__name__, setting=setting, first=first, network=network, distance=DISTANCE)
    origin = {"data": first["source"], "split": first["about"], "network": network}
    origin |= {key: [part[key] for part in parts] for key in ("rows", "experts")}
    title = "How far does the variance jump where one expert hands over to the next?"
    numbers = {"seeds": [{key: part[key] for key in KEPT} for part in parts]}
    return make_result(setting, "continuity", title, protocol, numbers, summarise, **origin)


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """All variants on one network; the borders are those of the division, which all variants share."""
    rows, place = arm_rows(seed=seed, quick=setting.quick), {"seed": seed, **setting.place}
    network = arm_recipe(setting.quick).train(rows.train, **place)
    place |= {"validation": rows.validation, "num_experts": setting.sized(NUM_EXPERTS, QUICK_EXPERTS)}
    models = {name: fit(network, rows.train, **options, **place) for name, options in VARIANTS.items()}
    lines = line_ends(rows.test[0], setting.sized(LINES, QUICK_LINES), seed=seed)
    borders = borders_on_lines(models["independent"], *lines)
    jumps = {name: jumps_of(model, borders) for name, model in models.items()}
    if (others := cell_borders(models["default"], *lines)) is not None:
        jumps[CELLS] = jumps_of(models["default"], others)
    control = random_places(*lines, len(borders), seed=seed)
    return {
        "source": rows.source,
        "about": rows.about,
        "rows": rows.sizes,
        "experts": models["independent"].num_experts,
        "num_lines": len(lines[0]),
        "borders": len(borders),
        "jumps": {name: {kind: summary(one[kind]) for kind in QUANTITIES} for name, one in jumps.items()},
        "control": summary(jumps_of(models["independent"], control)["std"]),
    }


def _read(part: Mapping[str, Any]) -> dict[tuple, dict[str, Any]]:
    return {(kind, name): part["jumps"][name][kind] for kind in QUANTITIES for name in part["jumps"]}


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """One table of all jumps; what patchwork changes, and a control."""
    seeds: Sequence[Mapping[str, Any]] = numbers["seeds"]
    grid = Grid.of(("quantity", "variant"), {(): seeds}, _read)
    sentences = jump_words(grid, {name: NAMES[name] for name in VARIANTS}, "mean", "largest", "std")
    crossed = mean_spread([seed["borders"] / seed["num_lines"] for seed in seeds])
    sentences.append(
        f"A line between two test rows crosses {crossed[0]:.1f} borders on average; at half of them the std "
        f"changes by less than {100 * (grid.mean(('std', 'default'), 'median') - 1):.0f} % with the default."
    )
    if CELLS in grid.along("variant"):
        mean, largest = (words(grid.spread(("std", CELLS), key)) for key in ("mean", "largest"))
        sentences.append(
            f"The witness of the default has borders of its own; there the std jumps by {mean} "
            f"on average, by {largest} at most."
        )
    control = mean_spread([seed["control"]["mean"] for seed in seeds])
    sentences.append(
        f"As a control, the same measure at as many random places on the lines gives {control[0]:.5f} on "
        "average: it is the borders that are measured, not the slope."
    )
    return [TABLE.table(grid)], sentences


def line_ends(points: Tensor, lines: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Both ends of at most so many random lines between points [n, d], each used at most once."""
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    count = min(lines, len(points) // 2)
    return points[order[:count]], points[order[count : 2 * count]]


def borders_on_lines(model: UncertaintyModel, starts: Tensor, ends: Tensor) -> Borders:
    """Borders between experts on all lines [l, d], a few lines at a time."""
    parts = []
    for part in torch.arange(len(starts)).split(LINES_AT_ONCE):
        one = find_borders(lambda x: model.predict(x).expert, starts[part], ends[part], cells=LINE_CELLS)
        parts.append(Borders(part[one.line], one.place, one.left, one.right))
    borders = Borders(*(torch.cat([getattr(one, field.name) for one in parts]) for field in fields(Borders)))
    if len(borders) == 0:
        raise ValueError("no line crosses a border between experts; take more lines or more experts.")
    return borders


def cell_borders(model: UncertaintyModel, starts: Tensor, ends: Tensor) -> Borders | None:
    """Borders between the cells of the witness on the lines [l, d]; None where there are none."""
    witness = model.witness
    if witness is None:
        return None

    def cell_of(points: Tensor) -> Tensor:
        here = points.to(witness.centroids.device)
        return nearest_two(witness.scaled(here), witness.centroids)[0].to(points.device)

    borders = find_borders(cell_of, starts, ends, cells=LINE_CELLS)
    return borders if len(borders) else None


def random_places(starts: Tensor, ends: Tensor, count: int, *, seed: int) -> Borders:
    """Random places on the lines, as a control: the measure where there is no border."""
    generator = torch.Generator().manual_seed(seed)
    line = torch.randint(len(starts), (count,), generator=generator)
    place = torch.rand(count, generator=generator, dtype=torch.float64)
    return both_sides(starts, ends, line, place)


def jumps_of(model: UncertaintyModel, borders: Borders) -> dict[str, Tensor]:
    """Factors by which the error bar and its epistemic part differ on two sides, shape [b, C] each."""
    sides = [model.predict(points) for points in (borders.left, borders.right)]
    pairs = {"std": [side.std for side in sides], "epistemic": [side.epistemic.sqrt() for side in sides]}
    return {name: jump_factors(*pair).double().cpu() for name, pair in pairs.items()}


def summary(jumps: Tensor) -> dict[str, float]:
    """Mean, median, 95th percentile and largest, by the keys of `MEASURES`."""
    flat = jumps.flatten()
    values = flat.mean(), flat.median(), flat.quantile(0.95), flat.max()
    return {measure.key: float(value) for measure, value in zip(MEASURES, values, strict=True)}
