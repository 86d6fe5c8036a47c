"""`trustgp study distributed`: how much sooner are the experts solved with more workers?

The paper's figure: time against workers, beside the ideal of twice as fast with twice as many.
"""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from .. import plots
from ..baselines import mlp, train
from ..data import Rows
from ..datasets import simulate, standardise
from ..fit import fit
from ..model import UncertaintyModel
from .base import Column, Figure, Result, Setting, Table, provenance
from .distributed_figure import draw_times
from .distributed_timing import Stopwatch, settings, started
from .summaries import mean_spread, words

# rows, experts, widths of the network, repeats
CPU = (16_000, 16, [21, 200, 200, 7], 3)
CUDA = (100_000, 64, [21, *[200] * 5, 7], 3)
QUICK = (600, 4, [21, 16, 7], 2)
LOOKED_AT = 200  # rows on which the models are compared
EPOCHS = 3
COLUMNS = [
    Column("executor", digits=-1),
    Column("workers", digits=0),
    Column("seconds", digits=2, better="low", unit="s"),
    Column("times as fast", digits=2, better="high", unit="x"),
    Column("of the ideal", digits=2),
    Column("start", digits=1, unit="s"),
]
CAPTION = (
    "Time to solve the experts of one fit against workers, mean and spread over repeats and seeds; dashed, "
    "twice as fast with twice the workers. The workers are up before the clock starts."
)


def run(setting: Setting) -> Result:
    """Fit the same model on every executor in turn, and take the time of the experts."""
    plots.require_matplotlib()
    runs = [one_seed(setting, seed) for seed in range(setting.seeds)]
    cells = _cells(runs)
    curves: dict[str, dict[int, list[float]]] = {}
    for (kind, workers), cell in cells.items():
        curves.setdefault(kind, {})[workers] = cell["seconds"]
    draw_times(curves, setting.out / "distributed.png")
    rows = [
        [kind, workers, *(cell[name] for name in ("seconds", "speed", "share", "start"))]
        for (kind, workers), cell in cells.items()
    ]
    return Result(
        study="distributed",
        title="How much sooner are the experts solved with more workers?",
        protocol=_protocol(setting, runs[0]),
        tables=[Table("Time to solve the experts", COLUMNS, rows, note=NOTE)],
        figures=[Figure("distributed.png", "Time against workers", CAPTION)],
        findings=[*(_finding(kind, cells) for kind in curves), _on_equality(runs)],
        numbers={"seeds": runs},
        provenance=provenance(
            setting, "distributed", data="arm_slow", rows=runs[0]["rows"], cores=runs[0]["cores"]
        ),
    )


NOTE = (
    "Times as fast as one thread in the same repeat; of the ideal: that over the workers. Start: until the "
    "workers were up, once for each executor, not part of the seconds."
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
            {"executor": kind, "workers": workers, "seconds": times[kind, workers], "start": start}
            for (kind, workers), (_, start) in sorted(
                executors.items(), key=lambda item: list(times).index(item[0])
            )
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
    network = train(
        mlp(widths, seed=seed), rows.inputs, rows.targets, epochs=EPOCHS, learning_rate=3e-3, device=device
    )
    return rows, network


def _fitted(network: nn.Module, rows: Rows, experts: int, executor: Stopwatch, seed: int) -> UncertaintyModel:
    return fit(
        network,
        rows,
        num_experts=experts,
        validation=Rows(
            rows.inputs[:LOOKED_AT], rows.targets[:LOOKED_AT]
        ),  # calibration is not what is timed
        witness=None,
        executor=executor,
        seed=seed,
        progress=False,
    )


def _cells(runs: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Mean and spread over repeats and seeds, by executor and workers."""
    cells = {}
    for entries in zip(*(run["times"] for run in runs), strict=True):
        first = entries[0]
        pairs = [
            (one, base)
            for run, entry in zip(runs, entries, strict=True)
            for one, base in zip(entry["seconds"], run["times"][0]["seconds"], strict=True)
        ]
        speeds = [base / one for one, base in pairs]
        cells[first["executor"], first["workers"]] = {
            "seconds": mean_spread([one for one, _ in pairs]),
            "speed": mean_spread(speeds),
            "share": mean_spread([speed / first["workers"] for speed in speeds]),
            "start": mean_spread([entry["start"] for entry in entries]),
        }
    return cells


def _finding(kind: str, cells: dict[tuple[str, int], dict[str, list[float]]]) -> str:
    most = max(workers for name, workers in cells if name == kind)
    cell = cells[kind, most]
    return (
        f"{most} workers ({kind}) solve the experts {words(cell['speed'])} times as fast as one thread, in "
        f"{words(cell['seconds'])} s: {100 * cell['share'][0]:.0f} % of the ideal."
    )


def _on_equality(runs: list[dict[str, Any]]) -> str:
    largest = max(run["difference"] for run in runs)
    if largest == 0.0:
        return f"All executors gave the same variances on {LOOKED_AT} rows, to the bit."
    return f"The variances on {LOOKED_AT} rows differ between executors by at most {largest:.1e}, relative."


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
