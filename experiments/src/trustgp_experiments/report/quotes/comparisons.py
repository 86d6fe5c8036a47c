"""Methods compared case by case and seed by seed, from the numbers of a study with peers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ...core.claim import Difference, correct, paired
from .stored import NotRun, Stored

IN_DOMAIN = "in domain"
OURS, CORRECTED, WITNESS = "trustgp", "trustgp corrected", "witness alone"
SPLITS = ("new motions", "known motions")
CHOSEN_WITH = ("mnist", "fashion_mnist", "uniform noise")  # novel images that were looked at for choices
HIGHER = ("auroc",)  # measures of which more is better
GIVEN = ("classification",)  # studies with a fixed test set, none of whose rows trains in another seed


@dataclass(frozen=True)
class StoredCase:
    """One training set of a study: its name in words, and the stored part of each seed."""

    about: Mapping[str, str]  # such as trained: "sarcos", split: "new motions"
    seeds: Sequence[Mapping[str, Any]]
    drawn: bool = True  # whether each seed draws its test rows from all there are

    @property
    def name(self) -> str:
        return ", ".join(self.about.values())

    @property
    def methods(self) -> list[str]:
        return [m for m in self.seeds[0]["methods"] if all(m in seed["methods"] for seed in self.seeds)]

    @property
    def peers(self) -> list[str]:
        """Methods other than trustgp, its forms and its parts."""
        return [method for method in self.methods if not method.startswith((OURS, WITNESS))]

    @property
    def tests(self) -> list[str]:
        return list(next(iter(self.seeds[0]["methods"].values()))["tests"])

    def values(self, method: str, key: str, test: str = IN_DOMAIN) -> list[float] | None:
        """Values by seed, of a test set or of the method itself; None if one is missing."""
        parts = [seed["methods"].get(method, {}) for seed in self.seeds]
        values = [part.get("tests", {}).get(test, {}).get(key, part.get(key)) for part in parts]
        return None if None in values else [float(value) for value in values]

    def mean(self, method: str, key: str, test: str = IN_DOMAIN) -> float | None:
        values = self.values(method, key, test)
        return None if values is None else fmean(values)

    def against(self, ours: str, theirs: str, key: str = "nll", test: str = IN_DOMAIN) -> Difference | None:
        """Difference of ours minus theirs, seed by seed; None if one of them lacks the number."""
        own, other = self.values(ours, key, test), self.values(theirs, key, test)
        if own is None or other is None:
            return None
        return paired(own, other, overlap=self.overlap(test), lower_is_better=key not in HIGHER)

    def overlap(self, test: str = IN_DOMAIN) -> float:
        """Ratio of test to training rows where seeds draw both from the same rows; else 0."""
        sizes = self.seeds[0].get("sizes") if self.drawn and test == IN_DOMAIN else None
        return sizes[IN_DOMAIN] / sizes["train"] if sizes else 0.0

    def gaps(self, ours: str, test: str = IN_DOMAIN, key: str = "nll") -> dict[str, Difference]:
        """Differences of ours minus each peer's, corrected for the number of peers."""
        gaps = {peer: self.against(ours, peer, key, test) for peer in self.peers}
        return correct({peer: gap for peer, gap in gaps.items() if gap is not None})

    def ahead(self, test: str = IN_DOMAIN, key: str = "nll") -> list[tuple[str, Difference]]:
        """Peers that are better than ours beyond the interval, the furthest first."""
        ahead = [one for one in self.gaps(OURS, test, key).items() if one[1].verdict == "worse"]
        return sorted(ahead, key=lambda one: -abs(one[1].mean))


Place = tuple[StoredCase, str]  # a case, and one of its test sets


def cases(stored: Stored, study: str) -> list[StoredCase]:
    """The cases of a study, in their order."""
    runs, drawn = [dict(run) for run in stored.numbers(study)["runs"]], study not in GIVEN
    return [StoredCase(seeds=run.pop("seeds"), about=run, drawn=drawn) for run in runs]


def stored_cases(stored: Stored, study: str) -> list[StoredCase]:
    """Cases of a study; an empty list if it was not run."""
    with suppress(NotRun):
        return cases(stored, study)
    return []


def kinds_of(found: Sequence[StoredCase]) -> dict[str, list[Place]]:
    """Places by kind: new motions, other arms and known motions."""
    new, known = ([case for case in found if case.about["split"] == split] for split in SPLITS)
    own = [[(case, IN_DOMAIN) for case in part] for part in (new, known)]
    kinds = {SPLITS[0]: own[0], "other arms": list(other_tests(new)), SPLITS[1]: own[1]}
    return {kind: places for kind, places in kinds.items() if places}


def other_tests(found: Sequence[StoredCase]) -> Iterator[Place]:
    """Places of every case with every test set of another origin."""
    return ((case, test) for case in found for test in case.tests if test != IN_DOMAIN)


@dataclass(frozen=True)
class Group:
    """Places that are compared by one measure."""

    what: str  # the measure, and where
    places: Sequence[Place]
    key: str = "nll"
    digits: int = 2


def groups(stored: Stored) -> list[Group]:
    """Groups of all stored studies with peers; novel images are those that were used for no choice."""
    kinds = kinds_of(stored_cases(stored, "transfer"))
    tables, sequence = stored_cases(stored, "tables"), stored_cases(stored, "sequence")
    images = {
        key: [
            (case, test)
            for case in stored_cases(stored, "classification")
            for test in case.tests
            if test not in CHOSEN_WITH and case.values(OURS, key, test) is not None
        ]
        for key in ("nll", "auroc")
    }
    every = [
        Group("NLL on new motions", kinds.get(SPLITS[0], ())),
        Group("NLL on other arms, zero shot", kinds.get("other arms", ())),
        Group("NLL on known motions, which measures memory", kinds.get(SPLITS[1], ())),
        Group(f"NLL on {len(tables)} tables", [(case, IN_DOMAIN) for case in tables]),
        Group("NLL of a GRU over windows, new motions", [(case, IN_DOMAIN) for case in sequence]),
        Group("NLL of a GRU over windows, other arms", list(other_tests(sequence))),
        Group("NLL of labelled images, familiar, turned or noisy", images["nll"], digits=3),
        Group("AUROC of novel images", images["auroc"], "auroc", digits=3),
    ]
    return [group for group in every if group.places]
