"""Tables and findings of the classification study, from its grid: trained, tested, method."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ...core.cases import IN_DOMAIN, METHOD, NETWORKS, OURS, Costs, costs_table, read_tests
from ...core.claim import Difference, mean_spread, paired, words
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Table, note
from .pairs import EIGHT, NAMES, SETS, Pair, looked_at, new_pairs, pair_name, shifts_of
from .scores import ALARMS

AXES = ("trained", "tested", "method")
SOFTMAX = "softmax"
NLL = Measure("nll", Column("NLL", digits=4, better="low"))
PROPER = (
    NLL,
    Measure("ece", Column("ECE", digits=2, better="low", unit="%"), factor=100.0),
    Measure("accuracy", Column("accuracy", digits=2, better="high", unit="%"), factor=100.0),
    Measure("brier", Column("Brier", digits=4, better="low")),
    Measure("aurc", Column("AURC", digits=4, better="low")),
)
DETECTED = {
    "AUROC": Measure("auroc", Column("AUROC", digits=4, better="high")),
    "FPR95": Measure("fpr95", Column("FPR95", digits=3, better="low")),
}
CAUGHT = Column("caught", digits=1, better="high", unit="%")
DETECTED |= {f"share caught at {p} % alarms": Measure(f"caught_{p}", CAUGHT, factor=100.0) for p in ALARMS}
NEW = "Novel images detected, on pairs with which nothing was chosen"
LOOKED_AT = "Looked at when choices were made: novel images detected"
ONE_SCORE = "Each method by the one score that was declared for it; see the protocol."
COSTS_NOTE = note(__name__, "Costs")


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables of probabilities, novel images on new pairs, costs, pairs looked at, eight classes; findings."""
    grid, costs = Grid.of_runs(AXES, numbers["runs"], read_tests), numbers["costs"]
    full = [name for name in grid.along("trained") if not name.endswith(EIGHT)]
    tables = [
        *(_familiar(grid, name) for name in full),
        *(_distorted(grid, name) for name in full),
        *_detected(grid, new_pairs(), NEW),
        worth_table(grid, costs),
        *_detected(grid, looked_at(), LOOKED_AT),
        *(_familiar(grid, name) for name in grid.along("trained") if name not in full),
    ]
    return tables, class_findings(grid)


def measured(grid: Grid, pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs that were measured."""
    places = set(grid.along("trained", "tested"))
    return [pair for pair in pairs if pair in places]


def worth_table(grid: Grid, costs: Costs) -> Table:
    """Table of costs, with the NLL of Fashion-MNIST and the mean AUROC of the new pairs beside them."""
    table = costs_table("What it costs, and what it is worth", costs, COSTS_NOTE, "ms/image")
    pairs, rows = measured(grid, new_pairs()), []
    for row in table.rows:
        nll = grid.values((next(iter(SETS)), IN_DOMAIN, row[0]), "nll")
        likelihood = fmean(map(float, nll)) if nll else math.inf
        areas = [grid.values((*pair, row[0]), "auroc") for pair in pairs]
        area = fmean(fmean(values) for values in areas if values) if areas and all(areas) else None
        rows.append([*row, likelihood if math.isfinite(likelihood) else None, area])
    columns = [*table.columns, Column("NLL", 4), Column("mean AUROC", 4)]
    return replace(table, columns=columns, rows=rows)


def _familiar(grid: Grid, name: str) -> Table:
    title = f"{NAMES[name][0].upper()}{NAMES[name][1:]}: test images like those that trained"
    at = {"trained": name, "tested": IN_DOMAIN}
    return Pivot(title, METHOD, [NETWORKS, *PROPER], at).table(grid)


def _distorted(grid: Grid, name: str) -> Table:
    tests = shifts_of(grid.along("tested", trained=name))
    columns = [NLL.at(test, digits=3, tested=test) for test in tests]
    note = "Rotated by so many degrees; with Gaussian noise of so much std in every pixel from 0 to 1."
    title = f"NLL on distorted {NAMES[name]}"
    return Pivot(title, METHOD, columns, {"trained": name}, note=note).table(grid)


def _detected(grid: Grid, pairs: Sequence[Pair], title: str) -> list[Table]:
    """Tables of novelty detection, one for each measure, with a column for each pair."""
    tables = []
    for name, measure in DETECTED.items():
        columns = [measure.at(pair_name(p), trained=p[0], tested=p[1]) for p in measured(grid, pairs)]
        tables.append(Pivot(f"{title}: {name}", METHOD, columns, note=ONE_SCORE).table(grid))
    return tables


@dataclass(frozen=True)
class Compared:
    """trustgp and one peer at one place: paired differences over seeds."""

    where: str
    measure: str  # as it is printed
    rival: str
    ours: Sequence[float]  # one a seed
    theirs: Sequence[float]
    difference: Difference

    @property
    def sentence(self) -> str:
        return (
            f"{self.where}: {self.measure} {_shown(self.ours)}, {self.difference.verdict} "
            f"{'than' if self.difference.verdict != 'alike' else 'with'} the best peer ({self.rival}, "
            f"{_shown(self.theirs)}); difference {self.difference.words(4)}."
        )

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key, losses first: by verdict, then by the mean loss in half widths of the interval."""
        half = (self.difference.high - self.difference.low) / 2
        loss = self.difference.mean if self.difference.lower_is_better else -self.difference.mean
        size = loss / half if half > 0 and math.isfinite(half) else loss
        order = ("worse", "alike", "better").index(self.difference.verdict)
        return order, -size if math.isfinite(size) else -math.copysign(1e300, size)


def _shown(values: Sequence[float]) -> str:
    return words(mean_spread(values), 4) if all(map(math.isfinite, values)) else "infinite"


def compare(grid: Grid, place: Pair, key: str, where: str) -> Iterator[Compared]:
    """Comparisons with every peer that was measured at a place."""
    for method in (method for method in grid.along("method") if method != OURS):
        sides = [grid.values((*place, one), key) for one in (OURS, method)]
        if None not in sides:
            ours, theirs = ([float(value) for value in side or ()] for side in sides)
            difference = paired(ours, theirs, lower_is_better=key != "auroc")
            yield Compared(where, key.upper(), method, ours, theirs, difference)


def _best_peers(places: Sequence[Sequence[Compared]]) -> list[Compared]:
    """Comparison at each place with the peer of the best mean, which favours the peers; our losses first."""

    def best(place: Sequence[Compared]) -> Compared:
        sign = 1 if place[0].difference.lower_is_better else -1
        return min(place, key=lambda one: sign * math.fsum(one.theirs))

    return sorted((best(place) for place in places if place), key=lambda one: one.rank)


def class_findings(grid: Grid) -> list[str]:
    """Sentences about all comparisons, the losses of trustgp first."""
    sets = [name for name in SETS if name in grid.along("trained")]

    def places(key: str, named: Mapping[str, Pair]) -> list[list[Compared]]:
        return [list(compare(grid, place, key, where)) for where, place in named.items()]

    familiar = {NAMES[name]: (name, IN_DOMAIN) for name in sets}
    tests = {name: shifts_of(grid.along("tested", trained=name)) for name in sets}
    shifted = {f"{NAMES[name]}, {test}": (name, test) for name in sets for test in tests[name]}
    nll, ece, far = places("nll", familiar), places("ece", familiar), places("nll", shifted)
    new, old = (
        places("auroc", {pair_name(pair): pair for pair in measured(grid, pairs)})
        for pairs in (new_pairs(), looked_at())
    )
    tallies = {"NLL": [*nll, *far], "ECE": ece, "AUROC on new pairs": new}
    return [
        *(one.sentence for one in _best_peers([*new, *nll, *ece, *far])),
        *(_tally(title, compared) for title, compared in tallies.items() if compared),
        *(f"Looked at when choices were made. {one.sentence}" for one in _best_peers(old)),
        _same_classes(grid),
    ]


def _tally(title: str, places: Sequence[Sequence[Compared]]) -> str:
    """Sentence with the numbers of worse, alike and better places by peer; the most frequent losses first."""
    counts: dict[str, Counter[str]] = {}
    for one in (one for place in places for one in place):
        counts.setdefault(one.rival, Counter())[one.difference.verdict] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1]["worse"], item[1]["better"]))
    listed = (f"{name} {c['worse']}/{c['alike']}/{c['better']}" for name, c in ordered)
    counted = f"{title}, trustgp worse/alike/better than each peer, of {len(places)} places"
    return f"{counted}: {', '.join(listed)}."


def _same_classes(grid: Grid) -> str:
    places = grid.along("trained", "tested")
    pairs = [[grid.values((*at, method), "accuracy") for method in (OURS, SOFTMAX)] for at in places]
    same = [ours == network for ours, network in pairs if ours is not None]
    sets = f"{sum(same)} of {len(same)} sets of labelled images"
    return f"trustgp has exactly the network's accuracy, in {sets}."
