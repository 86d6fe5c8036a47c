"""Where trustgp loses outside the arms: classes and detectors, in a sentence each."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from .comparisons import OURS, StoredCase, better_than_ours, cases, other_tests, peers_of
from .detection import behind
from .stored import NotRun, Stored, listed, number

TOLD = "auroc"  # how the names of scores begin that tell foreign rows from familiar ones


def classes(stored: Stored) -> list[str]:
    """Likelihood of familiar images, and foreign ones told by each method's best score."""
    try:
        found = cases(stored, "classification")
    except NotRun:
        return []
    lost = []
    for case in found:
        lost += [
            f"`{peer}` by {gap.mean:.3f}, trained on {case.name}"
            for peer, gap in better_than_ours(case, OURS)
        ]
    sentences = (
        [f"Classes, NLL of images like those that trained: lower have {'; '.join(lost)}."] if lost else []
    )
    places = list(other_tests(found))
    ahead = [one for case, test in places if (one := _better_told(case, test)) is not None]
    ahead.sort(key=lambda one: one[0] - one[1])
    if ahead:
        worst = [
            f"{where} ({number(ours, 3)}, `{peer}` {number(best, 3)})"
            for ours, best, where, peer in ahead[:3]
        ]
        sentences.append(
            "Classes, foreign or changed images told by each method's best score: a peer has the higher "
            "AUROC in "
            f"{len(ahead)} of {len(places)} sets, by most in {listed(worst)}."
        )
    return sentences


def _better_told(case: StoredCase, test: str) -> tuple[float, float, str, str] | None:
    """Our AUROC, that of the best peer, where, and whose; None where ours is the highest, or there is "
    "none."""
    scores = {method: _told(case, method, test) for method in [OURS, *peers_of(case)]}
    known = {method: score for method, score in scores.items() if score is not None}
    if OURS not in known or len(known) < 2:
        return None
    best = max(known, key=known.__getitem__)
    return None if best == OURS else (known[OURS], known[best], f"{case.name} against {test}", best)


def _told(case: StoredCase, method: str, test: str) -> float | None:
    """Mean over seeds of the best of the method's scores, which is the same for all seeds."""
    keys = [
        key
        for key in case.seeds[0]["methods"].get(method, {}).get("tests", {}).get(test, {})
        if key.startswith(TOLD)
    ]
    means = [fmean(values) for key in keys if (values := case.values(method, key, test)) is not None]
    return max(means, default=None)


def detectors(stored: Stored) -> list[str]:
    """Scores by which another method is ahead."""
    try:
        worlds: Mapping[str, Any] = stored.numbers("detection")["worlds"]
    except NotRun:
        return []
    lost = behind(worlds["scenes"])
    return [f"Detectors: {' '.join(lost)}"] if lost else []
