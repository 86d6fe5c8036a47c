"""Blocks from the figures of benchmarks, and from the study of run time, which compares like with like."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from .stored import Stored, grid, number, percent, short, words

MIB = 2**20


def frontier(stored: Stored) -> str:
    """All smaller forms of the default model, on validation rows that did not calibrate them."""
    figures, rows = stored.benchmark("small"), []
    for one in ({**one, "mib": one["nbytes"] / MIB} for one in figures["frontier"]):
        digits = {"nll": 3, "corrected": 3, "auroc": 4, "mib": 1, "milliseconds": 2}
        rows.append([one["name"], *(number(one[key], count) for key, count in digits.items())])
    table = grid(["form", "NLL", "corrected", "AUROC", "MiB", "ms, one row"], rows)
    chosen = f"Within {figures['budget'][-1]}, `{figures['chosen']}` is chosen; larger forms were not timed."
    return f"{table}\n\n{chosen}"


def tests(stored: Stored) -> str:
    """Models within budgets on the test rows, beside an ensemble."""
    rows = []
    for name, one in stored.benchmark("small")["test"].items():
        own, corrected = one["own"], one.get("corrected", {})
        line = [name, number(one["nbytes"] / MIB, 1), number(one["row over ensemble"], 2)]
        line += [number(scores.get("nll"), 3) for scores in (own, corrected)]
        line += [number(scores.get("mse"), 5) for scores in (own, corrected)]
        rows.append([*line, *(number(own.get(key), 4) for key in ("auroc x 2", "auroc novelty", "auroc"))])
    columns = ["method", "MiB", "one row", "NLL", "corrected", "mse", "corrected"]
    return grid([*columns, "AUROC x 2", "by novelty", "other arm"], rows)


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
    """An exported model called many times."""
    found = stored.benchmark("calls-cpu")
    rows = []
    for name in ("onnxruntime", "predict"):
        one = found[name]
        times = [short(one["milliseconds"][key]) for key in ("first", "p50", "p99", "p99.9", "max")]
        rows.append([name, f"{one['calls']:,}", *times, short(one["growth_bytes"] / 1e6)])
    columns = ["", "calls", "first, ms", "median", "99 %", "99.9 %", "longest", "memory grown, MB"]
    size, load = short(found["model_bytes"] / MIB), short(found["onnxruntime"]["load_ms"])
    return f"{grid(columns, rows)}\n\nA model of {size} MiB, one thread; the file loads in {load} ms."


def honesty(stored: Stored) -> str:
    """Overfitted networks, and few validation rows: what the 95 % interval covers."""
    found = stored.benchmark("honesty")
    shares = [one["coverage"] for one in found["memorised"]]
    sizes = [one["rows"] for one in found["memorised"]]
    text = (
        f"{len(shares)} networks that overfit {min(sizes)} to {max(sizes)} independent rows, without "
        f"validation rows: the 95 % interval covers {percent(min(shares))} at least, "
        f"{percent(fmean(shares))} on average."
    )
    rows = []
    for case, counts in found["few"][0].items():
        for count in counts:
            seeds = [seed[case][count] for seed in found["few"]]
            nll = [number(fmean(one[key] for one in seeds), 3) for key in ("nll", "corrected_nll")]
            shares = [[seed[key] for seed in seeds] for key in ("coverage", "corrected_coverage")]
            rows.append([case, count, *nll, *(f"{percent(fmean(s))} ({percent(min(s))})" for s in shares)])
    columns = ["data", "validation rows", "NLL, own", "corrected", "95 % covers, own (least)"]
    return f"{words(text)}\n\n{grid([*columns, 'corrected (least)'], rows)}"


SLOPES = {
    "n": ("1, once n D² is more than what does not grow", "1, once n D is", "0 but for row numbers"),
    "n, as it comes": ("the same", "the same", "1 up to 48 experts, then 0"),
    "C": ("0", "0", "0, while C is small beside R"),
    "P": ("1, once passes are most of it", "0", "0"),
    "M": ("0 to 1: n D² beside M D³", "-1 to 0", "1, while experts have R directions"),
}
"""By series, the slopes of the formulas: time, memory, bytes of the model."""


def slopes(stored: Stored) -> str:
    """Slopes of logarithms, over all points and between the last two, beside those of the formulas."""
    found, rows = stored.benchmark("slopes"), []
    for name, one in found["series"].items():
        line = [name, f"{one['values'][0]:,} to {one['values'][-1]:,}"]
        for key, formula in zip(("seconds", "peak_mib", "model_mib"), SLOPES[name], strict=True):
            line += [f"{number(one['slopes'][key], 2)} ({number(one['last'][key], 2)})", formula]
        rows.append(line)
    columns = ["grows", "from, to", "time", "by formula", "peak memory", "by formula", "model", "by formula"]
    base = ", ".join(f"{key} = {value}" for key, value in found["base"].items())
    end = (
        f"Slope over all points, and in brackets between the last two; the others stay at {base}. CPU, one "
        f"thread, time that the process was at work, torch {found['torch']}."
    )
    return f"{grid(columns, rows)}\n\n{words(end)}"


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
