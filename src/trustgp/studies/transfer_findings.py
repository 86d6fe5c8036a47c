"""What the transfer study shows, in sentences made from its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import pstdev

from .transfer_rows import IN_DOMAIN
from .transfer_tables import Cells, average, methods_of, tests_of, trainings_of

OURS, CORRECTED, ENSEMBLE = "trustgp", "trustgp corrected", "ensemble of 5"
PAPER, ALONE = "trustgp paper form", "GP on inputs, no network"
FAMILY = "trustgp"  # what other readings and forms of our own begin with
LOWEST, HIGHEST = 0.90, 0.985  # coverage of a 95 % interval that passes


def findings(cells: Cells) -> list[str]:
    """One sentence each."""
    return [
        _among_training_free(cells),
        _against_ensemble(cells),
        _corrected(cells),
        _zero_shot(
            cells,
            [method for method in _peers(cells, training_free=False) if method != ALONE],
            "On other arms trustgp is best or second of the methods that put an error bar on a network",
        ),
        _zero_shot(
            cells,
            [method for method in methods_of(cells) if not method.startswith(FAMILY) or method == PAPER],
            "The same, where the paper's form and the GP without a network, whose mean is its own, count too",
        ),
        _covered(cells),
    ]


def _nll(cells: Cells, trained: str, split: str, test: str, method: str) -> float:
    return average(cells[trained, split, test, method]["nll"])


def _peers(cells: Cells, *, training_free: bool) -> list[str]:
    """Methods that are not ours, as far as they need no further network where that is asked."""
    known = {method: cell["training_free"] for (_, _, _, method), cell in cells.items()}
    return [m for m in methods_of(cells) if not m.startswith(FAMILY) and (known[m] or not training_free)]


def _spread(cells: Cells, trained: str, split: str, test: str, method: str) -> float:
    values = cells[trained, split, test, method]["nll"]
    return 0.0 if average(values) == math.inf else pstdev(values)


def _among_training_free(cells: Cells) -> str:
    peers = _peers(cells, training_free=True)
    lost = []
    for at in trainings_of(cells):
        best = min(peers, key=lambda method: _nll(cells, *at, IN_DOMAIN, method))
        ours, theirs = (_nll(cells, *at, IN_DOMAIN, method) for method in (OURS, best))
        if ours > theirs + _spread(cells, *at, IN_DOMAIN, OURS):
            lost.append(f"{_name(at)} ({ours:.3f} against {theirs:.3f} of {best})")
    return _verdict(
        "In domain, trustgp (the network's own prediction) is best or within one spread of the best method "
        "that needs no further network",
        len(trainings_of(cells)),
        lost,
    )


def _against_ensemble(cells: Cells) -> str:
    return _verdict(
        "In domain, trustgp about the network's own prediction is no worse in NLL than five networks",
        *_lost(cells, lambda at: _compare(cells, at, OURS, "nll", 1.0)),
    )


def _corrected(cells: Cells) -> str:
    lost, count = [], 0
    for at in trainings_of(cells):
        if at[1] == "random":
            count += 1
            worse = [_compare(cells, at, CORRECTED, key, 1.0) for key in ("nll", "mse")]
            lost += [f"{_name(at)}: {text}" for text in worse if text]
    return _verdict("On random splits trustgp corrected beats five networks in NLL and mse", count, lost)


def _zero_shot(cells: Cells, rivals: list[str], claim: str) -> str:
    lost, count = [], 0
    for at in trainings_of(cells):
        for test in tests_of(cells, *at):
            if test == IN_DOMAIN:
                continue
            count += 1
            ours = _nll(cells, *at, test, OURS)
            better = [method for method in rivals if _nll(cells, *at, test, method) < ours]
            if len(better) > 1:
                lost.append(f"{_name(at)} on {test} (behind {', '.join(better)})")
    return _verdict(claim, count, lost)


def _covered(cells: Cells) -> str:
    def outside(at: tuple[str, str]) -> str:
        texts = []
        for method in (OURS, CORRECTED):
            share = average(cells[*at, IN_DOMAIN, method]["coverage"])
            if not LOWEST <= share <= HIGHEST:
                texts.append(f"{method} {100 * share:.1f} %")
        return ", ".join(texts)

    count, lost = _lost(cells, outside)
    return _verdict(
        f"The 95 % interval covers between {100 * LOWEST:.0f} and {100 * HIGHEST:.1f} % in domain",
        count,
        lost,
    )


def _compare(cells: Cells, at: tuple[str, str], method: str, key: str, factor: float) -> str:
    """Empty where the method is no worse than the ensemble; else both numbers."""
    ours = average(cells[*at, IN_DOMAIN, method][key])
    theirs = factor * average(cells[*at, IN_DOMAIN, ENSEMBLE][key])
    return "" if ours <= theirs else f"{key} {ours:.4g} against {theirs:.4g}"


def _lost(cells: Cells, check: Callable[[tuple[str, str]], str]) -> tuple[int, list[str]]:
    texts = {at: check(at) for at in trainings_of(cells)}
    return len(texts), [f"{_name(at)} ({text})" for at, text in texts.items() if text]


def _name(at: tuple[str, str]) -> str:
    return f"{at[0]} {at[1]}"


def _verdict(claim: str, count: int, lost: list[str]) -> str:
    held = count - len(lost)
    end = "." if not lost else f"; not in: {'; '.join(lost)}."
    return f"{claim}: in {held} of {count} cases{end}"
