"""`trustgp study continuity`: how far does the variance jump at the experts' borders, in 21 dimensions?"""

from __future__ import annotations

import time
from typing import Any

from .. import plots
from ..fit import fit
from ..patchwork import Patchwork
from .ahead import work_ahead
from .arm_rows import arm_network, arm_rows, network_words
from .base import Column, Figure, Result, Setting, Table, provenance
from .borders import APART
from .continuity_figure import draw_continuity
from .continuity_jumps import (
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
from .summaries import change, mean_spread, words

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
COLUMNS = {
    "mean": Column("mean jump", digits=3, better="low"),
    "median": Column("median", digits=3, better="low"),
    "upper": Column("95th percentile", digits=3, better="low"),
    "largest": Column("largest", digits=2, better="low"),
}

Cells = dict[str, dict[str, dict[str, list[float]]]]


def run(setting: Setting) -> Result:
    """Fit with and without patchwork, and measure every border on lines between test rows, for each seed."""
    plots.require_matplotlib()
    work_ahead(setting, one_seed, [(seed,) for seed in range(setting.seeds)])
    runs = [one_seed(setting, seed) for seed in range(setting.seeds)]
    shares = {name: [run["quantiles"][name] for run in runs] for name in VARIANTS}
    draw_continuity(runs[0]["lines"], shares, NAMES, setting.out / "continuity.png")
    cells = _cells(runs)
    kept = ("borders", "experts", "rows", "jumps", "control", "training_seconds", "fit_seconds")
    return Result(
        study="continuity",
        title="How far does the variance jump where one expert hands over to the next?",
        protocol=_protocol(setting, runs),
        tables=[_table(cells)],
        figures=[Figure("continuity.png", "Error bars along three lines, and all jumps", CAPTION)],
        findings=_findings(cells, runs),
        numbers={"jumps": cells, "seeds": [{key: run[key] for key in kept} for run in runs]},
        provenance=provenance(
            setting,
            "continuity",
            data=runs[0]["source"],
            split=runs[0]["about"],
            rows=[run["rows"] for run in runs],
            network=network_words(setting.quick),
            experts=[run["experts"] for run in runs],
            lines=runs[0]["num_lines"],
        ),
    )


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """What one network shows, as JSON."""
    return setting.once(f"seed-{seed}", lambda: _measure(setting, seed))


def _measure(setting: Setting, seed: int) -> dict[str, Any]:
    """All variants on one network; the borders are those of the division, which all variants share."""
    rows, shown = arm_rows(seed=seed, quick=setting.quick), not setting.console.quiet
    start = time.perf_counter()
    network = arm_network(rows.train, seed=seed, quick=setting.quick, device=setting.device, progress=shown)
    trained = time.perf_counter()
    common: dict[str, Any] = {
        "validation": rows.validation,
        "num_experts": QUICK_EXPERTS if setting.quick else NUM_EXPERTS,
        "device": setting.device,
        "seed": seed,
        "progress": shown,
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


def _cells(runs: list[dict[str, Any]]) -> Cells:
    """Mean and spread over seeds, by quantity, variant and column."""

    found = [name for name in NAMES if all(name in run["jumps"] for run in runs)]

    def cell(quantity: str, name: str, key: str) -> list[float]:
        return mean_spread([run["jumps"][name][quantity][key] for run in runs])

    return {
        quantity: {name: {key: cell(quantity, name, key) for key in COLUMNS} for name in found}
        for quantity in QUANTITIES
    }


def _table(cells: Cells) -> Table:
    rows = [
        [QUANTITIES[quantity], NAMES[variant], *(numbers[key] for key in COLUMNS)]
        for quantity, variants in cells.items()
        for variant, numbers in variants.items()
    ]
    return Table(
        "Continuity: the larger over the smaller value on the two sides of a border",
        [Column("of", digits=-1), Column("experts", digits=-1), *COLUMNS.values()],
        rows,
        block="of",
        note="A factor of 1 is no jump. Every border and torque; mean ± standard deviation over seeds.",
    )


def _findings(cells: Cells, runs: list[dict[str, Any]]) -> list[str]:
    def from_none(variant: str, key: str) -> str:
        without, with_ = ([run["jumps"][v]["std"][key] for run in runs] for v in ("independent", variant))
        return change(without, with_)

    found = [
        f"With {NAMES[name]}, the mean jump of the std {from_none(name, 'mean')}; the largest "
        f"{from_none(name, 'largest')}."
        for name in ("patchwork", "large", "default")
    ]
    crossed = mean_spread([run["borders"] / run["num_lines"] for run in runs])
    found.append(
        f"A line between two test rows crosses {crossed[0]:.1f} borders on average; at half of them the std "
        f"changes by less than {100 * (cells['std']['default']['median'][0] - 1):.0f} % with the default."
    )
    if CELLS in cells["std"]:
        own = cells["std"][CELLS]
        found.append(
            f"The witness of the default has borders of its own; there the std jumps by {words(own['mean'])} "
            f"on average, by {words(own['largest'])} at most."
        )
    control = mean_spread([run["control"]["mean"] for run in runs])
    found.append(
        f"As a control, the same measure at as many random places on the lines gives {control[0]:.5f} on "
        "average: it is the borders that are measured, not the slope."
    )
    return found


def _protocol(setting: Setting, runs: list[dict[str, Any]]) -> list[str]:
    first = runs[0]
    return [
        f"Data: {first['about']}",
        f"Network: {network_words(setting.quick)}. {first['experts']} experts for the first seed, calibrated "
        "on the validation rows. Only the patchwork differs, the division does not; the experts speak alone "
        "except in the library's default, whose witness (a second opinion, from the inputs) divides the "
        "inputs in a way of its own.",
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
