"""Blocks about the time of a call; both sides of a ratio are always in the same runtime."""

from collections.abc import Mapping
from typing import Any

from .stored import Stored, grid, number, short, words


def _entries(stored: Stored, study: str) -> dict[str, list[Mapping[str, Any]]]:
    """By network, calls with one row and one thread that were timed, of the first seed."""
    entries = {}
    for network, seeds in stored.numbers(study)["networks"].items():
        calls = [one for one in seeds[0]["entries"] if one["batch"] == one["threads"] == 1]
        entries[network] = [one for one in calls if None not in (one["median"], one["over_network"])]
    return entries


def over_network(stored: Stored, *, study: str) -> str:
    """Time over that of the network alone in the same runtime, one row, one thread."""
    entries, rows = _entries(stored, study), []
    runtimes = list(dict.fromkeys(one["runtime"] for calls in entries.values() for one in calls))
    for network, calls in entries.items():
        times = {(one["method"], one["runtime"]): one["over_network"] for one in calls}
        for method in dict.fromkeys(one["method"] for one in calls if one["method"] != "network"):
            rows.append([network, method, *(number(times.get((method, r)), 2) for r in runtimes)])
    origin = stored.study(study)["provenance"]
    end = f"{origin['device']}, commit `{origin['commit'][:10]}`; a gap: not possible there, or not timed."
    return f"{grid(['network', 'method', *runtimes], rows)}\n\n{words(end)}"


def worth(stored: Stored) -> str:
    """What each method of the runtime study is worth: NLL and AUROC of new rows."""
    rows = []
    for network, seeds in stored.numbers("runtime")["networks"].items():
        for method, one in seeds[0]["quality"].items():
            if one["nll"] is not None:
                size = None if one["bytes"] is None else one["bytes"] / 2**20
                rows.append([network, method, number(one["nll"], 3), number(one["auroc"], 3), short(size)])
    return grid(["network", "method", "NLL", "AUROC of new rows", "MiB, with the network"], rows)
