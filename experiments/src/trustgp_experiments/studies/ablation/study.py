"""`trustgp study ablation`: likelihood against each setting of the method, one at a time."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from trustgp.executors.progress import reporting

from ...core.arm import arm_recipe
from ...core.claim import paired
from ...core.grid import Grid, Place, run_parallel
from ...core.pivot import Measure, Pivot, flat_measure
from ...core.result import Column, Result, Setting, Table, make_result, note, prose
from .axes import EXPERTS, KINDS, SMALL_SHARE, WITNESS_KINDS, Axis, Bench, our_axes, paper_axes, trials_of
from .observations import GAIN, JUDGED, OBSERVATIONS, SMALL_COST, SettingCurve, judge

FITTED = "fitted"  # takes the place of a kind of prediction for sizes and times, which all kinds share
SIZES = (
    flat_measure("experts", "experts", 0),
    flat_measure("held_rows", "rows of one", 0),
    flat_measure("bytes", "MiB", 0, factor=2**-20),
    flat_measure("fit_seconds", "fit", 1, unit="s"),
)
NOTE = note(__name__, "Both tables")
TITLE = "What does each setting of the method bring?"

Run = Mapping[str, Mapping[str, Any]]  # what was measured on one network, by trial


def run(setting: Setting) -> Result:
    """Vary one setting at a time, on one network per seed, and score all test rows."""
    run_parallel(setting, one_seed, [(seed,) for seed in range(setting.seeds)])
    about, runs = zip(*(one_seed(setting, seed) for seed in range(setting.seeds)), strict=True)
    numbers = {"seeds": runs, "quick": setting.quick}
    origin = {"data": about[0]["source"], "split": about[0]["about"], "rows": [one["rows"] for one in about]}
    origin |= {"network": arm_recipe(setting.quick).words(), "fits": len(runs[0])}
    values = {"about": about[0], "network": origin["network"], "share": SMALL_SHARE}
    values |= {"experts": setting.sized(*EXPERTS), "gain": GAIN, "small_cost": SMALL_COST, "judged": JUDGED}
    protocol = prose(__name__, setting=setting, **values)
    return make_result(setting, "ablation", TITLE, protocol, numbers, summarise, **origin)


def one_seed(setting: Setting, seed: int) -> tuple[dict[str, Any], Run]:
    """Description of the rows, and all trials on one network; those on our axes also with the witness."""
    paper, ours = paper_axes(setting.quick), our_axes(setting.quick)
    bench, measured = Bench(seed, setting), {}
    about = setting.once(f"seed-{seed}-data", bench.describe)
    trials, with_witness = trials_of([*paper, *ours]), {trial.name for trial in trials_of(ours)}
    with reporting(enabled=not setting.console.quiet) as bars:
        for trial in bars.track(trials, stage=f"seed {seed}: fitting", total=len(trials)):
            work = partial(bench.measure, trial, witness=trial.name in with_witness)
            measured[trial.name] = setting.once(f"seed-{seed}-{trial.name}", work)
    return about, measured


def collect(axes: Sequence[Axis], runs: Sequence[Run]) -> Grid:
    """Grid by axis, setting and kind of prediction, from the trials of each seed."""

    def read(run: Run) -> dict[Place, dict[str, float]]:
        cells: dict[Place, dict[str, float]] = {}
        for axis in axes:
            for label, trial in axis.trials.items():
                measured, at = run[trial.name], (axis.name, label)
                cells |= {(*at, kind): {"nll": nll} for kind, nll in measured["nll"].items()}
                cells[(*at, FITTED)] = {key: measured[key] for key in ("work", *(m.key for m in SIZES))}
        return cells

    return Grid.of(("axis", "setting", "kind"), {(): runs}, read)


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables for the paper's axes and for ours; findings against our defaults, then on the paper's
    observations."""
    paper, ours = (axes(numbers.get("quick", False)) for axes in (paper_axes, our_axes))
    grid = collect([*paper, *ours], numbers["seeds"])
    tables = [
        _table(grid, "What the paper turns: experts alone", paper, KINDS),
        _table(grid, "What is ours: with and without the witness", ours, {**KINDS, **WITNESS_KINDS}),
    ]
    curves: dict[str, list[SettingCurve]] = {axis.name: [] for axis in paper}
    for axis, kind in ((axis, kind) for axis in paper for kind in KINDS):
        labels = list(axis.trials)
        nll = [grid.values((axis.name, label, kind), "nll") or () for label in labels]
        work = [grid.values((axis.name, label, FITTED), "work") or () for label in labels]
        curves[axis.name].append(SettingCurve(kind, labels, nll, work))
    titles = {axis.name: axis.title for axis in paper}
    verdicts = [judge(observation, curves, titles) for observation in OBSERVATIONS]
    return tables, [against_us([*paper, *ours], grid), *verdicts]


def _table(grid: Grid, title: str, axes: Sequence[Axis], kinds: Mapping[str, str]) -> Table:
    names: dict[Any, str] = {axis.name: axis.title for axis in axes}
    names |= {(axis.name, axis.default): f"{axis.default} (default)" for axis in axes}
    nll = Measure("nll", Column("NLL", digits=3, better="low"))
    measures = [nll.at(name, kind=kind) for kind, name in kinds.items()]
    measures += [size.at(kind=FITTED) for size in SIZES]
    rows = {"axis": Column.text("axis"), "setting": Column.text("setting")}
    pivot = Pivot(title, rows, measures, names=names, block="axis", note=NOTE)
    return pivot.table(grid.only(axis=set(names)))


def against_us(axes: Sequence[Axis], grid: Grid) -> str:
    """Sentence on settings that beat the default beyond the interval over seeds, for own predictions."""
    lost = []
    for axis in axes:
        for kind, end in (("own", ""), ("heard_own", ", with the witness")):
            labels = grid.along("setting", axis=axis.name, kind=kind)
            values = {label: grid.values((axis.name, label, kind), "nll") or () for label in labels}
            gaps = {label: paired(values[axis.default], other) for label, other in values.items()}
            best = max(gaps, key=lambda label: gaps[label].mean)
            if gaps[best].verdict == "worse":
                far = f"{gaps[best].mean:.3f} ({gaps[best].low:.3f} to {gaps[best].high:.3f})"
                lost.append(f"{axis.title}: {best} instead of {axis.default}, by {far}{end}")
    start = "Against us: another setting than the default has the lower NLL, the network's own prediction, "
    return start + (f"for {'; '.join(lost)}." if lost else "beyond the interval over seeds, on no axis.")
