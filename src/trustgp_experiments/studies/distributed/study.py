"""`trustgp study distributed`: how much sooner are the experts solved with more workers?

The paper's figure: time against workers, beside the ideal of twice as fast with twice as many.
"""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from trustgp.api import fit
from trustgp.data.rows import Rows
from trustgp.model import UncertaintyModel

from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.recipes import mlp_recipe
from ...core.result import Column, Figure, Result, Setting, provenance
from ...core.statistics import words
from ...datasets import simulate, standardise
from .figure import draw_times
from .timing import Stopwatch, settings, started

# rows, experts, widths of the network, repeats
CPU = (16_000, 16, [21, 200, 200, 7], 3)
CUDA = (100_000, 64, [21, *[200] * 5, 7], 3)
QUICK = (240, 3, [21, 8, 7], 2)
LOOKED_AT = 200  # rows on which the models are compared
EPOCHS = 3
TABLE = Pivot(
    "Time to solve the experts",
    {"executor": Column.text("executor"), "workers": Column("workers", digits=0)},
    [
        Measure("seconds", Column("seconds", digits=2, better="low", unit="s")),
        Measure("speed", Column("times as fast", digits=2, better="high", unit="x")),
        Measure("share", Column("of the ideal", digits=2)),
        Measure("start", Column("start", digits=1, unit="s")),
    ],
    note="Times as fast as one thread in the same repeat; of the ideal: that over the workers. Start: until "
    "the workers were up, once for each executor, not part of the seconds.",
)
CAPTION = (
    "Time to solve the experts of one fit against workers, mean and spread over repeats and seeds; dashed, "
    "twice as fast with twice the workers. The workers are up before the clock starts."
)


def run(setting: Setting) -> Result:
    """Fit the same model on every executor in turn, and take the time of the experts."""
    runs = [one_seed(setting, seed) for seed in range(setting.seeds)]
    grid = times_grid(runs)
    draw_times(grid, setting.out / "distributed.png")
    return Result(
        study="distributed",
        title="How much sooner are the experts solved with more workers?",
        protocol=_protocol(setting, runs[0]),
        tables=[TABLE.table(grid)],
        figures=[Figure("distributed.png", "Time against workers", CAPTION)],
        findings=findings(grid, runs),
        numbers={"seeds": runs},
        provenance=provenance(
            setting, "distributed", data="arm_slow", rows=runs[0]["rows"], cores=runs[0]["cores"]
        ),
    )


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """The times on one network, as JSON."""
    return setting.once(f"seed-{seed}", lambda: _measure(setting, seed))


def _measure(setting: Setting, seed: int) -> dict[str, Any]:
    """Every executor once in each repeat, so that what else the machine does falls on all of them."""
    n, experts, widths, repeats = _size(setting)
    rows, network = _problem(n, widths, setting.device, seed)
    cores = len(os.sched_getaffinity(0))
    executors = {where: started(*where) for where in reversed(settings(setting.device, cores))}
    times: dict[tuple[str, int], list[float]] = {where: [] for where in settings(setting.device, cores)}
    reference, differences, found = None, [0.0], 0
    for repeat in range(-1, repeats):  # the first is for whatever is done once, and does not count
        for where, seconds in times.items():
            watch = Stopwatch(executors[where][0])
            model = _fitted(network, rows, experts, watch, seed)
            found = model.num_experts
            variance = model.predict(rows.inputs[:LOOKED_AT]).variance
            reference = variance if reference is None else reference
            differences.append(float(((variance - reference).abs() / reference).max()))
            if repeat >= 0:
                seconds.append(watch.experts_seconds(found))
    return {
        "rows": n,
        "experts": found,
        "widths": widths,
        "cores": cores,
        "difference": max(differences),
        "times": [
            {"executor": kind, "workers": workers, "seconds": seconds, "start": executors[kind, workers][1]}
            for (kind, workers), seconds in times.items()
        ],
    }


def _size(setting: Setting) -> tuple[int, int, list[int], int]:
    if setting.quick:
        return QUICK
    return CUDA if setting.device.startswith("cuda") else CPU


def _problem(n: int, widths: list[int], device: str, seed: int) -> tuple[Rows, nn.Module]:
    arm = simulate(rows=n, seed=seed)
    scaling = standardise(arm.inputs, arm.targets)
    rows = Rows(scaling.inputs(arm.inputs).float(), scaling.targets(arm.targets).float())
    recipe = mlp_recipe(widths, epochs=EPOCHS)
    return rows, recipe.train((rows.inputs, rows.targets), seed=seed, device=device)


def _fitted(network: nn.Module, rows: Rows, experts: int, executor: Stopwatch, seed: int) -> UncertaintyModel:
    few = Rows(rows.inputs[:LOOKED_AT], rows.targets[:LOOKED_AT])  # calibration is not what is timed
    options: dict[str, Any] = {"validation": few, "witness": None, "seed": seed, "progress": False}
    return fit(network, rows, num_experts=experts, executor=executor, **options)


def times_grid(runs: list[dict[str, Any]]) -> Grid:
    """By executor and workers, one value for each repeat of each seed."""
    repeats = [
        {(entry["executor"], entry["workers"]): _repeat(entry, run["times"][0], k) for entry in run["times"]}
        for run in runs
        for k in range(len(run["times"][0]["seconds"]))
    ]
    return Grid.of(("executor", "workers"), {(): repeats}, lambda repeat: repeat)


def _repeat(entry: dict[str, Any], first: dict[str, Any], k: int) -> dict[str, float]:
    """The k-th, beside the first executor in the same one."""
    seconds, speed = entry["seconds"][k], first["seconds"][k] / entry["seconds"][k]
    share = speed / entry["workers"]
    return {"seconds": seconds, "speed": speed, "share": share, "start": entry["start"]}


def findings(grid: Grid, runs: list[dict[str, Any]]) -> list[str]:
    """A sentence for each executor at its most workers, and one on whether all gave the same model."""
    found = []
    for kind in grid.along("executor"):
        most = max(grid.along("workers", executor=kind))
        speed, seconds = (grid.spread((kind, most), name) for name in ("speed", "seconds"))
        found.append(
            f"{most} workers ({kind}) solve the experts {words(speed)} times as fast as one thread, in "
            f"{words(seconds)} s: {100 * grid.mean((kind, most), 'share'):.0f} % of the ideal."
        )
    largest = max(run["difference"] for run in runs)
    if largest == 0.0:
        return [*found, f"All executors gave the same variances on {LOOKED_AT} rows, to the bit."]
    told = f"The variances on {LOOKED_AT} rows differ between executors by at most {largest:.1e}, relative."
    return [*found, told]


def _protocol(setting: Setting, run: dict[str, Any]) -> list[str]:
    repeats = _size(setting)[3]
    kinds = {entry["executor"] for entry in run["times"]}
    shape = "-".join(map(str, run["widths"]))
    lines = [
        f"Simulated arm, {run['rows']} rows, {run['experts']} experts; a {shape} ReLU network, trained for "
        f"{EPOCHS} epochs: how good it is does not matter here. {run['cores']} cores.",
        f"The same fit on every executor in turn, {repeats} times, for each of {setting.seeds} seeds, after "
        "one round that does not count. Timed is the stage that solves the experts, with what it takes to "
        "send the data and to bring the results back.",
    ]
    if setting.device.startswith("cuda"):
        lines.append("On a GPU, each of several threads has a CUDA stream of its own.")
    elif "ray" not in kinds:
        lines.append("Without Ray, which is not installed here.")
    return lines
