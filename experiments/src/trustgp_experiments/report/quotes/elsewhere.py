"""Where trustgp loses outside the arms' networks of single states: sequences and classes; times of calls."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...datasets import IMAGE_SETS
from .comparisons import IN_DOMAIN, OURS, StoredCase, other_tests, stored_cases
from .stored import NotRun, Stored, listed

DEFAULT = "trustgp default"  # as the study of run time calls it
MAX_NAMED = 3  # peers
Place = tuple[StoredCase, str]  # a case, and one of its test sets


def sequences(stored: Stored) -> list[str]:
    """Peers of a recurrent network with the lower NLL, on new motions and on other arms."""
    found = stored_cases(stored, "sequence")

    def where(place: Place) -> str:
        case, test = place
        return case.about["trained"] + (f" on {test}" if test != IN_DOMAIN else "")

    groups = {"new motions": [(case, IN_DOMAIN) for case in found], "other arms": list(other_tests(found))}
    ahead = {name: _ahead(places, "nll", where) for name, places in groups.items()}
    lost = [f"{name} ({len(groups[name])} cases): lower NLL have {one}" for name, one in ahead.items() if one]
    return [f"Sequences, a GRU over windows; {'; '.join(lost)}."] if lost else []


def classes(stored: Stored) -> list[str]:
    """Peers with the lower NLL of labelled images, and those that detect novel ones better."""
    found = stored_cases(stored, "classification")

    def where(place: Place) -> str:
        case, test = place
        data, _, eight = case.name.partition("-")
        named = IMAGE_SETS.get(data, data) + (" of eight classes" if eight else "")
        return named + (f", {test}" if test != IN_DOMAIN else "")

    both = [(case, test) for case in found for test in case.tests]
    labelled, novel = (
        [(case, test) for case, test in both if case.values(OURS, key, test) is not None]
        for key in ("nll", "auroc")
    )
    sentences = []
    if lost := _ahead(labelled, "nll", where, digits=3):
        sets = f"{len(labelled)} sets of images, familiar, turned or noisy"
        sentences.append(f"Classes, {sets}: lower NLL have {lost}.")
    if lost := _ahead(novel, "auroc", where, digits=3):
        sentences.append(f"Classes, {len(novel)} sets of novel images: higher AUROC have {lost}.")
    return sentences


def call_ratios(stored: Stored) -> dict[str, list[float]]:
    """By machine: the time of a call of the default with one row over that of five networks."""
    found = {}
    for study, where in (("runtime", "a CPU"), ("runtime-cuda", "a GPU")):
        with suppress(NotRun):
            found[where] = [
                entry["over_ensemble"]
                for seeds in stored.numbers(study)["networks"].values()
                for entry in seeds[0]["entries"]
                if (entry["batch"], entry["threads"], entry["method"]) == (1, 1, DEFAULT)
                and entry["over_ensemble"] is not None
            ]
    return found


def _ahead(places: Sequence[Place], key: str, where: Callable[[Place], str], *, digits: int = 2) -> str:
    """In how many places each peer is ahead beyond the interval, and where by most; empty where none is."""
    found = [(peer, abs(gap.mean), place) for place in places for peer, gap in place[0].ahead(place[1], key)]
    if not found:
        return ""
    counts = Counter(peer for peer, _, _ in found)
    peer, gap, place = max(found, key=lambda one: one[1])
    most = [f"`{name}` in {count}" for name, count in counts.most_common(MAX_NAMED)]
    return f"{listed(most)}, by most `{peer}` by {gap:.{digits}f} ({where(place)})"
