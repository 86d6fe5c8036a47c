"""Blocks from the figures of benchmarks, and from the study of run time, which compares like with like."""

from .stored import Stored, grid, number, short, words

MIB = 2**20


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


def over_network(stored: Stored, *, study: str) -> str:
    """Time over that of the network alone in the same runtime, one row, one thread, of the first seed."""
    entries, rows = {}, []
    for network, seeds in stored.numbers(study)["networks"].items():
        calls = [one for one in seeds[0]["entries"] if one["batch"] == one["threads"] == 1]
        entries[network] = [one for one in calls if None not in (one["median"], one["over_network"])]
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
