"""Where trustgp loses outside the arms' networks of single states: sequences, classes and calls."""

from collections import Counter
from collections.abc import Callable, Sequence

from ...datasets import IMAGE_SETS
from .comparisons import IN_DOMAIN, OURS, StoredCase, other_tests, stored_cases
from .stored import NotRun, Stored, listed, number

DEFAULT = "trustgp default"  # as the study of run time calls it
MAX_NAMED = 3  # peers, or sets of images
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
    ahead = [one for place in novel if (one := _better_mean(place)) is not None]
    if ahead:
        worst = [
            f"{where(place)} ({number(ours, 3)}, `{peer}` {number(best, 3)})"
            for ours, best, place, peer in sorted(ahead, key=lambda one: one[0] - one[1])[:MAX_NAMED]
        ]
        sentences.append(
            f"Classes, novel images: the mean AUROC of a peer, if not beyond the interval, is the higher in "
            f"{len(ahead)} of {len(novel)} sets, by most {listed(worst)}."
        )
    return sentences


def calls(stored: Stored) -> list[str]:
    """Where a call of the default with one row takes longer than five networks in the same runtime."""
    found = []
    for study, where in (("runtime", "a CPU"), ("runtime-cuda", "a GPU")):
        try:
            networks = stored.numbers(study)["networks"]
        except NotRun:
            continue
        ratios = [
            (entry["over_ensemble"], f"{network} in {entry['runtime']}")
            for network, seeds in networks.items()
            for entry in seeds[0]["entries"]
            if (entry["batch"], entry["threads"], entry["method"]) == (1, 1, DEFAULT)
            and entry["over_ensemble"] is not None
        ]
        if slower := sum(ratio > 1 for ratio, _ in ratios):
            most, case = max(ratios)
            share = f"in {slower} of {len(ratios)} on {where}"
            found.append(f"{share}, by most {number(most, 1)} times ({case})")
    text = "A call with one row takes longer than five networks in the same runtime"
    return [f"{text}: {'; '.join(found)}."] if found else []


def _ahead(places: Sequence[Place], key: str, where: Callable[[Place], str], *, digits: int = 2) -> str:
    """In how many places each peer is ahead beyond the interval, and where by most; empty where none is."""
    found = [(peer, abs(gap.mean), place) for place in places for peer, gap in place[0].ahead(place[1], key)]
    if not found:
        return ""
    counts = Counter(peer for peer, _, _ in found)
    peer, gap, place = max(found, key=lambda one: one[1])
    most = [f"`{name}` in {count}" for name, count in counts.most_common(MAX_NAMED)]
    return f"{listed(most)}, by most `{peer}` by {gap:.{digits}f} ({where(place)})"


def _better_mean(place: Place) -> tuple[float, float, Place, str] | None:
    """Our AUROC by the declared score, that of the best peer alike with us, where, and whose."""
    case, test = place
    ahead = {peer for peer, _ in case.ahead(test, "auroc")}
    scores = {name: case.mean(name, "auroc", test) for name in [OURS, *case.peers] if name not in ahead}
    means = {method: score for method, score in scores.items() if score is not None}
    best = max(means, key=means.__getitem__)
    return None if best == OURS else (means[OURS], means[best], place, best)
