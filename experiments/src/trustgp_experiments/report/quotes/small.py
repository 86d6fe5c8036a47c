"""Blocks about small models and large networks, from the benchmarks."""

from .stored import Stored, bullets, grid, number, percent, short, words

MIB = 2**20


def light(stored: Stored) -> str:
    """The default and a small budget beside an ensemble: size, time, likelihood, novelty."""
    figures = stored.benchmark("light-cpu")["figures"]
    names = [name for name, one in figures.items() if isinstance(one, dict) and "MiB" in one]
    lines = {
        "MiB": ("MiB", 1),
        "one row, over the ensemble, both in eager torch": ("row over ensemble", 2),
        "256 rows, over the ensemble, both in eager torch": ("256 rows over ensemble", 2),
        "one row, over the ensemble, both in onnxruntime": ("onnx row over ensemble", 2),
        "NLL, own": ("own", 3),
        "NLL, corrected": ("corrected", 3),
        "AUROC of inputs x 2": ("auroc x 2", 4),
        "AUROC of noise": ("auroc noise", 4),
        "NLL on another arm": ("other arm", 2),
        "fit, s": ("fit s", 1),
    }
    rows = [
        [text, *(number(figures[n].get(key), digits) for n in names)] for text, (key, digits) in lines.items()
    ]
    rows = [[*row, number(figures["ensemble own"], 3) if row[0] == "NLL, own" else ""] for row in rows]
    return grid(["", *names, "ensemble of 5"], rows)


def frontier(stored: Stored) -> str:
    """All smaller forms of the default model, on validation rows that did not calibrate them."""
    found = stored.benchmark("small")
    rows = [
        [
            one["name"],
            number(one["nll"], 3),
            number(one["corrected"], 3),
            number(one["auroc"], 4),
            number(one["nbytes"] / MIB, 1),
            number(one["milliseconds"], 2),
        ]
        for one in found["frontier"]
    ]
    made = grid(["form", "NLL", "corrected", "AUROC", "MiB", "ms, one row"], rows)
    chosen = f"Within {found['budget'][-1]}, `{found['chosen']}` is chosen; what does not fit was not timed."
    return f"{made}\n\n{chosen}"


def tests(stored: Stored) -> str:
    """Models within budgets on the test rows, beside an ensemble."""
    rows = []
    for name, found in stored.benchmark("small")["test"].items():
        own, corrected = found["own"], found.get("corrected", {})
        rows.append(
            [
                name,
                number(found["nbytes"] / MIB, 1),
                number(found["row over ensemble"], 2),
                number(own["nll"], 3),
                number(corrected.get("nll"), 3),
                number(own["mse"], 5),
                number(corrected.get("mse"), 5),
                number(own["auroc x 2"], 4),
                number(own.get("auroc novelty"), 4),
                number(own["auroc"], 4),
            ]
        )
    columns = ["method", "MiB", "one row", "NLL", "corrected", "mse", "corrected"]
    return grid([*columns, "AUROC x 2", "by novelty", "other arm"], rows)


def reading(stored: Stored) -> str:
    """What the frontier and the test rows say, in sentences."""
    found = stored.benchmark("small")
    forms = {one["name"]: one for one in found["frontier"]}
    heard = [one for name, one in forms.items() if "no witness" not in name]
    alone = [one for name, one in forms.items() if "no witness" in name]
    whole, least = heard[0], heard[-1]
    with_, without = heard[0], alone[0]
    ensemble = found["test"]["ensemble of 5"]
    behind = [
        n
        for n, one in found["test"].items()
        if n != "ensemble of 5" and one["own"]["nll"] > ensemble["own"]["nll"]
    ]
    times = found["bounded_fit_seconds"].values()
    novelty = f"the AUROC from {number(whole['auroc'], 3)} to {number(least['auroc'], 3)}"
    worth = f"{number(without['nll'] - with_['nll'], 2)} nats"
    corrected = number(without["corrected"] - with_["corrected"], 2)
    room = number((with_["nbytes"] - without["nbytes"]) / MIB, 1)
    return bullets(
        [
            f"**Directions are for novelty**: from the whole model to `{least['name']}` the NLL moves by "
            f"{number(abs(whole['nll'] - least['nll']), 3)}, {novelty}.",
            f"**The witness is for likelihood**: it is worth {worth} ({corrected} corrected) in {room} MiB.",
            f"**Behind the ensemble in likelihood**: {', '.join(behind) or 'none'}. Its networks take "
            f"{number(ensemble['nbytes'] / MIB, 1)} MiB beside the one, and tell inputs times two with an "
            "AUROC of "
            f"{number(ensemble['own']['auroc x 2'], 4)} by their spread.",
            f"A fit within a budget took {number(min(times), 1)} to {number(max(times), 1)} s, that "
            "without a "
            f"limit {number(found['fit_seconds'], 1)} s.",
        ]
    )


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
    rows = [
        [name, *(number(one.get(key), 1) for key in keys.values())] for name, one in found["figures"].items()
    ]
    rows = [row for row in rows if any(row[1:])]
    images = stored.benchmark("large-cuda-images")["figures"]["images"]
    more = (
        f"{found['device']}, {found['rows']:,} rows, torch {found['torch']}. Many pictures through "
        "ResNet-50: a fit "
        f"takes {short(images['fit s'])} s, {short(images['fit rows per s'])} pictures a second, where "
        "plain forward "
        f"passes make {short(images['forward rows per s'])}."
    )
    return f"{grid(['network', *keys], rows)}\n\n{words(more)}"


def resnet(stored: Stored) -> str:
    """A network of ResNet-18's shape, exact gradients of all outputs: fit, memory, prediction."""
    rows = []
    for one in stored.benchmarks("resnet-").values():
        peak = one["peak_mib"].get("cuda", one["peak_mib"]["cpu"])
        line = [one["device"], f"{one['images']:,}", one["outputs"], short(one["fit_seconds"]), short(peak)]
        rows.append([*line, short(one["model_mib"]), short(one["predict_in_forward_passes"])])
    columns = [
        "device",
        "images",
        "outputs",
        "fit, s",
        "peak, MiB",
        "model, MiB",
        "a prediction, in forward passes",
    ]
    return grid(columns, rows)


def many_rows(stored: Stored) -> str:
    """`benchmarks/scale.py`: time by stage, memory, size and likelihood."""
    rows = []
    for name, one in stored.benchmarks("scale-").items():
        shares = one["stage_shares"]
        features = shares["making the features"] + shares["linearising"]
        parts = (
            features,
            *(shares[key] for key in ("dividing the rows", "solving the experts", "calibrating")),
        )
        nll = one["nll"]
        rows.append(
            [
                f"`{name}`, {one['device']}",
                f"{one['rows']:,}, {one['experts']:,}",
                one["outputs"],
                f"{number(one['fit_seconds'], 0)} s",
                ", ".join(percent(part, 0) for part in parts),
                f"{number(one['peak_mb'].get('cuda', one['peak_mb']['cpu']) / 1000, 1)} GB",
                f"{number(one['model_mb'], 0)} MB",
                f"{number(nll['trustgp'], 3)}, {number(nll['network + noise'], 3)}",
            ]
        )
    columns = ["", "rows, experts", "outputs", "time", "features, division, experts, calibration"]
    return grid([*columns, "memory", "model", "NLL, network + noise"], rows)
