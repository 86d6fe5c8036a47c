"""`trustgp study continuity`: how far does the variance jump at the experts' borders, in 21 dimensions?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from trustgp.api import fit
from trustgp.experts.neighbours import Patchwork

from ...core.arm import arm_recipe, arm_rows
from ...core.borders import APART, jump_sentences
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Figure, Result, Setting, provenance
from ...core.statistics import mean_spread, words
from .figure import draw_continuity
from .jumps import (
    GRID,
    borders_on_lines,
    cell_borders,
    example_lines,
    jumps_of,
    line_ends,
    quantiles,
    random_places,
    summary,
)

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
DRAWN = ("independent", "patchwork", "default")  # along the lines
QUANTITIES = {"std": "std", "epistemic": "epistemic std"}
NUM_EXPERTS, QUICK_EXPERTS = 16, 4
LINES, QUICK_LINES = 200, 12
EXAMPLES = 3  # lines in the figure
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
    shares = {name: [run["quantiles"][name] for run in runs] for name in VARIANTS}
    draw_continuity(runs[0]["lines"], shares, NAMES, setting.out / "continuity.png")
    cells = {
        quantity: {
            name: {m.key: grid.spread((quantity, name), m.key) for m in MEASURES}
            for name in grid.along("variant", quantity=quantity)
        }
        for quantity in QUANTITIES
    }
    kept = ("borders", "experts", "rows", "jumps", "control", "training_seconds", "fit_seconds")
    return Result(
        study="continuity",
        title="How far does the variance jump where one expert hands over to the next?",
        protocol=_protocol(setting, runs),
        tables=[TABLE.table(grid)],
        figures=[Figure("continuity.png", "Error bars along three lines, and all jumps", CAPTION)],
        findings=_findings(grid, runs),
        numbers={"jumps": cells, "seeds": [{key: run[key] for key in kept} for run in runs]},
        provenance=provenance(
            setting,
            "continuity",
            data=runs[0]["source"],
            split=runs[0]["about"],
            rows=[run["rows"] for run in runs],
            network=arm_recipe(setting.quick).words(),
            experts=[run["experts"] for run in runs],
            lines=runs[0]["num_lines"],
        ),
    )


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """All variants on one network; the borders are those of the division, which all variants share."""
    rows, shown = arm_rows(seed=seed, quick=setting.quick), not setting.console.quiet
    start = time.perf_counter()
    network = arm_recipe(setting.quick).train(rows.train, seed=seed, **setting.place)
    trained = time.perf_counter()
    common: dict[str, Any] = {
        "validation": rows.validation,
        "num_experts": QUICK_EXPERTS if setting.quick else NUM_EXPERTS,
        "seed": seed,
        **setting.place,
    }
    models = {name: fit(network, rows.train, **options, **common) for name, options in VARIANTS.items()}
    fitted = time.perf_counter()
    starts, ends = line_ends(rows.test[0], QUICK_LINES if setting.quick else LINES, seed=seed)
    borders = borders_on_lines(models["independent"], starts, ends, progress=shown)
    jumps = {name: jumps_of(model, borders) for name, model in models.items()}
    if (others := cell_borders(models["default"], starts, ends)) is not None:
        jumps[CELLS] = jumps_of(models["default"], others)
    control = random_places(starts, ends, len(borders), seed=seed)
    drawn = {name: models[name] for name in DRAWN}
    return {
        "source": rows.source,
        "about": rows.about,
        "rows": rows.sizes,
        "experts": models["independent"].num_experts,
        "num_lines": len(starts),
        "borders": len(borders),
        "jumps": {name: {kind: summary(found[kind]) for kind in QUANTITIES} for name, found in jumps.items()},
        "control": summary(jumps_of(models["independent"], control)["std"]),
        "quantiles": {name: quantiles(found["std"]) for name, found in jumps.items()},
        "lines": example_lines(drawn, starts, ends, borders, EXAMPLES),
        "training_seconds": trained - start,
        "fit_seconds": fitted - trained,
    }


def _read(part: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
    return {(kind, name): part["jumps"][name][kind] for kind in QUANTITIES for name in part["jumps"]}


def _findings(grid: Grid, runs: Sequence[dict[str, Any]]) -> list[str]:
    found = jump_sentences(grid, {name: NAMES[name] for name in VARIANTS}, "mean", "largest", "std")
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


def _protocol(setting: Setting, runs: Sequence[dict[str, Any]]) -> list[str]:
    first = runs[0]
    return [
        f"Data: {first['about']}",
        f"Network: {arm_recipe(setting.quick).words()}. {first['experts']} experts for the first seed, "
        "calibrated on the validation rows. Only the patchwork differs, the division does not; the experts "
        "speak alone except in the library's default, whose witness (a second opinion, from the inputs) "
        "divides the inputs in a way of its own.",
        f"{first['num_lines']} straight lines join random pairs of test rows. The expert is looked up on "
        f"{GRID + 1} points of each; where it changes, the border is pinned down by bisection, and the "
        f"error bar compared on its two sides, {APART:g} of the line's length apart: what is measured is the "
        "jump, not the slope.",
        f"Seeds: {setting.seeds}, of split, network, division and lines.",
    ]


CAPTION = (
    "Left: std of the first torque along three lines of seed 0; dotted lines are the experts' borders. Small "
    "steps between them are the network's own: where a ReLU switches, its gradient and so the kernel jump. "
    "Right: the share of all borders and torques at which the std jumps by no more than a factor; "
    "one thin curve for each seed."
)
