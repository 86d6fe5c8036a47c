"""Tables and claims of the sequence study."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.cases import IN_DOMAIN, METHOD
from ...core.claim import Check, Claim, at_most, within
from ...core.grid import Grid, Place
from ...core.pivot import Pivot
from ...core.result import Table
from ..transfer.findings import CORRECTED, COVERED, ENSEMBLE, OURS
from ..transfer.scores import NLL, everything, others

NOISE = "network + noise"
SPLIT = "unseen"  # the only one here


def sequence_tables(grid: Grid) -> list[Table]:
    """The headline, then everything by arm."""
    arms = grid.along("trained")
    near, far = _places(grid)
    columns = sorted((*near, *far), key=lambda place: arms.index(place[0]))  # the arm's own first
    measures = [
        NLL.at(_words(place), digits=3 if place in near else 2, trained=place[0], tested=place[2])
        for place in columns
    ]
    note = "A column that names one arm is of new motions of that arm; the others are zero shot."
    headline = Pivot("NLL per torque", METHOD, measures, {"split": SPLIT}, note=note)
    return [
        pivot.table(grid) for pivot in (headline, *(everything(f"trained on {a}", a, SPLIT) for a in arms))
    ]


def claims(grid: Grid) -> list[Claim]:
    """In the order of the report."""
    near, far = _places(grid)

    def lower(places: Sequence[Place], ours: str, theirs: str, key: str) -> list[Check]:
        pairs = {p: [grid.mean((*p, method), key) for method in (ours, theirs)] for p in places}
        return [at_most(_words(p), mine, other, strict=True) for p, (mine, other) in pairs.items()]

    covers = f"covers {100 * COVERED[0]:.0f} to {100 * COVERED[1]:.1f} %"
    shares = {_words(place): grid.mean((*place, OURS), "coverage") for place in near}
    return [
        Claim("On new motions trustgp has a lower NLL than constant noise", lower(near, OURS, NOISE, "nll")),
        Claim("On new motions it has a lower NLL than five networks", lower(near, OURS, ENSEMBLE, "nll")),
        Claim("The corrected mean has a lower mse than the network", lower(near, CORRECTED, NOISE, "mse")),
        Claim("On other arms trustgp has a lower NLL than five networks", lower(far, OURS, ENSEMBLE, "nll")),
        Claim(
            f"On new motions the 95 % interval of trustgp {covers}",
            [within(arm, share, *COVERED) for arm, share in shares.items()],
        ),
    ]


def _places(grid: Grid) -> tuple[list[Place], list[Place]]:
    """Of every arm: its own new motions; and the other arms."""
    arms = grid.along("trained")
    near = [(arm, SPLIT, IN_DOMAIN) for arm in arms]
    return near, [(arm, SPLIT, test) for arm in arms for test in others(grid, arm, SPLIT)]


def _words(place: Place) -> str:
    trained, _, test = place
    return trained if test == IN_DOMAIN else f"{trained} on {test}"
