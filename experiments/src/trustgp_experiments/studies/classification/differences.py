"""trustgp beside one peer at one place: paired differences over seeds, and how to say them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...core.cases import OURS
from ...core.claim import Difference, mean_spread, paired, words
from ...core.grid import Grid
from .pairs import Pair

ORDER = {"worse": 0, "alike": 1, "better": 2}


def there(grid: Grid, pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs that were measured."""
    known = set(grid.along("trained", "tested"))
    return [pair for pair in pairs if pair in known]


@dataclass(frozen=True)
class Compared:
    """trustgp beside one peer at one place."""

    where: str
    measure: str  # as it is printed
    rival: str
    ours: Sequence[float]  # one a seed
    theirs: Sequence[float]
    difference: Difference

    @property
    def sentence(self) -> str:
        """With the numbers of both."""
        return (
            f"{self.where}: {self.measure} {shown(self.ours)}, {self.difference.verdict} "
            f"{'than' if self.difference.verdict != 'alike' else 'with'} the best peer ({self.rival}, "
            f"{shown(self.theirs)}); difference {self.difference.words(4)}."
        )

    @property
    def rank(self) -> tuple[int, float]:
        """What speaks against us first: the verdict, then how far 0 lies from the interval's middle."""
        half = (self.difference.high - self.difference.low) / 2
        against = self.difference.mean if self.difference.lower_is_better else -self.difference.mean
        size = against / half if half > 0 and math.isfinite(half) else against
        return ORDER[self.difference.verdict], -size if math.isfinite(size) else -math.copysign(1e300, size)


def shown(values: Sequence[float]) -> str:
    """Mean and spread over seeds."""
    return words(mean_spread(values), 4) if all(map(math.isfinite, values)) else "infinite"


def compare(grid: Grid, place: Pair, key: str, where: str) -> Iterator[Compared]:
    """With every peer that was measured there."""
    lower = key != "auroc"
    for method in grid.along("method"):
        sides = [grid.values((*place, one), key) for one in (OURS, method)]
        if method != OURS and sides[0] is not None and sides[1] is not None:
            ours, theirs = ([float(value) for value in side] for side in sides if side is not None)
            found = paired(ours, theirs, lower_is_better=lower)
            yield Compared(where, key.upper(), method, ours, theirs, found)


def best_peer(found: Sequence[Compared]) -> Compared:
    """Beside the peer of the best mean: chosen on what is tested, in the peers' favour."""
    sign = 1 if found[0].difference.lower_is_better else -1
    return min(found, key=lambda one: sign * math.fsum(one.theirs))
