"""The tables of what was scored on every test set of torques, and what they show."""

from collections.abc import Sequence

from ...core import cases
from ...core.cases import ENSEMBLE, IN_DOMAIN, METHOD, OURS
from ...core.claim import Check, Claim, Difference, versus, within
from ...core.grid import Grid, Place
from ...core.pivot import Pivot
from ...core.regression import CRPS, MEASURES, NLL, TOLD, compare, tally, told
from ...core.result import Column, Table

AXES = ("trained", "split", "tested", "method")
CORRECTED, PAPER, ALONE = "trustgp corrected", "trustgp paper form", "GP on inputs, no network"
FAMILY = "trustgp"  # what other readings and forms of our own begin with
COVERED = (0.90, 0.985)  # coverage of a 95 % interval that passes
KINDS = ("in domain", "zero shot")
DEAREST = 3  # losses that are named


def tables(grid: Grid) -> list[Table]:
    """The headline, who is ahead, zero shot by training arm, then everything."""
    trainings = grid.along("trained", "split")
    near = [NLL.at(f"{t}, {s}", trained=t, split=s) for t, s in trainings]
    near_crps = [CRPS.at(f"{t}, {s}", trained=t, split=s) for t, s in trainings]
    note = "Lower is better, the best in bold."
    first = cases.NETWORKS.at(trained=trainings[0][0], split=trainings[0][1])
    found = [
        Pivot("NLL on the arm that trained", METHOD, [first, *near], {"tested": IN_DOMAIN}, note=note),
        Pivot("CRPS on the arm that trained", METHOD, [first, *near_crps], {"tested": IN_DOMAIN}, note=note),
    ]
    for trained, split in trainings:
        title = f"NLL on the other arms, trained on {trained} ({split} split)"
        measures = [NLL.at(test, digits=2, tested=test) for test in others(grid, trained, split)]
        if measures:
            found.append(Pivot(title, METHOD, measures, {"trained": trained, "split": split}))
    found += [everything(f"trained on {t}, {s} split", t, s) for t, s in trainings]
    headline, *rest = (pivot.table(grid) for pivot in found)
    return [headline, *(standings(grid, ours) for ours in (OURS, CORRECTED)), *rest]


def standings(grid: Grid, ours: str) -> Table:
    """How often a reading of ours is worse than each rival, alike and better, by split, near and far."""
    splits = grid.along("split")
    columns = [Column.text("method"), *(Column.text(f"{kind}, {s}") for kind in KINDS for s in splits)]
    rows = []
    for rival in [method for method in grid.along("method") if method != ours]:
        groups = [places(grid, kind, split) for kind in KINDS for split in splits]
        counts = [compare(grid, group, ours, rival) for group in groups]
        if any(counts):
            rows.append([rival, *(tally(found) if found else None for found in counts)])
    note = (
        "Cases in which the NLL is worse / alike / better than the method's: by the 95 % interval of the "
        "paired differences over seeds."
    )
    return Table(f"Where {ours} is worse, alike and better", columns, rows, note=note)


def everything(title: str, trained: str, split: str) -> Pivot:
    """Every measure of one training."""
    measures = [*MEASURES, *TOLD, *cases.COSTS]
    at = {"trained": trained, "split": split}
    return Pivot(f"Every measure: {title}", cases.TESTED, measures, at, block="tested on")


def others(grid: Grid, trained: str, split: str) -> list[str]:
    """What a training is tested on, zero shot."""
    return [test for test in grid.along("tested", trained=trained, split=split) if test != IN_DOMAIN]


def places(grid: Grid, kind: str, split: str | None = None) -> list[Place]:
    """All trainings of a split, or of both, with their own test rows, or with every other arm."""
    trainings = [at for at in grid.along("trained", "split") if split in (None, at[1])]
    if kind == KINDS[0]:
        return [(*at, IN_DOMAIN) for at in trainings]
    return [(*at, test) for at in trainings for test in others(grid, *at)]


def findings(grid: Grid) -> list[str]:
    """What the study shows, the cases against us first."""
    peers = rivals(grid)
    near, free = places(grid, "in domain"), [m for m in peers if _is_free(grid, m)]
    return [
        *(against_us(grid, kind, OURS, peers) for kind in KINDS),
        f"In domain, trustgp against five networks, NLL: {versus(compare(grid, near, OURS, ENSEMBLE))}.",
        f"In domain, trustgp corrected against five networks, NLL: "
        f"{versus(compare(grid, near, CORRECTED, ENSEMBLE))}.",
        *(claim.sentence for claim in claims(grid, free)),
        *(
            f"Zero shot, {split} split, trustgp against {rival}, NLL: "
            f"{versus(compare(grid, places(grid, 'zero shot', split), OURS, rival))}."
            for split in grid.along("split")
            for rival in (ENSEMBLE, "Laplace GLM", ALONE, PAPER)
            if rival in grid.along("method")
        ),
    ]


def rivals(grid: Grid) -> list[str]:
    """Methods that are not our own, the paper's form among them."""
    return [m for m in grid.along("method") if not m.startswith(FAMILY) or m == PAPER]


def claims(grid: Grid, free: Sequence[str]) -> list[Claim]:
    """Judged on every training."""
    lowest, highest = COVERED
    near = places(grid, "in domain")
    return [
        Claim(
            "In domain, no method that needs no further network has a lower NLL than trustgp (the network's "
            "own prediction)",
            [_no_better(grid, place, OURS, free) for place in near],
        ),
        Claim(
            f"The 95 % interval of trustgp covers between {100 * lowest:.0f} and {100 * highest:.1f} % in "
            "domain",
            [within(told(place), grid.mean((*place, OURS), "coverage"), *COVERED) for place in near],
        ),
        Claim(
            "The same of trustgp corrected",
            [within(told(place), grid.mean((*place, CORRECTED), "coverage"), *COVERED) for place in near],
        ),
    ]


def against_us(grid: Grid, kind: str, ours: str, peers: Sequence[str]) -> str:
    """The largest losses, and which methods cause them."""
    found: list[tuple[Difference, str, str]] = []
    for rival in peers:
        every = compare(grid, places(grid, kind), ours, rival)
        found += [(gap, case, rival) for case, gap in every.items() if gap.verdict == "worse"]
    cases_lost = {case: (gap, rival) for gap, case, rival in sorted(found, key=lambda one: one[0].mean)}
    count = len(places(grid, kind))
    if not cases_lost:
        return f"{kind.capitalize()}, no method has a lower NLL than {ours} in any of {count} cases."
    dearest = sorted(cases_lost.items(), key=lambda one: -one[1][0].mean)
    named = "; ".join(f"{case}: {rival} by {gap.words()}" for case, (gap, rival) in dearest[:DEAREST])
    times = {rival: sum(one[2] == rival for one in found) for rival in peers}
    ahead = sorted((rival for rival in peers if times[rival]), key=lambda rival: -times[rival])
    often = ", ".join(f"{rival} ({times[rival]})" for rival in ahead[:DEAREST])
    return (
        f"Against us: {kind}, some method has a lower NLL than {ours} in {len(cases_lost)} of {count} cases. "
        f"The dearest: {named}. Most often ahead: {often}."
    )


def _is_free(grid: Grid, method: str) -> bool:
    return any(grid.cells[p]["training_free"][0] for p in grid.cells if p[-1] == method)


def _no_better(grid: Grid, place: Place, ours: str, peers: Sequence[str]) -> Check:
    ahead = {}
    for rival in peers:
        for gap in compare(grid, [place], ours, rival).values():
            if gap.verdict == "worse":
                ahead[rival] = gap
    worst = max(ahead, key=lambda rival: ahead[rival].mean, default="")
    return Check(told(place), not ahead, f"{worst} by {ahead[worst].words()}" if ahead else "")
