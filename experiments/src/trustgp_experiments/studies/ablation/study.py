"""`trustgp study ablation`: what does each setting of the method bring?"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trustgp import plots
from trustgp.executors.progress import reporting

from ...core.arm import arm_recipe
from ...core.claim import change, paired, words
from ...core.grid import Grid, Place, work_ahead
from ...core.pivot import Measure, Pivot, flat_measure
from ...core.result import Column, Figure, Result, Setting, Table, provenance
from .axes import EXPERTS, HEARD, KINDS, SHARE, Axis, Bench, our_axes, paper_axes, trials_of
from .observations import GAIN, JUDGED, LITTLE, OBSERVATIONS, Curve, judge

FITTED = "fitted"  # stands for a kind of prediction where sizes and times are, which all kinds share
SIZES = (
    flat_measure("experts", "experts", 0),
    flat_measure("held_rows", "rows of one", 0),
    flat_measure("bytes", "MiB", 0, factor=2**-20),
    flat_measure("fit_seconds", "fit", 1, unit="s"),
)
PAPER, OURS = tuple(KINDS), (*KINDS, *HEARD)  # kinds of prediction that are shown

STYLES = {
    "own": (plots.BLUE, "network's own prediction"),
    "corrected": (plots.GREEN, "corrected"),
    "plain": (plots.GREY, "plain: evidence only"),
    "heard_own": (plots.BLUE, "own, with the witness"),
    "heard_corrected": (plots.GREEN, "corrected, with the witness"),
}
"""Colour and label by kind of prediction."""
COLUMNS = 4
LEAST_SPAN = 0.2  # nats: differences smaller than the eye should see stay small

Cells = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
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
    told = {claim: verdict for claim, (verdict, _) in verdicts.items()}
    origin = {"data": about[0]["source"], "split": about[0]["about"], "rows": [one["rows"] for one in about]}
    origin |= {"network": arm_recipe(setting.quick).words(), "fits": len(runs[0])}
    return Result(
        study="ablation",
        title="What does each setting of the method bring?",
        protocol=_protocol(setting, about[0]),
        tables=tables(paper, ours, grid),
        figures=[Figure("ablation.png", "NLL against each setting", CAPTION)],
        findings=findings(paper, ours, grid),
        numbers={"axes": cells, "observations": told, "seeds": runs},
        provenance=provenance(setting, "ablation", **origin),
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


def findings(paper: Sequence[Axis], ours: Sequence[Axis], grid: Grid) -> list[str]:
    """What speaks against our defaults, then the paper's observations, then our own axes."""
    verdicts = [sentence for _, sentence in verdicts_of(paper, grid).values()]
    return [against_us([*paper, *ours], grid), *verdicts, *on_our_axes(ours, grid)]


def against_us(axes: Sequence[Axis], grid: Grid) -> str:
    """Settings that beat the default beyond the interval over seeds, the network's own prediction."""
    lost = []
    for axis in axes:
        for kind, end in (("own", ""), ("heard_own", ", with the witness")):
            labels = grid.along("setting", axis=axis.name, kind=kind)
            known = {label: grid.values((axis.name, label, kind), "nll") or () for label in labels}
            if axis.default not in known:
                continue
            gaps = {label: paired(known[axis.default], values) for label, values in known.items()}
            best = max(gaps, key=lambda label: gaps[label].mean)
            if gaps[best].verdict == "worse":
                far = f"{gaps[best].mean:.3f} ({gaps[best].low:.3f} to {gaps[best].high:.3f})"
                lost.append(f"{axis.title}: {best} instead of {axis.default}, by {far}{end}")
    start = "Against us: another setting than the default has the lower NLL, the network's own prediction, "
    return start + (f"for {'; '.join(lost)}." if lost else "beyond the interval over seeds, on no axis.")


def verdicts_of(paper: Sequence[Axis], grid: Grid) -> dict[str, tuple[str, str]]:
    """By observation of the paper, a verdict and its sentence."""

    def curve(axis: Axis, kind: str) -> Curve:
        labels = [point.label for point in axis.points]
        nll = [grid.values((axis.name, label, kind), "nll") or () for label in labels]
        work = [grid.values((axis.name, label, FITTED), "work") or () for label in labels]
        return Curve(kind, labels, nll, work)

    curves = {axis.name: [curve(axis, kind) for kind in KINDS] for axis in paper}
    titles = {axis.name: axis.title for axis in paper}
    return {one.claim: judge(one, curves, titles) for one in OBSERVATIONS}


def _cells(grid: Grid, axis: str) -> dict[str, dict[str, list[float]]]:
    """Mean and spread over seeds of the NLL, by setting and kind of prediction."""
    found: dict[str, dict[str, list[float]]] = {}
    for label, kind in grid.along("setting", "kind", axis=axis):
        if kind != FITTED:
            found.setdefault(label, {})[kind] = grid.spread((axis, label, kind), "nll")
    return found


def on_our_axes(axes: Sequence[Axis], grid: Grid) -> list[str]:
    """What the default of each of our axes costs against its best setting, and what the witness brings."""
    found = [_on_axis(axis, grid) for axis in axes if axis.name != "witness"]

    def heard(kind: str) -> str:
        places = ("witness", "off", kind), ("witness", "on", f"heard_{kind}")
        without, with_ = (grid.values(place, "nll") or () for place in places)
        return change(without, with_, digits=3)

    found.append(
        f"Witness: beside the default experts, the NLL of the network's own prediction {heard('own')}; that "
        f"of the corrected one {heard('corrected')}."
    )
    return found


def _on_axis(axis: Axis, grid: Grid) -> str:
    def reached(kind: str) -> str:
        labels = grid.along("setting", axis=axis.name, kind=kind)
        known = {label: grid.spread((axis.name, label, kind), "nll") for label in labels}
        default = known[axis.default]
        label = min(known, key=lambda label: known[label][0])
        rank = "the lowest" if label == axis.default else f"{default[0] - known[label][0]:.3f} above {label}"
        return f"{words(default, 3)} ({rank})"

    return (
        f"{axis.title.capitalize()}: the default, {axis.default}, brings the network's own prediction to an "
        f"NLL of {reached('own')} without the witness, and of {reached('heard_own')} with it."
    )


def draw_ablation(axes: Sequence[Axis], cells: Cells, shown: Mapping[str, Sequence[str]], path: Path) -> None:
    """NLL against every setting, mean and spread by axis, setting and kind; a strip is the default."""
    count = -(-len(axes) // COLUMNS)
    with plots.figure(path, width=12.0, height=2.7 * count + 0.5, dpi=100) as figure:
        panels = figure.subplots(count, COLUMNS, squeeze=False).flatten()
        for panel, axis in zip(panels, axes, strict=False):
            _draw_axis(panel, axis, cells[axis.name], shown[axis.name])
        for panel in panels[len(axes) :]:
            panel.set_axis_off()
        for panel in panels[::COLUMNS]:
            panel.set_ylabel("NLL per torque")
        legends = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in panels]
        lines = {label: line for legend in legends for line, label in legend}
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(STYLES))


def _draw_axis(
    panel: Any, axis: Axis, cells: Mapping[str, Mapping[str, Sequence[float]]], shown: Sequence[str]
) -> None:
    labels = [point.label for point in axis.points]
    default = labels.index(axis.default)
    panel.axvspan(default - 0.3, default + 0.3, color=plots.ORANGE, alpha=0.15, linewidth=0)
    for kind in shown:
        values = {place: cells[label][kind] for place, label in enumerate(labels) if kind in cells[label]}
        if values:
            _draw_kind(panel, kind, values, ordered=axis.ordered)
    # names in lines, so that neighbours do not touch
    ticks = labels if axis.ordered else [label.replace(" ", "\n") for label in labels]
    panel.set_xticks(range(len(labels)), ticks, fontsize=8)
    panel.set_xlim(-0.5, len(labels) - 0.5)
    low, high = panel.get_ylim()
    missing = max(0.0, LEAST_SPAN - (high - low))
    panel.set_ylim(low - missing / 2, high + missing / 2)
    panel.set_title(axis.title, fontsize=9)


def _draw_kind(panel: Any, kind: str, values: Mapping[int, Sequence[float]], *, ordered: bool) -> None:
    """Values are mean and spread by place."""
    places, (mean, spread) = list(values), zip(*values.values(), strict=True)
    (colour, label), heard = STYLES[kind], kind in HEARD
    style = {"marker": "o", "markersize": 4, "markerfacecolor": "white" if heard else colour, "label": label}
    if not ordered:
        panel.errorbar(places, mean, yerr=spread, color=colour, capsize=2, linestyle="none", **style)
        return
    line = (0, (3, 2)) if heard else "-"
    panel.plot(places, mean, color=colour, linestyle=line, linewidth=1.3, **style)
    lower, upper = ([m + sign * s for m, s in values.values()] for sign in (-1, 1))
    panel.fill_between(places, lower, upper, color=colour, alpha=0.15, linewidth=0)


def _protocol(setting: Setting, about: Mapping[str, Any]) -> list[str]:
    """How it was measured on these rows, a paragraph each."""
    rules = "; ".join(f"({n}) {one.rule_words}" for n, one in enumerate(OBSERVATIONS, 1))
    return [
        f"Data: {about['about']} Every test row is scored.",
        f"Network: {arm_recipe(setting.quick).words()}, trained once a seed and shared by all settings. One "
        "setting is turned at a time; experts are exact (`budget='none'`), "
        f"{setting.sized(*EXPERTS)} of them, and all else stays at the library's defaults.",
        "On the paper's axes (experts, subset, both stages of pruning, active rows) the experts speak "
        "alone, without the witness, so that they are what is measured. Three predictions are scored: the "
        "network's own, the corrected one, and the plain variance: what the evidence gives, as in the paper, "
        "with nothing held out or left out. On our axes the same experts are scored a second time with the "
        "witness beside them.",
        "Gradient rows are costly, so pruning and the kinds of gradients are measured on a random part, one "
        f"row in {SHARE} ({about['rows']['small']} rows), with one random mix of the torques as the kernel "
        "(outputs='pseudo'). Stage (i) keeps the parameters of largest size for all experts, stage (ii) "
        "those columns of them whose sum over an expert's rows is largest. Rows that keep every parameter "
        "have the very kernel of the factors, which stand for them.",
        "Active rows are chosen by their variance given the rows already chosen: from each neighbour, as a "
        "share of an average expert's rows.",
        f"When an observation of the paper counts as confirmed: {rules}. To help means that the mean NLL "
        f"falls by {GAIN} or more and that it falls in every seed; costs up to {LITTLE} count as little. The "
        f"{JUDGED} variance decides, since it is what the paper measured: confirmed in part where the rule "
        "holds on some of the axes only, contradicted where it holds on none. Whether it holds for our own "
        "predictions is said beside it.",
        f"Seeds: {setting.seeds}, of split, network, division and the random part.",
    ]


NOTE = (
    "NLL per torque in units of its standard deviation, lower is better; mean ± standard deviation over "
    "seeds. Own: about the network's output. Corrected: about the corrected mean. Plain: evidence "
    "only. Rows of one: that an expert holds, on average. MiB and time to fit: without the witness."
)
CAPTION = (
    "Mean over seeds, and the spread as a band or a bar; the shaded strip is the default. Filled: the "
    "experts alone; hollow: with the witness. Every panel has its own scale."
)
