"""What the classification study shows, in sentences made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from .classification_rows import NAMES, UNIFORM, foreign_to, shifts_of
from .classification_scores import SCORES
from .classification_tables import WORDS, ClassCells, mean_of, methods_of, tests_of, trained_of
from .summaries import mean_spread, words
from .transfer_findings import verdict
from .transfer_rows import IN_DOMAIN

OURS, TEMPERATURE, ENSEMBLE, SOFTMAX = "trustgp", "temperature scaling", "ensemble of 5", "softmax"
WANTED = 0.99  # AUROC of the latent variance


def class_findings(cells: ClassCells, costs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """One sentence each.

    Args:
        cells: Of the study.
        costs: Seconds of each method with the machine to itself.
    """
    found = [_told(cells, trained, foreign_to(trained)) for trained in trained_of(cells)]
    found += [
        _told(cells, trained, UNIFORM) for trained in trained_of(cells) if UNIFORM in tests_of(cells, trained)
    ]
    found += [_as_good(cells, key, name) for key, name in (("nll", "NLL"), ("ece", "ECE"))]
    found += [_distorted(cells, rival) for rival in (TEMPERATURE, ENSEMBLE)]
    return [*found, _same_classes(cells), _cost(costs)]


def _told(cells: ClassCells, trained: str, test: str) -> str:
    """Is the latent variance as good as wanted, and better than every score of every peer?"""
    ours = cells[trained, test, OURS]["auroc_variance"]
    value = mean_of(cells, (trained, test, OURS), "auroc_variance")
    assert value is not None
    rivals = {
        (method, score): mean
        for method in methods_of(cells)
        for score in SCORES
        if method != OURS and (mean := mean_of(cells, (trained, test, method), f"auroc_{score}")) is not None
    }
    (method, score), best = max(rivals.items(), key=lambda entry: entry[1])
    own = mean_of(cells, (trained, test, OURS), "auroc_entropy")
    bar = "at least" if value >= WANTED else "below"
    rank = "above" if value > best else "not above"
    return (
        f"Trained on {NAMES[trained]}, against {NAMES.get(test, test)}: the latent variance of trustgp has "
        f"an AUROC of {words(mean_spread(ours), 4)}, {bar} {WANTED}, and {rank} every peer (best: {method} "
        f"by {WORDS[score]}, {best:.4f}). By the entropy of its probabilities it has {own:.4f}."
    )


def _as_good(cells: ClassCells, key: str, name: str) -> str:
    lost = []
    for trained in trained_of(cells):
        ours, theirs = (mean_of(cells, (trained, IN_DOMAIN, method), key) for method in (OURS, TEMPERATURE))
        assert ours is not None
        assert theirs is not None
        if ours > theirs:
            lost.append(f"{NAMES[trained]} ({ours:.4f} against {theirs:.4f})")
    claim = f"On images like those that trained, trustgp has no higher {name} than temperature scaling"
    return verdict(claim, len(trained_of(cells)), lost)


def _distorted(cells: ClassCells, rival: str) -> str:
    lost, count = [], 0
    for trained in trained_of(cells):
        for test in shifts_of(tests_of(cells, trained)):
            count += 1
            ours, theirs = (mean_of(cells, (trained, test, method), "nll") for method in (OURS, rival))
            assert ours is not None
            assert theirs is not None
            if ours > theirs:
                lost.append(f"{test} ({ours:.3f} against {theirs:.3f})")
    return verdict(f"On distorted images trustgp has a lower NLL than {rival}", count, lost)


def _same_classes(cells: ClassCells) -> str:
    pairs = [
        (cells[trained, test, OURS]["accuracy"], cells[trained, test, SOFTMAX]["accuracy"])
        for trained in trained_of(cells)
        for test in tests_of(cells, trained)
        if "accuracy" in cells[trained, test, OURS]
    ]
    same = sum(ours == own for ours, own in pairs)
    return f"trustgp has exactly the network's accuracy, in {same} of {len(pairs)} sets of labelled images."


def _cost(costs: Mapping[str, Mapping[str, float]]) -> str:
    fit = {name: cost["fit_seconds"] for name, cost in costs.items()}
    each = {name: 1000 * cost["predict_seconds"] for name, cost in costs.items()}
    slowest = max((name for name in each if name != OURS), key=each.__getitem__)
    return (
        f"trustgp took {fit[OURS]:.1f} s to fit and {each[OURS]:.3f} ms an image; the network alone "
        f"{each[SOFTMAX]:.4f} ms, the slowest peer ({slowest}) {each[slowest]:.3f} ms."
    )
