"""Blocks from the figures of benchmarks, and from the study of run time, which compares like with like."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .stored import NotRun, Stored, grid, number, short, words

MIB = 2**20
DEFAULT = "trustgp default"  # as the study of run time calls it
BATCHED = ", batched"  # ends the name of passes in one batch
TIMED = ("network", "MC-dropout 20, batched", "ensemble of 5", "Laplace last layer", DEFAULT, "trustgp small")
ORIGIN = "{device}, torch {torch}, commit `{commit:.10}`."  # of a benchmark
WORTH = ("NLL", "AUROC, new rows", "MiB")


def networks(stored: Stored) -> str:
    """Large networks on a GPU: time over a forward pass, memory over a forward and a backward pass."""
    found = stored.benchmark("large-cuda")
    keys = {
        "fit": "fit over forward",
        "predict, 64 rows": "predict 64 over forward",
        "over recorded": "predict 64 over recorded",
        "predict, 1 row": "predict 1 over forward",
        "one row over recorded": "predict 1 over recorded",
        "memory of the fit": "fit peak over forward backward",
    }
    rows = [[name, *(number(one[key], 1) for key in keys.values())] for name, one in found["figures"].items()]
    return f"{grid(['network', *keys], rows)}\n\n{found['rows']:,} rows. {ORIGIN.format(**found)}"


def small_networks(stored: Stored) -> str:
    """MLPs on a GPU: milliseconds of a call, and its time over the network and over five networks."""
    found = stored.benchmark("speed-cuda")
    keys = ("ms", "over eager", "over recorded", "over five")
    rows = [
        [f"{int(fitted):,}", batch, *(number(one[key], 2) for key in keys)]
        for fitted, figures in found["figures"].items()
        for batch, one in figures["threads 1"].items()
    ]
    columns = ["fitted rows", "rows", "ms", "over the network", "recorded", "over five, recorded"]
    return f"{grid(columns, rows)}\n\n{ORIGIN.format(**found)}"


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


def over_network(stored: Stored) -> str:
    """Table of times over the network's in the same runtime, for one row, one thread and the first seed."""
    entries, rows, networks = {}, [], stored.numbers("runtime")["networks"]
    for network, seeds in networks.items():
        calls = [one for one in seeds[0]["entries"] if one["batch"] == one["threads"] == 1]
        entries[network] = [one for one in calls if None not in (one["median"], one["over_network"])]
    runtimes = list(dict.fromkeys(one["runtime"] for calls in entries.values() for one in calls))
    for network, calls in entries.items():
        times = {(one["method"], one["runtime"]): one["over_network"] for one in calls}
        worth = networks[network][0]["quality"]
        for method in TIMED:
            cells = [number(times.get((method, r)), 2) for r in runtimes]
            if any(cells):
                rows.append([network, method, *cells, *_worth(worth.get(method.removesuffix(BATCHED), {}))])
    origin = stored.study("runtime")["provenance"]
    end = f"{origin['device']}, commit `{origin['commit'][:10]}`; a gap: not possible there, or not measured."
    return f"{grid(['network', 'method', *runtimes, *WORTH], rows)}\n\n{words(end)}"


def _worth(found: Mapping[str, Any]) -> list[str]:
    """Cells with NLL, AUROC and MiB; empty where they were not measured."""
    size = found["bytes"] / MIB if found.get("bytes") else None
    return [*(number(found.get(key), 3) for key in ("nll", "auroc")), "" if size is None else short(size)]


def call_ratios(stored: Stored) -> dict[str, list[float]]:
    """Ratios by machine: the time of a call of the default with one row over that of five networks."""
    found = {}
    with suppress(NotRun):
        networks = stored.numbers("runtime")["networks"].values()
        calls = [one for seeds in networks for one in seeds[0]["entries"] if one["over_ensemble"] is not None]
        one_row = [one for one in calls if (one["batch"], one["threads"], one["method"]) == (1, 1, DEFAULT)]
        found["a CPU"] = [one["over_ensemble"] for one in one_row]
    with suppress(NotRun):
        figures = stored.benchmark("speed-cuda")["figures"].values()
        found["a GPU"] = [one["threads 1"]["1"]["over five"] for one in figures]
    return found
