"""Blocks from the figures of benchmarks, and from the study of run time, which compares like with like."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .stored import NotRun, Stored, grid, number, short, words

MIB = 2**20
DEFAULT = "trustgp default"  # as the study of run time calls it
BATCHED = ", batched"  # ends the name of passes in one batch
TIMED = ("network", f"MC-dropout 20{BATCHED}", "ensemble of 5", "Laplace last layer")
TIMED += (DEFAULT, "trustgp small")
WORTH = ("NLL", "AUROC, new rows", "MiB")


def networks(stored: Stored) -> str:
    """Large networks on a GPU: time over a forward pass, memory over a forward and a backward pass."""
    found = stored.benchmark("large-cuda")
    keys = {
        "fit": "fit over forward",
        "predict, 64 rows": "predict 64 over forward",
        "predict, 1 row": "predict 1 over forward",
        "the same, traced": "traced 1 over forward",
        "memory of the fit": "fit peak over forward backward",
    }
    figures = found["figures"].items()
    rows = [[name, *(number(one.get(key), 1) for key in keys.values())] for name, one in figures]
    images = stored.benchmark("large-cuda-images")["figures"]["images"]
    text = (
        f"{found['device']}, {found['rows']:,} rows, torch {found['torch']}. Pictures through ResNet-50: a "
        f"fit takes {short(images['fit s'])} s, {short(images['fit rows per s'])} pictures a second, where "
        f"plain forward passes make {short(images['forward rows per s'])}."
    )
    return f"{grid(['network', *keys], [row for row in rows if any(row[1:])])}\n\n{words(text)}"


def calls(stored: Stored) -> str:
    """Table of the times of an exported model that is called many times."""
    found = stored.benchmark("calls-cpu")
    rows = []
    for name in ("onnxruntime", "predict"):
        one = found[name]
        times = [short(one["milliseconds"][key]) for key in ("first", "p50", "p99", "p99.9", "max")]
        rows.append([name, f"{one['calls']:,}", *times, short(one["growth_bytes"] / 1e6)])
    columns = ["", "calls", "first, ms", "median", "99 %", "99.9 %", "longest", "memory grown, MB"]
    end = f"{short(found['model_bytes'] / MIB)} MiB, one thread; commit `{found['commit'][:10]}`. Loads in"
    return f"{grid(columns, rows)}\n\n{end} {short(found['onnxruntime']['load_ms'])} ms."


def over_network(stored: Stored, *, study: str, quality: bool = False) -> str:
    """Table of times over that of the network alone in the same runtime, for one row, one thread and the
    first seed; with `quality` also NLL, AUROC of new rows and size."""
    entries, rows = {}, []
    for network, seeds in stored.numbers(study)["networks"].items():
        calls = [one for one in seeds[0]["entries"] if one["batch"] == one["threads"] == 1]
        entries[network] = [one for one in calls if None not in (one["median"], one["over_network"])]
    runtimes = list(dict.fromkeys(one["runtime"] for calls in entries.values() for one in calls))
    for network, calls in entries.items():
        times = {(one["method"], one["runtime"]): one["over_network"] for one in calls}
        worth = stored.numbers(study)["networks"][network][0]["quality"]
        for method in TIMED if quality else TIMED[1:]:
            cells = [number(times.get((method, r)), 2) for r in runtimes]
            if any(cells):
                rows.append([network, method, *cells])
                rows[-1] += _worth(worth.get(method.removesuffix(BATCHED), {})) if quality else []
    origin = stored.study(study)["provenance"]
    end = f"{origin['device']}, commit `{origin['commit'][:10]}`; a gap: not possible there, or not measured."
    columns = ["network", "method", *runtimes, *(WORTH if quality else ())]
    return f"{grid(columns, rows)}\n\n{words(end)}"


def _worth(found: Mapping[str, Any]) -> list[str]:
    """Cells with NLL, AUROC and MiB; empty where they were not measured."""
    size = found.get("bytes")
    scores = [number(found.get(key), 3) for key in ("nll", "auroc")]
    return [*scores, "" if size is None else short(size / MIB)]


def call_ratios(stored: Stored) -> dict[str, list[float]]:
    """Ratios by machine: the time of a call of the default with one row over that of five networks."""
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
