"""Methods compared case by case and seed by seed, from the numbers of a study with peers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ...core.claim import Difference, paired
from .stored import NotRun, Stored

IN_DOMAIN = "in domain"
OURS, CORRECTED = "trustgp", "trustgp corrected"
HIGHER = ("auroc",)  # measures of which more is better
GIVEN = ("classification",)  # studies whose test rows were given with the data: none trains in another seed


@dataclass(frozen=True)
class StoredCase:
    """One training set of a study: its name in words, and the stored part of each seed."""

    about: Mapping[str, str]  # such as trained: "sarcos", split: "random"
    seeds: Sequence[Mapping[str, Any]]
    drawn: bool = True  # whether each seed draws its test rows from all there are

    @property
    def name(self) -> str:
        """ "sarcos random"."""
        return " ".join(self.about.values())

    @property
    def methods(self) -> list[str]:
        """Those of all seeds, in their order."""
        return [m for m in self.seeds[0]["methods"] if all(m in seed["methods"] for seed in self.seeds)]

    @property
    def tests(self) -> list[str]:
        """Names of the test sets."""
        first = next(iter(self.seeds[0]["methods"].values()))
        return list(first["tests"])

    def overlap(self, test: str = IN_DOMAIN) -> float:
        """Test rows over training rows, which seeds draw from the same ones; 0 of rows that never train."""
        sizes = self.seeds[0].get("sizes")
        if not sizes or not self.drawn or test != IN_DOMAIN:
            return 0.0
        return sizes[IN_DOMAIN] / sizes["train"]

    def values(self, method: str, key: str, test: str = IN_DOMAIN) -> list[float] | None:
        """A number for each seed, of a test set or of the method itself; None where one is missing."""
        found = []
        for seed in self.seeds:
            stored = seed["methods"].get(method, {})
            found.append(stored.get("tests", {}).get(test, {}).get(key, stored.get(key)))
        return None if any(value is None for value in found) else [float(value) for value in found]

    def mean(self, method: str, key: str, test: str = IN_DOMAIN) -> float | None:
        """Over seeds."""
        values = self.values(method, key, test)
        return None if values is None else fmean(values)

    def against(self, ours: str, theirs: str, key: str = "nll", test: str = IN_DOMAIN) -> Difference | None:
        """Ours minus theirs, seed by seed; None where one of them has no such number."""
        mine, other = self.values(ours, key, test), self.values(theirs, key, test)
        if mine is None or other is None:
            return None
        return paired(mine, other, overlap=self.overlap(test), lower_is_better=key not in HIGHER)


def cases(stored: Stored, study: str) -> list[StoredCase]:
    """The cases of a study, in their order."""
    found = []
    for run in stored.numbers(study)["runs"]:
        about = {key: str(value) for key, value in run.items() if isinstance(value, str | int | float)}
        found.append(StoredCase(about, run["seeds"], drawn=study not in GIVEN))
    return found


def stored_cases(stored: Stored, study: str) -> list[StoredCase]:
    """The same; none, if the study was not run."""
    try:
        return cases(stored, study)
    except NotRun:
        return []


def splits_of(found: Sequence[StoredCase]) -> dict[str, list[StoredCase]]:
    """Cases by how their rows were split."""
    splits: dict[str, list[StoredCase]] = {}
    for case in found:
        splits.setdefault(case.about["split"], []).append(case)
    return splits


def methods_of(found: Sequence[StoredCase]) -> list[str]:
    """All methods of some cases, in the order in which they come."""
    return list(dict.fromkeys(method for case in found for method in case.methods))


def peers_of(case: StoredCase) -> list[str]:
    """Everything that is not ours, nor a form of it."""
    return [method for method in case.methods if not method.startswith(OURS)]


def average(found: Sequence[StoredCase], method: str, key: str, test: str = IN_DOMAIN) -> float | None:
    """Mean over cases of the means over seeds; None where the method has no such number in one of them."""
    values = [case.mean(method, key, test) for case in found]
    present = [value for value in values if value is not None]
    return fmean(present) if values and len(present) == len(values) else None


def better_than_ours(
    case: StoredCase, ours: str, test: str = IN_DOMAIN, *, key: str = "nll"
) -> list[tuple[str, Difference]]:
    """Peers that are ahead of ours beyond the interval, the furthest first."""
    gaps = [(peer, case.against(ours, peer, key, test)) for peer in peers_of(case)]
    ahead = [(peer, gap) for peer, gap in gaps if gap is not None and gap.verdict == "worse"]
    return sorted(ahead, key=lambda one: -abs(one[1].mean))


def mostly_better(case: StoredCase, ours: str) -> list[str]:
    """Peers with the lower NLL in most seeds, beyond the interval or not."""
    values = case.values(ours, "nll") or []
    peers = {peer: case.values(peer, "nll") or [] for peer in peers_of(case)}
    lower = {peer: sum(b < a for a, b in zip(values, theirs, strict=False)) for peer, theirs in peers.items()}
    return [peer for peer, count in lower.items() if 2 * count > len(values)]


def other_tests(found: Sequence[StoredCase]) -> Iterator[tuple[StoredCase, str]]:
    """Every case with every test set of another origin."""
    return ((case, test) for case in found for test in case.tests if test != IN_DOMAIN)
