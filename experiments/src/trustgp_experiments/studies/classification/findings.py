"""What the classification study shows: sentences made from its numbers, what speaks against trustgp first."""

from collections import Counter
from collections.abc import Sequence

from ...core.cases import IN_DOMAIN, OURS, PREDICT, SIZE
from ...core.grid import Grid
from .differences import Compared, best_peer, compare, there
from .pairs import NAMES, SETS, looked_at, new_pairs, pair_name, shifts_of

SOFTMAX = "softmax"


def class_findings(grid: Grid, costs: Grid) -> list[str]:
    """A sentence each; costs are those of each method alone on the machine."""
    sets = [name for name in SETS if name in grid.along("trained")]
    near, sure = (
        [list(compare(grid, (name, IN_DOMAIN), key, NAMES[name])) for name in sets] for key in ("nll", "ece")
    )
    far = [
        list(compare(grid, (name, test), "nll", f"{NAMES[name]}, {test}"))
        for name in sets
        for test in shifts_of(grid.along("tested", trained=name))
    ]
    new, old = (
        [list(compare(grid, pair, "auroc", pair_name(pair))) for pair in there(grid, pairs)]
        for pairs in (new_pairs(), looked_at())
    )
    judged = sorted((best_peer(one) for one in (*new, *near, *sure, *far) if one), key=lambda one: one.rank)
    seen = sorted((best_peer(one) for one in old if one), key=lambda one: one.rank)
    tallies = {"NLL": [*near, *far], "ECE": sure, "AUROC on new pairs": new}
    return [
        *(one.sentence for one in judged),
        *(_tally(title, found) for title, found in tallies.items() if found),
        *(f"Looked at when choices were made. {one.sentence}" for one in seen),
        _same_classes(grid),
        _cost(costs),
    ]


def _tally(title: str, found: Sequence[Sequence[Compared]]) -> str:
    """By peer, in how many places trustgp is worse, alike and better; those it loses to most often first."""
    counts: dict[str, Counter[str]] = {}
    for one in (one for several in found for one in several):
        counts.setdefault(one.rival, Counter())[one.difference.verdict] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1]["worse"], item[1]["better"]))
    told = (f"{name} {c['worse']}/{c['alike']}/{c['better']}" for name, c in ordered)
    return f"{title}, trustgp worse/alike/better than each peer, of {len(found)} places: {', '.join(told)}."


def _same_classes(grid: Grid) -> str:
    places = grid.along("trained", "tested")
    pairs = [[grid.values((*at, method), "accuracy") for method in (OURS, SOFTMAX)] for at in places]
    same = [ours == own for ours, own in pairs if ours is not None]
    return (
        f"trustgp has exactly the network's accuracy, in {sum(same)} of {len(same)} sets of labelled images."
    )


def _cost(costs: Grid) -> str:
    """Our cost beside that of the network, and where we are the dearest, that is said."""
    each = {name: 1000 * costs.mean((name,), PREDICT.key) for name in costs.along("method")}
    size = {name: costs.mean((name,), SIZE.key) for name in each}
    rank = 1 + sum(value > each[OURS] for value in each.values())
    larger = 1 + sum(value > size[OURS] for value in size.values())
    return (
        f"trustgp took {costs.mean((OURS,), 'fit_seconds'):.1f} s to fit, holds {size[OURS]:.1f} MiB and "
        f"takes {each[OURS]:.4f} ms an image: number {rank} of {len(each)} by time, the slowest first, and "
        f"number {larger} by memory, the largest first; the network alone takes {each[SOFTMAX]:.4f} ms and "
        f"{size[SOFTMAX]:.1f} MiB."
    )
