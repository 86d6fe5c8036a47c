"""Blocks of the detection study."""

from collections.abc import Mapping
from typing import Any

from .stored import Stored, bullets, grid, number, percent

BEST = "latent variance"


def _half(found: Mapping[str, float], digits: int = 3) -> str:
    """A mean with half of its interval."""
    return f"{number(found['mean'], digits)} ± {number((found['high'] - found['low']) / 2, digits)}"


def told(stored: Stored) -> str:
    """AUROC of novel things, flights and raccoons by every score, and what is caught at few alarms."""
    worlds = stored.numbers("detection")["worlds"]
    scenes, cells = worlds["scenes"], worlds.get("cells", {"told": {}})
    rows = []
    for method, tests in scenes["told"].items():
        for score, one in tests["novel things"].items():
            shares = [percent(one[key]["mean"], 0) for key in ("caught 0.01", "caught 0.05", "confident")]
            other = cells["told"].get(method, {}).get("raccoons", {}).get(score)
            last = "" if other is None else number(other["auroc"]["mean"], 3)
            rows.append(
                [method, score, _half(one["auroc"]), *shares, _half(tests["flight"][score]["auroc"]), last]
            )
    columns = ["", "by", "novel things", "at 1 %", "at 5 %", "confident", "flights", "raccoons"]
    return grid(columns, rows)


def right(stored: Stored) -> str:
    """Likelihood and coverage of edges, likelihood and calibration of classes."""
    rows = []
    found = stored.numbers("detection")["worlds"]["scenes"]["right"]
    near, far = (found[f"scenes, {name}"] for name in ("familiar", "flight"))
    for method, one in near.items():
        two = far[method]
        line = [method, *(number(part["box_nll"]["mean"], 3) for part in (one, two))]
        line += [percent(part["within 0.95"]["mean"]) for part in (one, two)]
        line += [percent(two["all four"]["mean"], 0)]
        line += [number(part["class_nll"]["mean"], 3) for part in (one, two)]
        rows.append([*line, *(percent(part["dece"]["mean"]) for part in (one, two))])
    columns = [
        "scenes",
        "NLL of edges, familiar",
        "flights",
        "within 95 %, familiar",
        "flights",
        "all four, flights",
    ]
    return grid([*columns, "NLL of classes, familiar", "flights", "D-ECE, familiar", "flights"], rows)


def loses(stored: Stored) -> str:
    """Methods that are ahead of trustgp, by score."""
    lost = behind(stored.numbers("detection")["worlds"]["scenes"])
    return bullets(lost) if lost else "No method is ahead of trustgp in any of these tables."


def behind(found: Mapping[str, Any]) -> list[str]:
    """The same as sentences, of one world."""
    sentences = []
    for where in ("familiar", "flight"):
        part = found["right"][f"scenes, {where}"]
        for key, what in (("box_nll", "NLL of edges"), ("class_nll", "NLL of classes"), ("dece", "D-ECE")):
            ours = part["trustgp"][key]["mean"]
            ahead = {m: one[key]["mean"] for m, one in part.items() if one[key]["mean"] < ours}
            if ahead:
                names = ", ".join(
                    f"{m} {number(v, 3)}" for m, v in sorted(ahead.items(), key=lambda o: o[1])[:3]
                )
                sentences.append(f"{what}, {where}: {number(ours, 3)}; lower: {names}.")
    asked = found["told"]["trustgp"]
    for test, scores in asked.items():
        ours = max(one["auroc"]["mean"] for one in scores.values())
        ahead = {
            m: best
            for m, tests in found["told"].items()
            if m != "trustgp"
            and test in tests
            and (best := max(one["auroc"]["mean"] for one in tests[test].values())) > ours
        }
        if ahead:
            names = ", ".join(f"{m} {number(v, 3)}" for m, v in ahead.items())
            sentences.append(f"AUROC, {test}: {number(ours, 3)}; higher: {names}.")
    return sentences


def times(stored: Stored) -> str:
    """One picture, one thread, all in eager torch: times over the detector alone."""
    numbers = stored.numbers("detection")
    rows = [
        [name, number(1000 * one["median"], 1), number(one["over"], 2), number(one["under"], 2)]
        for name, one in numbers["times"].items()
    ]
    made = grid(["", "ms", "times the detector", "MC-dropout's time over it"], rows)
    return f"{made}\n\nThe error bar holds {number(numbers['worlds']['scenes']['megabytes'], 2)} MiB."


def ap(stored: Stored) -> str:
    """AP50 of the detectors themselves."""
    worlds = stored.numbers("detection")["worlds"]
    return bullets(
        f"AP50 of the first detector of {world}: "
        + ", ".join(f"{k} {number(v, 3)}" for k, v in one["ap50"].items())
        + "."
        for world, one in worlds.items()
    )
