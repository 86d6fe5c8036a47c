"""The tables of the detection study, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Column, Table
from .detection_pictures import NOVEL
from .detection_scores import LEVELS, OURS
from .detection_timing import EAGER, GRAPH, PLAIN

TOLD = [
    Column("told from familiar ones", digits=-1),
    Column("method", digits=-1),
    Column("by", digits=-1),
    Column("AUROC", digits=3, better="high"),
    Column("FPR95", digits=3, better="low"),
    Column("AUROC of pictures", digits=3, better="high"),
]
RIGHT = [
    Column("pictures", digits=-1),
    Column("method", digits=-1),
    Column("NLL of classes", digits=3, better="low"),
    Column("D-ECE", digits=1, better="low", unit="%"),
    Column("NLL of edges", digits=3, better="low"),
    *(Column(f"within {round(100 * level)} %", digits=1, unit="%") for level in LEVELS),
    Column("mean std", digits=2, unit="px"),
    Column("rms error", digits=2, unit="px"),
]
COST = [
    Column("one picture, one thread", digits=-1),
    Column("times the detector", digits=2, better="low"),
    Column("20 passes take so many times as long", digits=1, better="high"),
    Column("peak memory", digits=0, unit="MiB"),
    Column("calls"),
]
PROMISED = 0.9
MOST, LEAST = 1.5, 12.0  # times the detector; times faster than 20 passes


def tables(worlds: Mapping[str, Mapping[str, Any]], times: Mapping[str, Any]) -> list[Table]:
    """What is told apart, what is right, what it costs.

    Args:
        worlds: By name, what `one_world` gave.
        times: What `time_calls` gave.
    """
    told = [
        [test, method, score, numbers["auroc"], numbers["fpr95"], numbers["picture_auroc"]]
        for world in worlds.values()
        for test in next(iter(world["told"].values()))
        for method, by_test in world["told"].items()
        for score, numbers in by_test[test].items()
    ]
    right = [
        [
            *(test, method, n["class_nll"], 100 * n["dece"], n["box_nll"]),
            *(100 * share for share in n["coverage"]),
            *(n["std"], n["rms"]),
        ]
        for world in worlds.values()
        for test, methods in world["right"].items()
        for method, n in methods.items()
    ]
    cost = [
        [name, n["over"], n["under"], None if n["peak"] is None else n["peak"] / 2**20, n["calls"]]
        for name, n in times.items()
    ]
    return [
        Table("Are foreign things told from familiar ones?", TOLD, told, block=TOLD[0].name, note=NOTE_TOLD),
        Table("Are probabilities and edges right?", RIGHT, right, block=RIGHT[0].name, note=NOTE_RIGHT),
        Table("What does it cost?", COST, cost, note=NOTE_COST),
    ]


def findings(worlds: Mapping[str, Mapping[str, Any]], times: Mapping[str, Any]) -> list[str]:
    """One sentence each, from the numbers."""
    found = []
    for world in worlds.values():
        for test in next(iter(world["told"].values())):
            found.append(_best(world["told"], test))
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
    own = told[OURS][test]["latent variance"]["auroc"]
    others = {
        f"{method} by {score}": numbers["auroc"]
        for method, by_test in told.items()
        for score, numbers in by_test[test].items()
        if method != OURS
    }
    best = max(others, key=lambda name: others[name])
    words = "above" if own > others[best] else "not above"
    bar = ""
    if test == NOVEL:
        bar = f" At least {PROMISED} was promised, above every peer: "
        bar += "kept." if own >= PROMISED and own > others[best] else "not kept."
    return (
        f"{test}: AUROC {own:.3f} by latent variance, {words} the best peer, {best}, {others[best]:.3f}.{bar}"
    )


NOTE_TOLD = (
    "By detection: those on familiar test pictures against those that lie on a novel thing, or, of the other "
    "sets, against all. Of pictures: the largest score of a picture; one without a detection comes last."
)
NOTE_RIGHT = (
    "Edges: of detections that have found a thing. Each method's deviation is a noise and a share of what it "
    "does not know, both fitted to the validation pictures; softmax has the noise alone."
)
NOTE_COST = "Ratios of the thread's own time within rounds, the median. Peak: beside what was held before."
