"""Tables and findings of what was scored on every test set of torques."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...core import cases, regression
from ...core.cases import ENSEMBLE, IN_DOMAIN, METHOD, OURS, costs_table, read_tests
from ...core.claim import Check, Claim, Difference, versus, within
from ...core.grid import Grid, Place
from ...core.pivot import Pivot
from ...core.regression import CORRECTED, NLL, PAPER, compare, place_name, rivals, standings
from ...core.result import Table, note

AXES = ("trained", "split", "tested", "method")
INPUTS_ONLY = "GP on inputs, no network"
COVERED = (0.90, 0.985)  # coverage of a 95 % interval that passes
KINDS = ("in domain", "zero shot")
NAMED = 3  # losses that are named
COSTED = ("sarcos", "random")  # whose times are measured without parallel jobs
STANDINGS = note(__name__, "Standings")


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables and findings."""
    grid = Grid.of_runs(AXES, numbers["runs"], read_tests)
    trained, split = costed_case(list(grid.parts))
    note = f"{trained.upper()}, {split} split, seed 0: fit on all training rows, predict the test rows "
    costs = costs_table("What it costs", numbers["costs"], f"{note}in one call.")
    return [*tables(grid), costs], findings(grid)


def costed_case(trainings: Sequence[Place]) -> Place:
    """The training whose costs are measured."""
    return COSTED if COSTED in trainings else trainings[0]


def tables(grid: Grid) -> list[Table]:
    """The headline, the standings, zero shot by training arm, then everything."""
    trainings, at = grid.along("trained", "split"), {"tested": IN_DOMAIN}
    networks = cases.NETWORKS.at(trained=trainings[0][0], split=trainings[0][1])
    pivots = []
    for measure in (NLL, regression.CRPS):
        columns = [measure.at(f"{t}, {s}", trained=t, split=s) for t, s in trainings]
        title = f"{measure.column.name} on the arm that trained"
        note = "Lower is better, the best in bold."
        pivots.append(Pivot(title, METHOD, [networks, *columns], at, note=note))
    for trained, split in trainings:
        title = f"NLL on the other arms, trained on {trained} ({split} split)"
        columns = [NLL.at(test, digits=2, tested=test) for test in others(grid, trained, split)]
        if columns:
            pivots.append(Pivot(title, METHOD, columns, {"trained": trained, "split": split}))
    pivots += [everything(f"trained on {t}, {s} split", t, s) for t, s in trainings]
    headline, *rest = (pivot.table(grid) for pivot in pivots)
    groups = {f"{k}, {s}": (places(grid, k, s), "nll") for k in KINDS for s in grid.along("split")}
    ranks = [standings(grid, ours, groups, STANDINGS, named=False) for ours in (OURS, CORRECTED)]
    return [headline, *ranks, *rest]


def everything(title: str, trained: str, split: str) -> Pivot:
    """Every measure of one training."""
    measures = [*regression.MEASURES, *regression.NOVELTY, *cases.COSTS]
    at = {"trained": trained, "split": split}
    return Pivot(f"Every measure: {title}", cases.TESTED, measures, at, block="tested on")


def others(grid: Grid, trained: str, split: str) -> list[str]:
    """The zero-shot test sets of a training."""
    return [test for test in grid.along("tested", trained=trained, split=split) if test != IN_DOMAIN]


def places(grid: Grid, kind: str, split: str | None = None) -> list[Place]:
    """All trainings of a split, or of both, with their own test rows, or with every other arm."""
    trainings = [at for at in grid.along("trained", "split") if split in (None, at[1])]
    if kind == KINDS[0]:
        return [(*at, IN_DOMAIN) for at in trainings]
    return [(*at, test) for at in trainings for test in others(grid, *at)]


def findings(grid: Grid) -> list[str]:
    """The losses of trustgp first."""
    in_domain = places(grid, "in domain")
    ensembles = [
        f"In domain, {ours} against five networks, NLL: {versus(compare(grid, in_domain, ours, ENSEMBLE))}."
        for ours in (OURS, CORRECTED)
    ]
    zero_shot = [
        f"Zero shot, {split} split, trustgp against {rival}, NLL: "
        f"{versus(compare(grid, places(grid, 'zero shot', split), OURS, rival))}."
        for split in grid.along("split")
        for rival in (ENSEMBLE, "Laplace GLM", INPUTS_ONLY, PAPER)
        if rival in grid.along("method")
    ]
    lost = [losses(grid, kind, OURS, rivals(grid)) for kind in KINDS]
    return [*lost, *ensembles, *(claim.sentence for claim in claims(grid)), *zero_shot]


def claims(grid: Grid) -> list[Claim]:
    """Checked on every training."""
    in_domain = places(grid, "in domain")
    training_free = {place[-1] for place, cell in grid.cells.items() if cell["training_free"][0]}
    free = [method for method in rivals(grid) if method in training_free]
    bounds = f"{100 * COVERED[0]:.0f} and {100 * COVERED[1]:.1f} %"
    statements = {
        OURS: f"The 95 % interval of trustgp covers between {bounds} in domain",
        CORRECTED: "The same of trustgp corrected",
    }
    coverage = [
        Claim(text, [within(place_name(p), grid.mean((*p, name), "coverage"), *COVERED) for p in in_domain])
        for name, text in statements.items()
    ]
    text = (
        "In domain, no method that needs no further network has a lower NLL than trustgp (the network's own "
        "prediction)"
    )
    return [Claim(text, [_no_better(grid, place, OURS, free) for place in in_domain]), *coverage]


def losses(grid: Grid, kind: str, ours: str, peers: Sequence[str]) -> str:
    """The largest losses of ours, and which methods cause them."""
    worse: list[tuple[Difference, str, str]] = []
    for rival in peers:
        gaps = compare(grid, places(grid, kind), ours, rival)
        worse += [(gap, case, rival) for case, gap in gaps.items() if gap.verdict == "worse"]
    cases_lost = {case: (gap, rival) for gap, case, rival in sorted(worse, key=lambda one: one[0].mean)}
    count = len(places(grid, kind))
    if not cases_lost:
        return f"{kind.capitalize()}, no method has a lower NLL than {ours} in any of {count} cases."
    largest = sorted(cases_lost.items(), key=lambda one: -one[1][0].mean)
    named = "; ".join(f"{case}: {rival} by {gap.words()}" for case, (gap, rival) in largest[:NAMED])
    times = {rival: sum(one[2] == rival for one in worse) for rival in peers}
    ahead = sorted((rival for rival in peers if times[rival]), key=lambda rival: -times[rival])
    often = ", ".join(f"{rival} ({times[rival]})" for rival in ahead[:NAMED])
    return (
        f"Against us: {kind}, some method has a lower NLL than {ours} in {len(cases_lost)} of {count} cases. "
        f"The dearest: {named}. Most often ahead: {often}."
    )


def _no_better(grid: Grid, place: Place, ours: str, peers: Sequence[str]) -> Check:
    gaps = {rival: gap for rival in peers for gap in compare(grid, [place], ours, rival).values()}
    ahead = {rival: gap for rival, gap in gaps.items() if gap.verdict == "worse"}
    worst = max(ahead, key=lambda rival: ahead[rival].mean, default="")
    return Check(place_name(place), not ahead, f"{worst} by {ahead[worst].words()}" if ahead else "")
