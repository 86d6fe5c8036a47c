"""`trustgp study tables`: every method on regression tables that can be had offline, twenty splits each."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trustgp import plots

from ...core.arm import evenly
from ...core.cases import COSTS, ENSEMBLE, IN_DOMAIN, METHOD, OURS, Case, read_tests
from ...core.claim import versus
from ...core.dropout import best_rate, try_rates
from ...core.grid import Grid, work_ahead
from ...core.pivot import Pivot
from ...core.recipes import NetworkRecipe, Pair, mlp_recipe
from ...core.regression import (
    COVERAGE,
    CRPS,
    MEASURES,
    NLL,
    VERDICTS,
    compare,
    failures,
    method_names,
    score_methods,
    tally,
)
from ...core.result import Column, Figure, Result, Setting, Table, provenance
from ...datasets import standardise
from ...datasets.tables import TABLES, load_table
from ...peers import MCDropout

AXES = ("table", "tested", "method")
FAMILY = "trustgp"
CORRECTED, PAPER = "trustgp corrected", "trustgp paper form"
# not here: those whose sampled or propagated form is in `transfer`, and what is judged there on its own
LEFT_OUT = ("rMC-dropout", "Laplace sampled", "trustgp, no witness")
# minutes a split on a CPU
DEAR = ("simulated arm",)
STUDIED = tuple(name for name in TABLES if name not in DEAR)
QUICK_TABLES = ("growing noise",)
QUICK_ROWS = {"train": 120, "validation": 40, "test": 40}
STEPS = (300, 1000)  # of a training; the validation rows of the first split choose
QUICK_STEPS = (40,)
SMALLEST_BATCH, LARGEST_BATCH = 16, 256
HIDDEN = [64, 64]
MARKED = {  # in the figure
    OURS: {"color": plots.BLUE, "s": 40, "zorder": 5},
    CORRECTED: {"facecolor": "white", "edgecolor": plots.BLUE, "s": 30, "zorder": 4},
    PAPER: {"color": plots.BLUE, "marker": "x", "s": 24, "zorder": 3},
    "heteroscedastic ensemble of 5": {"color": plots.ORANGE, "s": 22, "zorder": 3},
    "GP on inputs, no network": {"color": plots.GREEN, "s": 22, "zorder": 3},
}
OTHERS = {"color": plots.GREY, "s": 10, "alpha": 0.6, "zorder": 2}
TITLE = "On plain tables, small and large: whose error bar is right, and at what cost?"


def run(setting: Setting) -> Result:
    """Train, fit every method and score it, for each table and split."""
    names = list(setting.sized(STUDIED, QUICK_TABLES))
    for name in names:  # whatever is missing is told before any work
        load_table(name)
    cases = [(name,) for name in names]
    longest_first = cases[::-1]
    work_ahead(setting, choices, longest_first)
    grid = Grid.run(setting, one_split, cases, axes=AXES, read=read_tests, ahead=longest_first)
    draw_ranks(grid, setting.out / "tables.png")
    return Result(
        study="tables",
        title=TITLE,
        protocol=_protocol(setting, grid),
        tables=tables(grid),
        figures=[Figure("tables.png", "Who is ahead, table by table", CAPTION)],
        findings=findings(grid),
        numbers={"runs": grid.runs()},
        provenance=provenance(setting, "tables", rows={n: grid.parts[n,][0]["sizes"] for n in names}),
    )


def make_case(table: str, *, seed: int, quick: bool) -> Case:
    """Read, split by the seed, scale by the training rows; quick: some hundred rows."""
    rows = load_table(table)
    split = rows.split(seed)
    scaling = standardise(rows.inputs[split.train], rows.targets[split.train])

    def scaled(part: str) -> Pair:
        chosen: Tensor = getattr(split, part)
        kept = chosen[evenly(len(chosen), QUICK_ROWS[part])] if quick else chosen
        return scaling.inputs(rows.inputs[kept]).float(), scaling.targets(rows.targets[kept]).float()

    return Case(scaled("train"), scaled("validation"), {IN_DOMAIN: scaled("test")})


def recipe(case: Case, steps: int) -> NetworkRecipe:
    """A network of two hidden layers, in batches of a tenth of the rows, for about as many steps."""
    inputs, targets = case.train
    batch = min(max(len(inputs) // 10, SMALLEST_BATCH), LARGEST_BATCH)
    epochs = max(1, round(steps * batch / len(inputs)))
    widths = [inputs.shape[1], *HIDDEN, targets.shape[1]]
    return mlp_recipe(widths, epochs=epochs, batch_size=batch, together=True)


def choices(setting: Setting, table: str) -> dict[str, Any]:
    """How long to train, and the rate of dropout: by the validation rows of the first split."""

    def found() -> dict[str, Any]:
        case = make_case(table, seed=0, quick=setting.quick)
        inputs, targets = (part.to(setting.device) for part in case.validation)
        error = {}
        for steps in setting.sized(STEPS, QUICK_STEPS):
            network = recipe(case, steps).train(case.train, seed=0, **setting.place)
            with torch.no_grad():
                error[str(steps)] = float((network(inputs) - targets).square().mean())
        steps = int(min(error, key=error.__getitem__))

        def loss(rate: float) -> float:
            network = recipe(case, steps).train(case.train, seed=0, dropout=rate, **setting.place)
            said = MCDropout.fit(network, case.validation, samples=20, seed=0).predict(inputs)
            return float(-said.log_prob(targets).mean())

        return {"error": error, "steps": steps, "dropout": try_rates(loss)}

    return setting.once(f"{table}-choices", found)


def one_split(setting: Setting, table: str, seed: int) -> dict[str, Any]:
    """Every method on one split: sizes, choices, scores and costs."""
    chosen = choices(setting, table)
    case = make_case(table, seed=seed, quick=setting.quick)
    rate = best_rate(chosen["dropout"])
    bundle = recipe(case, chosen["steps"]).bundle(
        case.train, case.validation, seed=seed, dropout=rate, **setting.place
    )
    methods, failed = score_methods(bundle, method_names(quick=setting.quick, without=LEFT_OUT), case.tests)
    return {"sizes": case.sizes, "choices": chosen, "methods": methods, "failed": failed}


def tables(grid: Grid) -> list[Table]:
    """Likelihood by table, who is ahead, CRPS, coverage, costs, then everything."""
    names, at = grid.along("table"), {"tested": IN_DOMAIN}
    likelihood, crps, coverage = (
        Pivot(title, METHOD, [measure.at(name, table=name) for name in names], at, note=note).table(grid)
        for title, measure, note in (
            ("NLL by table", NLL, "Lower is better, the best in bold; in units of the training targets."),
            ("CRPS by table", CRPS, ""),
            ("95 % coverage by table", COVERAGE, ""),
        )
    )
    every = [
        Pivot(f"Every measure: {name}", METHOD, [*MEASURES, *COSTS], {**at, "table": name}).table(grid)
        for name in names
    ]
    return [*(standings(grid, ours) for ours in (OURS, CORRECTED)), likelihood, crps, coverage, *every]


def standings(grid: Grid, ours: str) -> Table:
    """How many tables a reading of ours is worse, alike and better on, by NLL and by CRPS."""
    columns = [Column.text("method"), Column.text("NLL"), Column.text("CRPS"), Column.text("worse on")]
    rows = []
    for rival in (method for method in grid.along("method") if method != ours):
        likelihood, score = (compare(grid, _places(grid), ours, rival, key) for key in ("nll", "crps"))
        if likelihood:
            lost = [case for case, gap in likelihood.items() if gap.verdict == VERDICTS[0]]
            rows.append([rival, tally(likelihood), tally(score), ", ".join(lost)])
    note = "Tables on which it is worse / alike / better, by the 95 % interval of paired differences."
    return Table(f"Where {ours} is worse, alike and better", columns, rows, note=note)


def findings(grid: Grid) -> list[str]:
    """One sentence for each rival and reading, those that beat us most often first."""
    peers = [m for m in grid.along("method") if not m.startswith(FAMILY) or m == PAPER]
    sentences = []
    for ours in (OURS, CORRECTED):
        gaps = {rival: compare(grid, _places(grid), ours, rival) for rival in peers}
        order = sorted((r for r in gaps if gaps[r]), key=lambda r: -_lost(gaps[r]))
        shown = [r for r in order if _lost(gaps[r])] or order[:1]
        sentences += [f"{ours} against {rival}, NLL: {versus(gaps[rival])}." for rival in shown]
    covered = {name: grid.mean((name, IN_DOMAIN, OURS), "coverage") for name in grid.along("table")}
    ends = [f"{name} {100 * share:.1f} %" for name, share in sorted(covered.items(), key=lambda one: one[1])]
    sentences.append(f"The 95 % interval of trustgp covers, from the least to the most: {', '.join(ends)}.")
    return sentences


def _lost(gaps: dict[str, Any]) -> int:
    return sum(gap.verdict == VERDICTS[0] for gap in gaps.values())


def _places(grid: Grid) -> list[tuple]:
    return [(name, IN_DOMAIN) for name in grid.along("table")]


def draw_ranks(grid: Grid, path: Path) -> None:
    """NLL of each method less that of the ensemble, table by table; ours is blue."""
    names, methods = grid.along("table"), [m for m in grid.along("method") if m != ENSEMBLE]
    with plots.figure(path, width=9.0, height=max(0.3 * len(names) + 1.2, 4.0)) as figure:
        axes = figure.subplots()
        for method in methods:
            points = [(_gap(grid, name, method), place) for place, name in enumerate(names)]
            known = [(gap, place) for gap, place in points if gap is not None]
            named = {"label": method} if method in MARKED else {}
            if known:
                axes.scatter(*zip(*known, strict=True), **named, **MARKED.get(method, OTHERS))
        axes.axvline(0.0, color=plots.INK, linewidth=0.8)
        axes.set_xscale("symlog", linthresh=0.5)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel(f"NLL less that of the {ENSEMBLE}; left is better")
        axes.scatter([], [], label="other methods", **OTHERS)
        figure.legend(fontsize=7, ncols=3, loc="outside upper center")


def _gap(grid: Grid, table: str, method: str) -> float | None:
    found = [grid.values((table, IN_DOMAIN, name), "nll") for name in (method, ENSEMBLE)]
    if None in found or any(isinstance(value, str) for values in found for value in values or ()):
        return None
    mine, theirs = (sum(values or ()) / len(values or ()) for values in found)
    return mine - theirs


def _protocol(setting: Setting, grid: Grid) -> list[str]:
    found = {name: grid.parts[name,][0] for name in grid.along("table")}
    rows = [
        f"{name} ({TABLES[name].about}; {TABLES[name].origin}; {part['sizes']['train']} rows train)"
        for name, part in found.items()
    ]
    chosen = [
        f"{name} {part['choices']['steps']} steps, dropout {best_rate(part['choices']['dropout']):g} of "
        f"{', '.join(part['choices']['dropout'])}"
        for name, part in found.items()
    ]
    return [
        f"Tables: {'; '.join(rows)}.",
        "Splits: 10 % of the rows test and 10 % validate, at random; of robots' logs whole runs, whole "
        "trajectories or blocks of time, purged at their ends. Inputs and targets are scaled by the training "
        f"rows, so NLL and CRPS are in units of their spread. {setting.seeds} splits, each with its own "
        "networks.",
        f"Network: {'-'.join(map(str, HIDDEN))} hidden units, ReLU, AdamW, one cycle to 3e-3, batches of a "
        f"tenth of the rows ({SMALLEST_BATCH} to {LARGEST_BATCH}); how long it trains (of "
        f"{', '.join(map(str, STEPS))} steps) and the rate of dropout are chosen on the validation rows of "
        f"the first split: {'; '.join(chosen)}.",
        "Every method may fit scale, noise and tails to the validation rows. NLL is of the method's own "
        "distribution. Worse and better are by the 95 % interval of paired differences over splits, by "
        "Student's t with Nadeau and Bengio's allowance for rows that splits share. Times were taken with "
        f"{setting.jobs} processes sharing the machine.",
        f"Not run: {', '.join(DEAR)}, which take minutes a split. TabPFN is missing: its weights cannot be "
        f"had offline. {failures(grid)}",
    ]


CAPTION = (
    "Mean over splits of the NLL, less that of an ensemble of five networks; left is better. The axis is "
    "linear up to 0.5 and logarithmic beyond; infinite costs are left out."
)
