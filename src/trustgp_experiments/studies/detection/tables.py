"""The tables of the detection study, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.pivot import Pivot, flat_measure, flat_table
from ...core.result import Column, Table
from .pictures import NOVEL
from .scores import EAGER, GRAPH, LATENT, LEVELS, OURS, PLAIN

METHOD = {"method": Column.text("method")}
REQUIRED = 0.9
MOST, LEAST = 1.5, 12.0  # times the detector; times faster than 20 passes


TOLD = Pivot(
    "Are foreign things told from familiar ones?",
    {"test": Column.text("told from familiar ones"), **METHOD, "score": Column.text("by")},
    [
        flat_measure("auroc", "AUROC", better="high"),
        flat_measure("fpr95", "FPR95", better="low"),
        flat_measure("picture_auroc", "AUROC of pictures", better="high"),
    ],
    block="told from familiar ones",
    note="By detection: those on familiar test pictures against those that lie on a novel thing, or, of the "
    "other sets, against all. Of pictures: the largest score of a picture; one without a detection comes "
    "last.",
)
RIGHT = Pivot(
    "Are probabilities and edges right?",
    {"pictures": Column.text("pictures"), **METHOD},
    [
        flat_measure("class_nll", "NLL of classes", better="low"),
        flat_measure("dece", "D-ECE", 1, "low", unit="%", factor=100),
        flat_measure("box_nll", "NLL of edges", better="low"),
        *(
            flat_measure(f"within {level}", f"within {round(100 * level)} %", 1, unit="%", factor=100)
            for level in LEVELS
        ),
        flat_measure("std", "mean std", 2, unit="px"),
        flat_measure("rms", "rms error", 2, unit="px"),
    ],
    block="pictures",
    note="Edges: of detections that have found a thing. Each method's deviation is a noise and a share of "
    "what it does not know, both fitted to the validation pictures; softmax has the noise alone.",
)
COST = Pivot(
    "What does it cost?",
    {"call": Column.text("one picture, one thread")},
    [
        flat_measure("over", "times the detector", 2, "low"),
        flat_measure("under", "20 passes take so many times as long", 1, "high"),
        flat_measure("peak", "peak memory", 0, unit="MiB", factor=2**-20),
        flat_measure("calls", "calls"),
    ],
    note="Ratios of the thread's own time within rounds, the median. Peak: beside what was held before.",
)


def tables(worlds: Mapping[str, Mapping[str, Any]], times: Mapping[str, Any]) -> list[Table]:
    """What is told apart, what is right in each world, and what it costs, as `time_calls` gave it."""
    told, right = {}, {}
    for world in worlds.values():
        for method, by_test in world["told"].items():
            told |= {(test, method, score): n for test, by in by_test.items() for score, n in by.items()}
        for test, methods in world["right"].items():
            for method, n in methods.items():
                shares = zip(LEVELS, n["coverage"], strict=True)
                right[test, method] = n | {f"within {level}": share for level, share in shares}
    cost = {(name,): found for name, found in times.items()}
    return [flat_table(pivot, cells) for pivot, cells in ((TOLD, told), (RIGHT, right), (COST, cost))]


def findings(worlds: Mapping[str, Mapping[str, Any]], times: Mapping[str, Any]) -> list[str]:
    """One sentence each, from the numbers."""
    found = [_best(world["told"], test) for world in worlds.values() for test in world["told"][OURS]]
    for world in worlds.values():
        ap = ", ".join(f"{name} {value:.3f}" for name, value in world["ap50"].items())
        found.append(f"AP50 of the detector on familiar test pictures: {ap}.")
    for name in (EAGER, GRAPH):
        own = times[name]
        kept = own["over"] <= MOST and own["under"] >= LEAST
        found.append(
            f"{name}: {own['over']:.2f} times the {PLAIN}, {own['under']:.1f} times faster than 20 passes; "
            f"promised were {MOST} and {LEAST:.0f}: {'kept' if kept else 'not kept'}."
        )
    return found


def _best(told: Mapping[str, Any], test: str) -> str:
    """Ours by latent variance against the best score of any other method."""
    own = told[OURS][test][LATENT]["auroc"]
    others = {
        f"{method} by {score}": numbers["auroc"]
        for method, by_test in told.items()
        for score, numbers in by_test[test].items()
        if method != OURS
    }
    best, highest = max(others.items(), key=lambda item: item[1])
    words = "above" if own > highest else "not above"
    found = f"{test}: AUROC {own:.3f} by latent variance, {words} the best peer, {best}, {highest:.3f}."
    if test != NOVEL:
        return found
    kept = "kept" if own >= REQUIRED and own > highest else "not kept"
    return f"{found} At least {REQUIRED} was promised, above every peer: {kept}."
