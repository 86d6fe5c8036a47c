"""Ten sentences about all studies, written from the stored numbers; the least favourable comes first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from scipy.special import stdtrit

from ...core.claim import LEVEL, Difference, counts, paired
from .benchmarks import call_ratios
from .cifar import PUBLISHED, SCORES
from .comparisons import HIGHER, OURS, WITNESS, Group, Place, groups
from .stored import Stored, listed, number, short, words

GRU = "GRU"  # in groups that are left to other blocks
PUBLISHED_RIVAL = "FMGP"  # among the lowest published NLL, keeps the network's mean, and is tuned on nothing
NUM_DRAWS = 5  # of calibration images on CIFAR-10
SCENES = {"novel things": "novel objects", "flight": "flights"}  # with which nothing was chosen
SEEN = "on what was seen"  # ends the names of detectors' peers on the features of trustgp
MAX_GROWTH = 2.2  # of a fit's time when its rows double, as promised
BEHIND, LEVEL_WITH, AHEAD = "behind", "level with", "ahead of"


@dataclass(frozen=True)
class Sentence:
    """A statement, and how favourable it is: cases won minus cases lost over all cases, from -1 to 1."""

    text: str
    balance: float


@dataclass(frozen=True)
class Rival:
    """Ours beside one peer: the verdict of each case, after Holm's correction, and the mean difference."""

    name: str
    verdicts: Sequence[str]
    mean: Difference

    @property
    def relation(self) -> str:
        """Relation: ahead only if more cases are won than lost and the mean is better, behind if more are
        lost than won and the mean is not better, else level."""
        if self.balance > 0 and self.mean.verdict == "better":
            return AHEAD
        return BEHIND if self.balance < 0 and self.mean.verdict != "better" else LEVEL_WITH

    @property
    def balance(self) -> float:
        return _balance(self.verdicts)

    @property
    def strength(self) -> tuple[float, float]:
        """Sort key: lowest for the rival that wins most cases, then for the better mean."""
        return self.balance, -self.mean.mean if self.mean.lower_is_better else self.mean.mean


def block(stored: Stored) -> str:
    """The sentences, the least favourable first."""
    made = [compared(group) for group in groups(stored) if GRU not in group.what]
    made += [cifar(stored), calls(stored), detection(stored), scale(stored)]
    ordered = sorted(made, key=lambda one: one.balance)
    return "\n".join(words(f"{place}. {one.text}", indent=3) for place, one in enumerate(ordered, 1))


def compared(group: Group) -> Sentence:
    """Sentence on ours beside the strongest of all peers that have the number in every case."""
    places, key = group.places, group.key
    gaps = [case.gaps(OURS, test, key) for case, test in places]
    everywhere = [peer for peer in gaps[0] if all(peer in one for one in gaps)]
    rivals = [_rival(places, peer, [one[peer].strict for one in gaps], key) for peer in everywhere]
    strongest = min(rivals, key=lambda rival: rival.strength)
    ahead = sum(any(gap.strict == "worse" for gap in one.values()) for one in gaps)
    text = (
        f"By {group.what}, trustgp is **{strongest.relation}** its strongest rival of {len(rivals)}, "
        f"`{strongest.name}`: mean difference {strongest.mean.words(group.digits)}, worse / alike / better "
        f"in {counts(strongest.verdicts)} cases; some rival is better in {ahead} of {len(places)}"
    )
    parts = [case.against(OURS, WITNESS, key, test) for case, test in places]
    if lost := sum(part is not None and part.verdict == "worse" for part in parts):
        text += f", and the witness alone, a part of trustgp, in {lost}"
    return Sentence(f"{text}.", strongest.balance)


def _rival(places: Sequence[Place], peer: str, verdicts: Sequence[str], key: str) -> Rival:
    """Rival with these verdicts; the means over all cases are compared seed by seed."""
    means = []
    for method in (OURS, peer):
        values = (case.values(method, key, test) or () for case, test in places)
        means.append([fmean(seed) for seed in zip(*values, strict=True)])
    overlap = max(case.overlap(test) for case, test in places)
    return Rival(peer, verdicts, paired(*means, overlap=overlap, lower_is_better=key not in HIGHER))


def cifar(stored: Stored) -> Sentence:
    """Sentence on the default beside published figures, by the interval over draws of calibration images."""
    figures = stored.benchmark("cifar-cuda")["figures"]
    small, large = (one["means and deviations"] for one in figures.values())
    ours = {f"{title}, ResNet-20": small["default"][key] for key, title in SCORES.items()}
    ours["NLL, ResNet-56"] = large["default"]["nll"]
    half = float(stdtrit(NUM_DRAWS - 1, 0.5 + LEVEL / 2)) / math.sqrt(NUM_DRAWS)
    parts, verdicts = [], []
    for (what, (mean, deviation)), published in zip(ours.items(), PUBLISHED[PUBLISHED_RIVAL], strict=False):
        gap = mean - float(published)
        verdicts.append("alike" if abs(gap) <= half * deviation else "worse" if gap > 0 else "better")
        parts.append(f"{what} {number(mean, len(published) - 2)} against {published}, {verdicts[-1]}")
    one = [number(of["one temperature"]["nll"][0], 4) for of in (small, large)]
    text = (
        f"Beside {PUBLISHED_RIVAL}'s published figures on CIFAR-10 the default is worse / alike / better in "
        f"{counts(verdicts)} ({'; '.join(parts)}); it is calibrated on 1,000 test images, the other on "
        f"none, and one temperature, fitted to the same images, has an NLL of {listed(one)}."
    )
    return Sentence(text, _balance(verdicts))


def _balance(verdicts: Sequence[str]) -> float:
    return (verdicts.count("better") - verdicts.count("worse")) / len(verdicts)


def calls(stored: Stored) -> Sentence:
    """Sentence on the time of a call of the default over one of an ensemble of five."""
    parts, verdicts = [], []
    for where, values in call_ratios(stored).items():
        verdicts += ["worse" if ratio > 1 else "better" for ratio in values]
        low, high = (number(end(values)) for end in (min, max))
        longer = sum(ratio > 1 for ratio in values)
        parts.append(f"{longer} of {len(values)} cases on {where} ({low} to {high} times as long)")
    text = "A call with one row takes longer than one of five networks in the same runtime in"
    return Sentence(f"{text} {listed(parts)}.", _balance(verdicts))


def detection(stored: Stored) -> Sentence:
    """Sentence on the AUROC over detectors beside the best peer, each method by its best score."""
    told = stored.numbers("detection")["worlds"]["scenes"]["told"]
    seeds = {method: {test: _best(tests[test]) for test in SCENES} for method, tests in told.items()}
    parts, verdicts = [], []
    for test, name in SCENES.items():
        peers = {method: by[test] for method, by in seeds.items() if method != OURS}
        best = max(peers, key=lambda method: fmean(peers[method]))
        gap = paired(seeds[OURS][test], peers[best], lower_is_better=False)
        verdicts.append(gap.verdict)
        areas = f"AUROC {number(fmean(seeds[OURS][test]), 3)}, difference {gap.words(3)}"
        relation = {"worse": BEHIND, "alike": LEVEL_WITH, "better": AHEAD}[gap.verdict]
        peer = f"`{best}`{' with features of trustgp' if best.endswith(SEEN) else ''}"
        parts.append(f"{name} trustgp is **{relation}** the best peer, {peer} ({areas})")
    over = stored.numbers("detection")["times"][OURS]["over"]
    cost = f"a call takes {number(over)} times as long as the plain detector's"
    found = " and ".join(f"on {one}" for one in parts)
    return Sentence(f"With detectors, {found}; {cost}.", _balance(verdicts))


def _best(scores: dict) -> list[float]:
    """AUROC of each detector by the score with the highest mean."""
    return max((one["auroc"] for one in scores.values()), key=lambda area: area["mean"])["seeds"]


def scale(stored: Stored) -> Sentence:
    """Sentence on the growth of a fit's time with the rows, beside what was promised."""
    entries = stored.numbers("scale")["seeds"][0]
    growth = max(after["seconds"] / before["seconds"] for before, after in pairwise(entries))
    kept, last = growth <= MAX_GROWTH, entries[-1]
    device = stored.study("scale")["provenance"]["device"]
    text = (
        f"Twice the rows take at most {number(growth)} times as long to fit, where {MAX_GROWTH} was promised "
        f"({'kept' if kept else 'not kept'}); {last['rows']:,} rows take {short(last['seconds'])} s on "
        f"{device}."
    )
    return Sentence(text, 1.0 if kept else -1.0)
