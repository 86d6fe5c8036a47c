"""`trustgp study scale`: how do time and memory of a fit grow with the rows, at fixed rows per expert?"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from trustgp import plots
from trustgp.executors import Threads

from ...core.arm import ArmRows
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Figure, Result, Setting, Table, provenance
from . import fits

REQUIRED = 2.2  # the most that time may grow when the rows double
MEGABYTE = 1e6
NOISE = "network + noise"
ROWS = {"rows": Column("rows", digits=0)}
TIMES = [
    Measure("experts", Column("experts", digits=0)),
    Measure("seconds", Column("time", digits=2, unit="s")),
    Measure("growth", Column("over half the rows", digits=2, unit="x")),
    Measure("speed", Column("rows per second", digits=0)),
    Measure("trustgp", Column("NLL: trustgp", digits=3)),
    Measure(NOISE, Column(f"NLL: {NOISE}", digits=3)),
]
SIZES = [
    Measure("model", Column("model", digits=0, unit="MB")),
    Measure("held_rows", Column("rows held by an expert", digits=0)),
]

Runs = list[dict[str, Any]]  # of one seed: what was measured, the fewest rows first


@dataclass(frozen=True)
class ScaleSize:
    """How large the study is."""

    experts: tuple[int, ...]  # numbers of them, each twice the one before
    expert_rows: int = 3_906  # that train, for each of them
    expert_bytes: int = 16 * 2**20  # the budget of each of them; a fit gets so many times as much
    hidden: tuple[int, ...] = (200,) * 5  # widths of the network's hidden layers
    held: int = fits.HELD_ROWS  # rows that validate, and as many that test
    steps: int | None = None  # of the network's training; None: by device

    @property
    def most(self) -> int:
        """Training rows of the largest fit."""
        return self.expert_rows * self.experts[-1]


QUICK = ScaleSize((2, 4), 150, 2**21, (16, 16), held=100, steps=60)


def size_for(device: str, *, quick: bool) -> ScaleSize:
    """Up to two million rows on a GPU, up to 125,000 elsewhere."""
    if quick:
        return QUICK
    return ScaleSize(tuple(2**k for k in range(1, 10 if torch.device(device).type == "cuda" else 6)))


def run(setting: Setting) -> Result:
    """Fit one network on more and more rows, for each seed."""
    size, place = size_for(setting.device, quick=setting.quick), torch.device(setting.device).type
    runs = [one_seed(setting, size, seed) for seed in range(setting.seeds)]
    grid = scale_grid(runs)
    draw_scale(grid, place, setting.out / "scale.png")
    return Result(
        study="scale",
        title="Does the time of a fit grow in step with the rows?",
        protocol=_protocol(setting, size),
        tables=scale_tables(grid),
        figures=[Figure("scale.png", "Time and memory of each stage against the rows", CAPTION)],
        findings=scale_findings(grid, place),
        numbers={"seeds": runs},
        provenance=provenance(setting, "scale", rows=grid.along("rows")),
    )


def one_seed(setting: Setting, size: ScaleSize, seed: int) -> Runs:
    """Every number of rows, the smallest first, as JSON; what is done already is not done again."""
    place: dict[str, Any] = {"seed": seed, **setting.place}

    @cache  # made when they are first needed
    def ground() -> tuple[ArmRows, nn.Module]:
        rows = fits.scale_rows(size.most, seed=seed, held=size.held)
        network = fits.scale_network(rows.train, widths=size.hidden, steps=size.steps, **place)
        few = min(fits.WARM_ROWS, size.expert_rows)
        fits.warm_up(network, rows, n=few, device=setting.device, witness=None)
        return rows, network

    def measure(experts: int) -> dict[str, Any]:
        rows, network = ground()
        n, budget = experts * size.expert_rows, experts * size.expert_bytes
        model, ledger = fits.measured_fit(network, rows, n, num_experts=experts, budget=budget, **place)
        return {
            "rows": n,
            "asked": experts,
            "experts": model.num_experts,
            "failed": len(model.failed),
            "seconds": ledger.total,
            "stages": ledger.seconds,
            "stage_peaks": ledger.peaks,
            "peak": {place: ledger.peak(place) for place in ledger.held},
            "model_bytes": model.nbytes,
            "held_rows": fmean(fits.held_rows(model)),
            "nll": fits.likelihoods(model, network, rows),
        }

    found = []
    for experts in size.experts:
        found.append(setting.once(f"{experts}-{seed}", partial(measure, experts)))
        setting.console.print(f"seed {seed}: {found[-1]['rows']} rows, {found[-1]['seconds']:.1f} s")
    return found


def scale_grid(runs: Sequence[Runs]) -> Grid:
    """By the number of rows."""
    return Grid.of(("rows",), {(): runs}, _read)


def _read(entries: Runs) -> dict[tuple[int], dict[str, Any]]:
    """Memory in megabytes; time also over that of half the rows."""
    growth = [None, *(after["seconds"] / before["seconds"] for before, after in pairwise(entries))]
    stages, places = entries[0]["stages"], entries[0]["peak"]
    found = {}
    for entry, grown in zip(entries, growth, strict=True):
        peaks = {f"peak, {place}": entry["peak"].get(place) for place in places}
        for stage in stages:
            inside = entry["stage_peaks"].get(stage, {})
            peaks |= {f"peak of {stage}, {place}": inside.get(place, 0) for place in places}
        sizes = {"model": entry["model_bytes"], **peaks}
        found[entry["rows"],] = {
            **{key: entry[key] for key in ("experts", "seconds", "held_rows")},
            **entry["nll"],
            "growth": grown,
            "speed": entry["rows"] / entry["seconds"],
            **{f"time of {stage}": entry["stages"].get(stage, 0.0) for stage in stages},
            **{key: None if size is None else size / MEGABYTE for key, size in sizes.items()},
        }
    return found


def stages_of(grid: Grid) -> list[str]:
    """Of a fit, in their order."""
    return list(grid.parts[()][0][0]["stages"])


def scale_tables(grid: Grid) -> list[Table]:
    """Time, stages and memory, a line for each number of rows."""
    stages = [Measure(f"time of {name}", Column(name, digits=2, unit="s")) for name in stages_of(grid)]
    places = [f"peak, {place}" for place in grid.parts[()][0][0]["peak"]]
    peaks = [Measure(name, Column(name, digits=0, unit="MB")) for name in places]
    note = "At the peak, beside what there was before the fit."
    return [
        Pivot("Time, and how it grows", ROWS, TIMES).table(grid),
        Pivot("Time of each stage", ROWS, stages).table(grid),
        Pivot("Memory", ROWS, [*peaks, *SIZES], note=note).table(grid),
    ]


def scale_findings(grid: Grid, place: str) -> list[str]:
    """What the numbers say; `place`, where the work was done, is "cpu" or "cuda"."""
    rows = grid.along("rows")
    growth = {n: grid.mean((n,), "growth") for n in rows[1:]}
    worst = max(growth, key=growth.__getitem__)
    last, before = (rows[-1],), rows[rows.index(worst) - 1]
    kept = "as promised" if growth[worst] <= REQUIRED else "more than promised"
    seconds, ours, noise, model = (grid.mean(last, key) for key in ("seconds", "trustgp", NOISE, "model"))
    shares = {stage: grid.mean(last, f"time of {stage}") / seconds for stage in stages_of(grid)}
    longest = max(shares, key=shares.__getitem__)
    peak = f"peak, {place}"
    peaks = [grid.mean((n,), peak) for n in rows if grid.values((n,), peak) is not None]
    found = [
        f"Twice the rows take {fmean(growth.values()):.2f} times as long on average and {growth[worst]:.2f} "
        f"times at most, from {before} rows to {worst}: {kept} ({REQUIRED}).",
        f"{rows[-1]} rows take {seconds:.1f} s, {rows[-1] / seconds:.0f} rows per second; "
        f"{100 * shares[longest]:.0f} % of it is {longest}.",
    ]
    if peaks:
        found.append(
            f"At its peak the fit takes {peaks[0]:.0f} MB for the fewest rows and {peaks[-1]:.0f} MB for the "
            f"most, of which the model is {model:.0f} MB."
        )
    told = "With all rows the held-out NLL is"
    return [*found, f"{told} {ours:.3f} per torque; with one constant noise it is {noise:.3f}."]


def draw_scale(grid: Grid, place: str, path: Path) -> None:
    """Time and memory of each stage against the rows, on logarithmic axes; the memory is of `place`."""
    stages = stages_of(grid)
    with plots.figure(path, width=11.0, height=4.0, dpi=110) as figure:
        left, right = figure.subplots(1, 2)
        _panel(left, grid, {stage: f"time of {stage}" for stage in stages} | {"all stages": "seconds"})
        left.set(title="time", ylabel="seconds")
        _panel(right, grid, {stage: f"peak of {stage}, {place}" for stage in stages} | {"the model": "model"})
        right.set(title=f"memory at the peak, {'GPU' if place == 'cuda' else 'CPU'}", ylabel="MB")
        left.legend(handles=left.lines[-2:], loc="upper left", fontsize=8)  # the rest are those of the right
        right.legend(handles=right.lines[:-1], loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def _panel(axes: Any, grid: Grid, measures: dict[str, str]) -> None:
    """A curve for each measure by its name, the last one of the whole, and what would be in step with it."""
    rows = grid.along("rows")
    curves = {name: [grid.mean((n,), key) for n in rows] for name, key in measures.items()}
    whole, values = curves.popitem()
    for (name, curve), colour in zip(curves.items(), plots.PALETTE, strict=False):
        drawn = [value if value > 0 else float("nan") for value in curve]  # no place on such an axis
        axes.plot(rows, drawn, color=colour, marker="o", markersize=3, linewidth=1.2, label=name)
    axes.plot(rows, values, color=plots.INK, marker="o", markersize=3.5, linewidth=1.8, label=whole)
    guide = [values[0] * n / rows[0] for n in rows]
    axes.plot(rows, guide, color=plots.GREY, linestyle="--", linewidth=1.0, label="in step with the rows")
    axes.set(xscale="log", yscale="log", xlabel="rows")


def _protocol(setting: Setting, size: ScaleSize) -> list[str]:
    steps = fits.STEPS[torch.device(setting.device).type] if size.steps is None else size.steps
    shape = "-".join(map(str, (21, *size.hidden, 7)))
    workers = "the GPU" if setting.device.startswith("cuda") else f"{Threads().workers} threads"
    return [
        f"The simulated 7-joint arm, slow motions: {size.experts[0] * size.expert_rows} to {size.most} rows "
        f"as recorded, the smaller numbers being the first rows of the larger; {size.held} rows of other "
        f"motions validate and as many test, every {fits.STRIDE}th of their recording. Everything is scaled "
        "by the first training rows.",
        f"One network for all numbers of rows, {shape} ReLU, {steps} steps of AdamW with batches of "
        f"{fits.BATCH} on evenly spaced training rows; its training is not counted.",
        f"`trustgp.fit` with shared outputs, {size.expert_rows} rows for each expert asked for, a budget of "
        f"{size.expert_bytes / 2**20:g} MiB for each, without a witness, on {workers}. Experts far above the "
        "average size are split, so there may be more of them. With 2 experts each has one neighbour to "
        "borrow rows from, with 4 three, with more four: that makes the first doublings dearer.",
        "A stage lasts from its first line in the log to that of the next. Memory is the peak within a stage "
        "beside what was held before the fit: resident memory of the process, and what torch has allocated "
        "on the GPU.",
        f"{setting.seeds} seeds, of the motions, the network and the fit. Cells are mean ± standard "
        "deviation over seeds; NLL is per torque, in units of the training torques' spread.",
    ]


CAPTION = (
    "Mean over seeds. Dashed: in step with the rows, through the smallest fit. Memory is that of the device "
    "where the work is done, beside what was there before."
)
