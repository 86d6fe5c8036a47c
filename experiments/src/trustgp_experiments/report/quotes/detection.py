"""Blocks of the detection study."""

from collections.abc import Mapping
from typing import Any

from .stored import Stored, bullets, grid, number

# methods that the tables show: the usual ones, and the best of those that read features
SHOWN = ("temperature scaling", "MC-dropout 20", "ensemble of 3", "Laplace last layer", "DDU")
SHOWN += ("Mahalanobis on what was seen", "DDU on what was seen", "trustgp")


def _half(found: Mapping[str, float]) -> str:
    """Mean with half the width of its interval, as text."""
    return f"{number(found['mean'], 3)} ± {number((found['high'] - found['low']) / 2, 3)}"


def _best(scores: Mapping[str, Any]) -> float:
    """The highest AUROC of a method's scores."""
    return max(one["auroc"]["mean"] for one in scores.values())


def _shown(methods: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, one) for name, one in methods.items() if name in SHOWN]


def told(stored: Stored) -> str:
    """Table of the AUROC of novel things, flights and raccoons by each method's best score; shares caught."""
    worlds = stored.numbers("detection")["worlds"]
    cells = worlds.get("cells", {"told": {}})["told"]
    rows = []
    for method, tests in _shown(worlds["scenes"]["told"]):
        score, one = max(tests["novel things"].items(), key=lambda item: item[1]["auroc"]["mean"])
        shares = [number(100 * one[key]["mean"], 0) for key in ("caught 0.01", "caught 0.05", "confident")]
        other = cells.get(method, {}).get("raccoons", {}).get(score)
        line = [method, score, _half(one["auroc"]), *shares, _half(tests["flight"][score]["auroc"])]
        rows.append([*line, "" if other is None else number(other["auroc"]["mean"], 3)])
    columns = ["", "by", "novel things", "at 1 %, %", "at 5 %, %", "confident, %", "flights", "raccoons"]
    return grid(columns, rows)


def right(stored: Stored) -> str:
    """Table of the likelihood and coverage of edges, and of the likelihood and calibration of classes."""
    rows = []
    found = stored.numbers("detection")["worlds"]["scenes"]["right"]
    for method, familiar in _shown(found["scenes, familiar"]):
        both = familiar, found["scenes, flight"][method]
        line = [method, *(number(part["box_nll"]["mean"], 3) for part in both)]
        line += [number(100 * part["within 0.95"]["mean"], 1) for part in both]
        line += [number(100 * both[1]["all four"]["mean"], 0)]
        line += [number(part["class_nll"]["mean"], 3) for part in both]
        rows.append([*line, *(number(100 * part["dece"]["mean"], 1) for part in both)])
    columns = ["", "NLL of edges, familiar", "flights", "within 95 %, familiar, %", "flights, %"]
    columns += ["all four, flights, %", "NLL of classes, familiar", "flights"]
    columns += ["D-ECE, familiar, %", "flights, %"]
    return grid(columns, rows)


def loses(stored: Stored) -> str:
    """Sentences on the methods that are ahead of trustgp, by score."""
    found: Mapping[str, Any] = stored.numbers("detection")["worlds"]["scenes"]
    sentences = []
    for where in ("familiar", "flight"):
        part = found["right"][f"scenes, {where}"]
        for key, what in (("box_nll", "NLL of edges"), ("class_nll", "NLL of classes"), ("dece", "D-ECE")):
            ours = part["trustgp"][key]["mean"]
            lower = sorted((one[key]["mean"], m) for m, one in part.items() if one[key]["mean"] < ours)
            if lower:
                names = ", ".join(f"{method} {number(value, 3)}" for value, method in lower[:3])
                sentences.append(f"{what}, {where}: {number(ours, 3)}; lower: {names}.")
    for test, scores in found["told"]["trustgp"].items():
        others = {m: _best(tests[test]) for m, tests in found["told"].items() if test in tests}
        higher = [f"{m} {number(best, 3)}" for m, best in others.items() if best > _best(scores)]
        if higher:
            sentences.append(f"AUROC, {test}: {number(_best(scores), 3)}; higher: {', '.join(higher)}.")
    return bullets(sentences) if sentences else "No method is ahead of trustgp in any of these tables."


def summary(stored: Stored) -> str:
    """Table of what methods cost over the detector, and how well they detect novel things."""
    numbers = stored.numbers("detection")
    rows = [
        [method, number(numbers["times"][method]["over"], 2)]
        + [number(_best(tests[test]), 3) for test in ("novel things", "flight")]
        for method, tests in numbers["worlds"]["scenes"]["told"].items()
        if method in numbers["times"]
    ]
    made = grid(["method", "times the detector", "AUROC, novel things", "AUROC, flights"], rows)
    return f"{made}\n\nThe error bar holds {number(numbers['worlds']['scenes']['megabytes'], 2)} MiB."
