"""Tables and findings from the scores on all test sets of torques, new motions and other arms first."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ...core import cases, regression
from ...core.cases import IN_DOMAIN, METHOD, OURS, costs_table, read_tests
from ...core.claim import Difference
from ...core.grid import Grid, Place
from ...core.pivot import Measure, Pivot
from ...core.regression import CORRECTED, NLL, compare, rivals, standings
from ...core.result import Column, Table, note
from .paper_table import paper_findings, paper_tables

AXES = ("trained", "split", "tested", "method")
# how rows are split; other arms test the networks trained on NEW
NEW, KNOWN = "new motions", "known motions"
OTHER = "other arms"
KINDS = (NEW, OTHER, KNOWN)
SCORES = (NLL, regression.CRPS, regression.COVERAGE, regression.WIDTH)
NAMED = 3  # losses that are named
COSTED = ("sarcos", KNOWN)  # whose times are measured without parallel jobs
HEADINGS = ("Standings", "Overview", "Selection")
STANDINGS, OVERVIEW, SELECTION = (note(__name__, heading) for heading in HEADINGS)


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables and findings."""
    grid = Grid.of_runs(AXES, numbers["runs"], read_tests)
    trained, split = costed_case(list(grid.parts))
    note = f"{trained.upper()}, {split}, seed 0: fit on all training rows, predict the test rows in one call."
    return [*tables(grid), costs_table("What it costs", numbers["costs"], note)], findings(grid)


def costed_case(trainings: Sequence[Place]) -> Place:
    """The training whose costs are measured."""
    return COSTED if COSTED in trainings else trainings[0]


def tables(grid: Grid) -> list[Table]:
    """Tables: the overview, selective prediction, the standings, the paper's Table 1, then every measure."""
    arms, pivots = grid.along("trained"), []
    for split in (split for split in (NEW, KNOWN) if split in grid.along("split")):
        at = {"tested": IN_DOMAIN, "split": split}
        for measure in (NLL, regression.CRPS):
            columns = [measure.at(arm, trained=arm) for arm in arms]
            pivots.append(Pivot(f"{measure.column.name}, {split}", METHOD, columns, at))
    for arm in arms:
        columns = [NLL.at(test, digits=2, tested=test) for test in others(grid, arm, NEW)]
        if columns:
            at = {"trained": arm, "split": NEW}
            pivots.append(Pivot(f"NLL on {OTHER}, trained on {arm}", METHOD, columns, at))
    pivots += [everything(f"trained on {t}, {s}", t, s) for t, s in grid.along("trained", "split")]
    groups = {kind: (places(grid, kind), "nll") for kind in KINDS}
    groups |= {f"{kind}, CRPS": (places(grid, kind), "crps") for kind in KINDS[:2]}
    ranks = [standings(grid, ours, groups, STANDINGS, named=False) for ours in (OURS, CORRECTED)]
    flags = [table] if (table := selection(grid)).rows else []
    return [overview(grid), *flags, *ranks, *paper_tables(grid), *(pivot.table(grid) for pivot in pivots)]


def overview(grid: Grid) -> Table:
    """Table of likelihood, CRPS, coverage and width of every method, as means over the cases of each kind."""
    by_kind = {kind: at for kind in KINDS if (at := places(grid, kind))}
    measures = [(kind, measure) for kind in by_kind for measure in SCORES]
    columns = [measure.at(f"{measure.column.name}, {kind}").column for kind, measure in measures]
    methods = grid.along("method")
    rows = [[m, *(average(grid, by_kind[kind], m, one) for kind, one in measures)] for m in methods]
    return Table("Every method", [Column.text("method"), *columns], rows, note=OVERVIEW)


def selection(grid: Grid) -> Table:
    """Table of selective prediction on new motions, and alarms there and on other arms; means over cases."""
    alarms = regression.SELECTIVE[-1]
    new, other = places(grid, NEW), places(grid, OTHER)
    measures = [*((new, one) for one in regression.SELECTIVE), (other, alarms)]
    columns = [one.column for one in regression.SELECTIVE]
    columns += [alarms.at(f"{alarms.column.name}, {OTHER}").column]
    rows = [[m, *(average(grid, at, m, one) for at, one in measures)] for m in grid.along("method")]
    rows = [row for row in rows if any(cell is not None for cell in row[1:])]
    return Table("Which rows are flagged", [Column.text("method"), *columns], rows, note=SELECTION)


def average(grid: Grid, at: Sequence[Place], method: str, measure: Measure) -> Any:
    """Mean over cases, as a cell of a table; None if one of them lacks the number."""
    own = [(*place, method) for place in at]
    if not own or any(grid.values(place, measure.key) is None for place in own):
        return None
    means = [grid.mean(place, measure.key) for place in own]
    return "infinite" if math.inf in means else measure.factor * fmean(means)


def everything(title: str, trained: str, split: str) -> Pivot:
    """Pivot with every measure of one training."""
    measures = [*regression.MEASURES, *regression.NOVELTY, *cases.COSTS]
    at = {"trained": trained, "split": split}
    return Pivot(f"Every measure: {title}", cases.TESTED, measures, at, block="tested on")


def others(grid: Grid, trained: str, split: str) -> list[str]:
    """The zero-shot test sets of a training."""
    return [test for test in grid.along("tested", trained=trained, split=split) if test != IN_DOMAIN]


def places(grid: Grid, kind: str) -> list[Place]:
    """Places of all arms that train: own rows of a split, or every other arm after training on `NEW`."""
    arms = [arm for arm, split in grid.along("trained", "split") if split == (NEW if kind == OTHER else kind)]
    if kind == OTHER:
        return [(arm, NEW, test) for arm in arms for test in others(grid, arm, NEW)]
    return [(arm, kind, IN_DOMAIN) for arm in arms]


def findings(grid: Grid) -> list[str]:
    """Sentences about all scores, the losses of trustgp first."""
    lost = [losses(grid, kind, ours, rivals(grid)) for kind in KINDS for ours in (OURS, CORRECTED)]
    return [*lost, *flagged(grid), *paper_findings(grid)]


def flagged(grid: Grid) -> list[str]:
    """Sentence on the share of the large errors that methods flag, the best peer first."""
    measure = regression.SELECTIVE[0]
    new = places(grid, NEW)
    shares = {m: average(grid, new, m, measure) for m in grid.along("method")}
    shares = {method: share for method, share in shares.items() if share is not None}
    if OURS not in shares:
        return []
    order = sorted((m for m in shares if m in rivals(grid)), key=lambda m: -shares[m])[:NAMED]
    named = ", ".join(f"{m} {shares[m]:.0f} %" for m in [*order, OURS, CORRECTED] if m in shares)
    return [f"On {NEW}, of the tenth of the rows with the largest errors a tenth of alarms flags: {named}."]


def losses(grid: Grid, kind: str, ours: str, peers: Sequence[str]) -> str:
    """Sentence with the largest losses of ours, and the methods that are ahead most often."""
    worse: list[tuple[Difference, str, str]] = []
    at = places(grid, kind)
    for rival in peers:
        gaps = compare(grid, at, ours, rival)
        worse += [(gap, case, rival) for case, gap in gaps.items() if gap.verdict == "worse"]
    cases_lost = {case: (gap, rival) for gap, case, rival in sorted(worse, key=lambda one: one[0].mean)}
    count = len(at)
    if not cases_lost:
        mean = {m: one for m in (ours, *peers) if isinstance(one := average(grid, at, m, NLL), float)}
        lower = sorted((value, m) for m, value in mean.items() if value < mean.get(ours, -math.inf))
        named = ", ".join(f"{m} by {mean[ours] - value:.2f}" for value, m in lower[:NAMED])
        text = f"{kind.capitalize()}, by the intervals no method has a lower NLL than {ours} in any of "
        return f"{text}{count} cases" + (f"; the mean over them is lower of {named}." if lower else ".")
    largest = sorted(cases_lost.items(), key=lambda one: -one[1][0].mean)
    named = "; ".join(f"{case}: {rival} by {gap.words()}" for case, (gap, rival) in largest[:NAMED])
    times = {rival: sum(one[2] == rival for one in worse) for rival in peers}
    ahead = sorted((rival for rival in peers if times[rival]), key=lambda rival: -times[rival])
    often = ", ".join(f"{rival} ({times[rival]})" for rival in ahead[:NAMED])
    return (
        f"Against us: {kind}, some method has a lower NLL than {ours} in {len(cases_lost)} of {count} cases. "
        f"The dearest: {named}. Most often ahead: {often}."
    )
