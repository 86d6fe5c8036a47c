"""Tables of the classification study, made from its grid: trained, tested, method."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from ...core.cases import COSTS, IN_DOMAIN, METHOD, NETWORKS, OURS, PREDICT
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Table
from .differences import compare, there
from .pairs import EIGHT, NAMES, SETS, Pair, looked_at, new_pairs, pair_name, shifts_of
from .scores import ALARMS, SCORES

AXES = ("trained", "tested", "method")
NLL = Measure("nll", Column("NLL", digits=4, better="low"))
ECE = Measure("ece", Column("ECE", digits=2, better="low", unit="%"), factor=100.0)
RIGHT = (
    NLL,
    ECE,
    Measure("accuracy", Column("accuracy", digits=2, better="high", unit="%"), factor=100.0),
    Measure("brier", Column("Brier", digits=4, better="low")),
    Measure("aurc", Column("AURC", digits=4, better="low")),
)
AUROC = Measure("auroc", Column("AUROC", digits=4, better="high"))
FPR95 = Measure("fpr95", Column("FPR95", digits=3, better="low"))
CAUGHT = {
    percent: Measure(f"caught_{percent}", Column("caught", digits=1, better="high", unit="%"), factor=100.0)
    for percent in ALARMS
}
FALSE = {
    percent: Measure(f"alarms_{percent}", Column(f"at {percent} %", digits=2, unit="%"), factor=100.0)
    for percent in ALARMS
}
ONE_SCORE = "Each method by the one score that was declared for it; see the protocol."
COSTS_NOTE = (
    "Fashion-MNIST, seed 0, one process: fit on all training images, predict the test images in one call. "
    "More training: of networks beyond the one that all share; the rate of dropout was searched before. MiB: "
    "all that predict needs, networks included. NLL of Fashion-MNIST, and the "
    "mean AUROC of all new pairs, over all seeds."
)


def class_tables(grid: Grid, costs: Grid) -> list[Table]:
    """Probabilities; novelty on new pairs; on those looked at; differences; costs; then everything."""
    full = [name for name in grid.along("trained") if not name.endswith(EIGHT)]
    return [
        *(_familiar(grid, name) for name in full),
        *(_distorted(grid, name) for name in full),
        *_told(grid, new_pairs(), "Novel images told, on pairs with which nothing was chosen"),
        _differences(grid),
        worth_table(costs, worth(grid)),
        *_told(grid, looked_at(), "Looked at when choices were made: novel images told"),
        *(_familiar(grid, name) for name in grid.along("trained") if name not in full),
        *_every_score(grid),
        _alarms(grid),
    ]


def worth_table(costs: Grid, quality: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Costs, and beside them what is got for it: by column, a number for each method that has it."""
    measures = [replace(cost, statistic=fmean) for cost in (*COSTS[:-1], PREDICT.at("ms/image"))]
    title = "What it costs, and what it is worth"
    table = Pivot(title, METHOD, measures, note=COSTS_NOTE).table(costs)
    columns = [*table.columns, *(Column(name, 4) for name in quality)]
    rows = [[*row, *(values.get(row[0]) for values in quality.values())] for row in table.rows]
    return replace(table, columns=columns, rows=rows)


def worth(grid: Grid) -> dict[str, dict[str, float | None]]:
    """NLL of Fashion-MNIST, and mean AUROC of the new pairs, by method."""
    pairs, found = there(grid, new_pairs()), {"NLL": {}, "mean AUROC": {}}
    for method in grid.along("method"):
        place = (next(iter(SETS)), IN_DOMAIN, method)
        nll = grid.mean(place, "nll") if grid.values(place, "nll") else None
        found["NLL"][method] = None if nll is None or nll == float("inf") else nll
        each = [
            grid.mean((*pair, method), "auroc") for pair in pairs if grid.values((*pair, method), "auroc")
        ]
        found["mean AUROC"][method] = fmean(each) if each and len(each) == len(pairs) else None
    return found


def _familiar(grid: Grid, name: str) -> Table:
    title = f"{NAMES[name][0].upper()}{NAMES[name][1:]}: test images like those that trained"
    at = {"trained": name, "tested": IN_DOMAIN}
    return Pivot(title, METHOD, [NETWORKS, *RIGHT], at).table(grid)


def _distorted(grid: Grid, name: str) -> Table:
    tests = shifts_of(grid.along("tested", trained=name))
    measures = [NLL.at(test, digits=3, tested=test) for test in tests]
    note = "Rotated by so many degrees; with Gaussian noise of so much std in every pixel from 0 to 1."
    return Pivot(f"NLL on distorted {NAMES[name]}", METHOD, measures, {"trained": name}, note=note).table(
        grid
    )


def _told(grid: Grid, pairs: Sequence[Pair], title: str) -> list[Table]:
    """AUROC, FPR95 and what is caught, a table each, a column for each pair."""
    named = {f"{title}: AUROC": AUROC, f"{title}: FPR95": FPR95}
    named |= {f"{title}: share caught at {p} % alarms": measure for p, measure in CAUGHT.items()}
    return [_by_pair(grid, pairs, name, measure) for name, measure in named.items()]


def _by_pair(grid: Grid, pairs: Sequence[Pair], title: str, measure: Measure, note: str = ONE_SCORE) -> Table:
    found = [measure.at(pair_name(pair), trained=pair[0], tested=pair[1]) for pair in there(grid, pairs)]
    return Pivot(title, METHOD, found, note=note).table(grid)


def _differences(grid: Grid) -> Table:
    """trustgp less each peer, over seeds, in words."""
    known = grid.along("trained", "tested")
    near = [(name, IN_DOMAIN) for name in SETS if (name, IN_DOMAIN) in known]
    named = {f"NLL, {SETS[place[0]]}": (place, "nll") for place in near}
    named |= {f"AUROC, {pair_name(pair)}": (pair, "auroc") for pair in there(grid, new_pairs())}
    cells = {
        (one.rival, name): f"{one.difference.verdict}: {one.difference.words(4)}"
        for name, (place, key) in named.items()
        for one in compare(grid, place, key, name)
    }
    rivals = [method for method in grid.along("method") if method != OURS]
    rows = [[rival, *(cells.get((rival, name)) for name in named)] for rival in rivals]
    columns = [*METHOD.values(), *(Column.text(name) for name in named)]
    note = (
        "trustgp less the method, seed by seed: mean and 95 % interval by Student's t. Of NLL lower is "
        "better, of AUROC higher; alike: the interval holds 0."
    )
    return Table("trustgp less each peer", columns, rows, note=note)


def _every_score(grid: Grid) -> list[Table]:
    """Methods of several scores by each of them."""
    note = "Not what methods are judged by. A gap: the method has no such score."
    pairs = [*new_pairs(), *looked_at()]
    return [
        _by_pair(grid, pairs, f"AUROC by {said}", Measure(f"auroc_{key}", AUROC.column), note)
        for key, said in SCORES.items()
    ]


def _alarms(grid: Grid) -> Table:
    """False ones, on test images like those that trained."""
    pairs = {pair[0]: pair for pair in there(grid, new_pairs())}
    measures = [
        FALSE[percent].at(f"{NAMES[name]}, {percent} %", trained=name, tested=pair[1])
        for name, pair in pairs.items()
        for percent in ALARMS
    ]
    note = "Share of familiar test images above the threshold that the validation images set."
    return Pivot("False alarms", METHOD, measures, note=note).table(grid)
