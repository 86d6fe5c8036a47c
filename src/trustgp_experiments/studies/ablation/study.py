"""`trustgp study ablation`: what does each setting of the method bring?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

from trustgp.executors.progress import reporting

from ...core.arm import arm_recipe
from ...core.grid import Grid, Place
from ...core.parallel import work_ahead
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Figure, Result, Setting, Table, provenance
from .axes import HEARD, KINDS, Axis, our_axes, paper_axes, trials_of
from .figure import draw_ablation
from .observations import OBSERVATIONS, Curve, judge
from .text import CAPTION, NOTE, on_our_axes, protocol
from .trials import Bench

FITTED = "fitted"  # stands for a kind of prediction where sizes and times are, which all kinds share
SIZES = (
    Measure("experts", Column("experts", digits=0), statistic=fmean),
    Measure("held_rows", Column("rows of one", digits=0), statistic=fmean),
    Measure("bytes", Column("MiB", digits=0), factor=2**-20, statistic=fmean),
    Measure("fit_seconds", Column("fit", digits=1, unit="s"), statistic=fmean),
)
PAPER, OURS = tuple(KINDS), (*KINDS, *HEARD)  # kinds of prediction that are shown

Run = dict[str, dict[str, Any]]  # what was measured on one network, by trial


def run(setting: Setting) -> Result:
    """Turn one setting at a time, on one network a seed, and score all test rows."""
    paper, ours = paper_axes(setting.quick), our_axes(setting.quick)
    axes = [*paper, *ours]
    work_ahead(setting, one_seed, [(seed,) for seed in range(setting.seeds)])
    about, runs = zip(*(one_seed(setting, seed) for seed in range(setting.seeds)), strict=True)
    grid = collect(axes, runs)
    cells = {axis.name: _cells(grid, axis.name) for axis in axes}
    shown = {axis.name: PAPER for axis in paper} | {axis.name: OURS for axis in ours}
    draw_ablation(axes, cells, shown, setting.out / "ablation.png")
    verdicts = verdicts_of(paper, grid)
    return Result(
        study="ablation",
        title="What does each setting of the method bring?",
        protocol=protocol(setting, about[0]),
        tables=tables(paper, ours, grid),
        figures=[Figure("ablation.png", "NLL against each setting", CAPTION)],
        findings=[*(sentence for _, sentence in verdicts), *on_our_axes(ours, grid)],
        numbers={
            "axes": cells,
            "observations": {
                one.claim: verdict for one, (verdict, _) in zip(OBSERVATIONS, verdicts, strict=True)
            },
            "seeds": runs,
        },
        provenance=provenance(
            setting,
            "ablation",
            data=about[0]["source"],
            split=about[0]["about"],
            rows=[one["rows"] for one in about],
            network=arm_recipe(setting.quick).words(),
            fits=len(runs[0]),
        ),
    )


def one_seed(setting: Setting, seed: int) -> tuple[dict[str, Any], Run]:
    """Which rows there are, and all trials on one network; those on our axes with the witness too."""
    paper, ours = paper_axes(setting.quick), our_axes(setting.quick)
    bench, found = Bench(seed, setting), {}
    about = setting.once(f"seed-{seed}-data", bench.describe)
    trials, heard = trials_of([*paper, *ours]), {trial.name for trial in trials_of(ours)}
    with reporting(enabled=not setting.console.quiet) as bars:
        for trial in bars.track(trials, stage=f"seed {seed}: fitting", total=len(trials)):
            work = partial(bench.measure, trial, heard=trial.name in heard)
            found[trial.name] = setting.once(f"seed-{seed}-{trial.name}", work)
    return about, found


def collect(axes: Sequence[Axis], runs: Sequence[Run]) -> Grid:
    """By axis, setting and kind of prediction, from what was measured for each seed, by trial."""

    def read(run: Run) -> dict[Place, dict[str, float]]:
        found: dict[Place, dict[str, float]] = {}
        for axis in axes:
            for point in axis.points:
                measured, at = run[point.trial.name], (axis.name, point.label)
                for kind, score in point.scores.items():
                    if score in measured["nll"]:
                        found[*at, kind] = {"nll": measured["nll"][score]}
                found[*at, FITTED] = {key: measured[key] for key in ("work", *(m.key for m in SIZES))}
        return found

    return Grid.of(("axis", "setting", "kind"), {(): runs}, read)


def tables(paper: Sequence[Axis], ours: Sequence[Axis], grid: Grid) -> list[Table]:
    """One for the paper's axes and one for ours."""
    nll = Measure("nll", Column("NLL", digits=3, better="low"))
    rows = {"axis": Column.text("axis"), "setting": Column.text("setting")}

    def table(title: str, axes: Sequence[Axis], kinds: Sequence[str]) -> Table:
        names: dict[Any, str] = {axis.name: axis.title for axis in axes}
        names |= {(axis.name, axis.default): f"{axis.default} (default)" for axis in axes}
        measures = [nll.at({**KINDS, **HEARD}[kind], kind=kind) for kind in kinds]
        measures += [size.at(kind=FITTED) for size in SIZES]
        pivot = Pivot(title, rows, measures, names=names, block="axis", note=NOTE)
        return pivot.table(grid.only(axis=set(names)))

    return [
        table("What the paper turns: experts alone", paper, PAPER),
        table("What is ours: with and without the witness", ours, OURS),
    ]


def verdicts_of(paper: Sequence[Axis], grid: Grid) -> list[tuple[str, str]]:
    """Of each observation of the paper, a verdict and its sentence."""

    def curve(axis: Axis, kind: str) -> Curve:
        labels = [point.label for point in axis.points]
        nll = [grid.values((axis.name, label, kind), "nll") or () for label in labels]
        work = [grid.values((axis.name, label, FITTED), "work") or () for label in labels]
        return Curve(kind, labels, nll, work)

    curves = {axis.name: [curve(axis, kind) for kind in KINDS] for axis in paper}
    titles = {axis.name: axis.title for axis in paper}
    return [judge(one, curves, titles) for one in OBSERVATIONS]


def _cells(grid: Grid, axis: str) -> dict[str, dict[str, list[float]]]:
    """Mean and spread over seeds of the NLL, by setting and kind of prediction."""
    found: dict[str, dict[str, list[float]]] = {}
    for label, kind in grid.along("setting", "kind", axis=axis):
        if kind != FITTED:
            found.setdefault(label, {})[kind] = grid.spread((axis, label, kind), "nll")
    return found
