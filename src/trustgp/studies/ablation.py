"""`trustgp study ablation`: what does each setting of the method bring?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from .. import plots
from ..progress import reporting
from .ablation_axes import HEARD, KINDS, Axis, Trial, our_axes, paper_axes, trials_of
from .ablation_figure import draw_ablation
from .ablation_observations import OBSERVATIONS, Curve, judge
from .ablation_trials import Bench
from .ablation_words import CAPTION, NOTE, on_our_axes, protocol
from .ahead import work_ahead
from .arm_rows import network_words
from .base import Column, Figure, Result, Setting, Table, provenance
from .summaries import mean_spread

SIZES = {
    "experts": Column("experts", digits=0),
    "held_rows": Column("rows of one", digits=0),
    "bytes": Column("MiB", digits=0),
    "fit_seconds": Column("fit", digits=1, unit="s"),
}
UNITS = {"bytes": 2**20}
PAPER, OURS = tuple(KINDS), (*KINDS, *HEARD)  # kinds of prediction that are shown

Run = dict[str, dict[str, Any]]  # what was measured, by trial
Runs = Sequence[Run]  # one a seed
Cells = dict[str, dict[str, dict[str, list[float]]]]


def run(setting: Setting) -> Result:
    """Turn one setting at a time, on one network a seed, and score all test rows."""
    plots.require_matplotlib()
    paper, ours = paper_axes(setting.quick), our_axes(setting.quick)
    axes = [*paper, *ours]
    work_ahead(setting, one_seed, [(seed,) for seed in range(setting.seeds)])
    about, runs = zip(*(one_seed(setting, seed) for seed in range(setting.seeds)), strict=True)
    cells = {axis.name: _cells(axis, runs) for axis in axes}
    shown = {axis.name: PAPER for axis in paper} | {axis.name: OURS for axis in ours}
    draw_ablation(axes, cells, shown, setting.out / "ablation.png")
    verdicts = [judge(one, _curves(paper, runs), _titles(axes)) for one in OBSERVATIONS]
    return Result(
        study="ablation",
        title="What does each setting of the method bring?",
        protocol=protocol(setting, about[0]),
        tables=[
            _table("What the paper turns: experts alone", paper, cells, runs, PAPER),
            _table("What is ours: with and without the witness", ours, cells, runs, OURS),
        ],
        figures=[Figure("ablation.png", "NLL against each setting", CAPTION)],
        findings=[*(sentence for _, sentence in verdicts), *on_our_axes(ours, cells, runs)],
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
            network=network_words(setting.quick),
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

            def measure(trial: Trial = trial) -> dict[str, Any]:
                return bench.measure(trial, heard=trial.name in heard)

            found[trial.name] = setting.once(f"seed-{seed}-{trial.name}", measure)
    return about, found


def _cells(axis: Axis, runs: Runs) -> dict[str, dict[str, list[float]]]:
    """Mean and spread over seeds of the NLL, by setting and kind of prediction."""
    return {
        point.label: {
            column: mean_spread([run[point.trial.name]["nll"][score] for run in runs])
            for column, score in point.scores.items()
            if score in runs[0][point.trial.name]["nll"]
        }
        for point in axis.points
    }


def _curves(axes: Sequence[Axis], runs: Runs) -> dict[str, dict[str, Curve]]:
    """By axis and kind of prediction, what the observations are judged by."""

    def curve(axis: Axis, kind: str) -> Curve:
        names = [point.trial.name for point in axis.points]
        return Curve(
            [point.label for point in axis.points],
            [[run[name]["nll"][kind] for run in runs] for name in names],
            [[run[name]["work"] for run in runs] for name in names],
        )

    return {axis.name: {kind: curve(axis, kind) for kind in KINDS} for axis in axes}


def _titles(axes: Sequence[Axis]) -> dict[str, str]:
    return {axis.name: axis.title for axis in axes}


def _table(title: str, axes: Sequence[Axis], cells: Cells, runs: Runs, kinds: Sequence[str]) -> Table:
    names = {**KINDS, **HEARD}
    columns = [Column("axis", digits=-1), Column("setting", digits=-1)]
    columns += [Column(names[kind], digits=3, better="low") for kind in kinds]

    def sizes(trial: str) -> list[float]:
        return [fmean(run[trial][key] for run in runs) / UNITS.get(key, 1) for key in SIZES]

    rows = [
        [
            axis.title,
            point.label + (" (default)" if point.label == axis.default else ""),
            *(cells[axis.name][point.label].get(kind) for kind in kinds),
            *sizes(point.trial.name),
        ]
        for axis in axes
        for point in axis.points
    ]
    return Table(title, [*columns, *SIZES.values()], rows, block="axis", note=NOTE)
