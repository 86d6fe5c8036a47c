"""Blocks of the page on scaling: measured slopes, and formulas of the light default taken to a billion "
"rows."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.fitting.plan import RANK
from trustgp.fitting.prepare import LIGHT

from .stored import Stored, grid, number, short, words

BILLION = 10**9
EXPERTS = 10_000  # of a billion rows
WORKERS = 64  # machines' worth of them, each as fast as the one that was measured
INPUTS, OUTPUTS = 21, 7  # of the arm that was measured
COMPONENTS = Division().components
SHARE = 0.1  # of an expert's rows, that each neighbour lends
SEEN = 1 + Patchwork().neighbours * SHARE  # rows that all experts see, over all rows
ROOM = 64 * 2**30  # bytes of a machine, to say where a limit is met


def model_bytes(n: int, experts: int, outputs: int) -> tuple[float, float]:
    """What the experts keep, M (4 D R + 8 (D C + R + 3 C + 4)), and the numbers of the rows they have "
    "seen."""
    each = 4 * LIGHT * RANK + 8 * (LIGHT * outputs + RANK + 3 * outputs + 4)
    return float(experts * each), 8 * SEEN * n


def held_bytes(n: int, experts: int, outputs: int) -> dict[str, tuple[str, float]]:
    """By what is held, where, and how many bytes: as `trustgp.fitting.plan` and `divide` count them."""
    kept, numbers = model_bytes(n, experts, outputs)
    seen = SEEN * n / experts
    return {
        "inputs and targets, 4 (d + C) n": ("disk, or each machine", 4.0 * (INPUTS + outputs) * n),
        "of each row: residuals, targets, places, 8 (3 C + q + 4) n": (
            "calling process",
            8.0 * (3 * outputs + COMPONENTS + 4) * n,
        ),
        "while rows are divided, 8 (3 q + 10) n": ("calling process", 8.0 * (3 * COMPONENTS + 10) * n),
        "features of all rows, if they are kept, 4 D n": ("memory or disk", 4.0 * LIGHT * n),
        "an expert while it is solved, 8 D m + 96 D²": ("a worker", 8.0 * LIGHT * seen + 96.0 * LIGHT**2),
        "model: what experts keep, M (4 D R + 8 D C)": ("file, calling process", kept),
        "model: numbers of rows, 8 x 1.4 n": ("file, calling process", numbers),
    }


def stored_bytes(stored: Stored) -> str:
    """The formulas at the rows that were measured, at a billion, and how many rows 64 GiB are enough for."""
    one = stored.benchmark("scale-cuda-shared")
    here = held_bytes(one["rows"], one["experts"], OUTPUTS)
    there = held_bytes(BILLION, EXPERTS, OUTPUTS)
    rows = []
    for (name, (where, few)), (_, many) in zip(here.items(), there.values(), strict=True):
        enough = BILLION * ROOM / many if where != "a worker" and "M (" not in name else None
        limit = "" if enough is None else f"{float(f'{enough:.1g}'):,.0f}"
        rows.append([name, where, f"{short(few / 1e9)} GB", f"{short(many / 1e9)} GB", limit])
    columns = ["bytes", "where", f"{one['rows']:,} rows, {one['experts']} experts"]
    made = grid(
        [*columns, f"{BILLION:,} rows, {EXPERTS:,} experts", "rows for which 64 GiB are enough"], rows
    )
    total = sum(model_bytes(one["rows"], one["experts"], OUTPUTS)) / 1e6
    check = (
        f"By these formulas the measured model holds {short(total)} MB; it holds {short(one['model_mb'])} MB."
    )
    return f"{made}\n\n{check}"


STAGES: dict[str, tuple[str, str, Callable[[float, float], float]]] = {
    "preparing": ("calling process", "n", lambda rows, experts: rows),
    "making the features": ("workers", "n P", lambda rows, experts: rows),
    "linearising": ("calling process", "n P", lambda rows, experts: rows),
    "dividing the rows": (
        "calling process",
        "n D q + n M q, M² in the k-means",
        lambda rows, experts: rows * experts,
    ),
    "solving the experts": ("workers", "n D² + M D³", lambda rows, experts: rows),
    "calibrating": ("calling process", "held-out rows", lambda rows, experts: 1.0),
}
"""By stage: who does it, how it grows, and by how much for so many times the rows and the experts."""


def stored_seconds(stored: Stored) -> str:
    """What was measured on one GPU, by stage, taken to a billion rows, and shared among workers."""
    one = stored.benchmark("scale-cuda-shared")
    more, experts = BILLION / one["rows"], EXPERTS / one["experts"]
    rows, totals = [], [0.0, 0.0, 0.0]
    for stage, (where, grows, factor) in STAGES.items():
        seconds = one["stage_seconds"][stage]
        alone = seconds * factor(more, experts)
        shared = alone / WORKERS if where == "workers" else alone
        totals = [a + b for a, b in zip(totals, (seconds, alone, shared), strict=True)]
        rows.append([stage, where, grows, f"{short(seconds)} s", _hours(alone), _hours(shared)])
    rows.append(["together", "", "", f"{short(totals[0])} s", *map(_hours, totals[1:])])
    columns = ["stage", "where", "grows as", f"measured: {one['rows']:,} rows, {one['device']}"]
    made = grid([*columns, f"{BILLION:,} rows, one of these", f"{WORKERS} of these"], rows)
    end = "The last two columns are extrapolated by the formula, not measured, without reading and sending."
    return f"{made}\n\n{end}"


def _hours(seconds: float) -> str:
    """In the unit that people would say."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{short(seconds / size)} {unit}"
    return f"{short(seconds)} s"


EXPECTED = {
    "n": ("1, once n D² is more than what does not grow", "1, once n D is", "0 but for row numbers"),
    "n, as it comes": ("the same", "the same", "1 up to 48 experts, then 0"),
    "C": ("0", "0", "0, while C is small beside R"),
    "P": ("1, once passes are most of it", "0", "0"),
    "M": ("0 to 1: n D² beside M D³", "-1 to 0", "1, while experts have R directions"),
}
"""By series, what the formulas say of the slopes: time, memory, bytes of the model."""


def slopes(stored: Stored) -> str:
    """Slopes of logarithms, over all points and between the last two, beside what the formulas say."""
    found = stored.benchmark("slopes")
    rows = []
    for name, one in found["series"].items():
        told = EXPECTED.get(name, ("", "", ""))
        cells = []
        for key, expected in zip(("seconds", "peak_mib", "model_mib"), told, strict=True):
            cells += [_slope(one, key), expected]
        span = f"{one['values'][0]:,} to {one['values'][-1]:,}"
        rows.append([name, span, *cells])
    columns = ["grows", "from, to", "time", "by formula", "peak memory", "by formula", "model", "by formula"]
    base = ", ".join(f"{key} = {value}" for key, value in found["base"].items())
    end = (
        f"Slope over all points, and in brackets between the last two; the others stay at {base}. CPU, one "
        "thread, "
        f"time that the process was at work, torch {found['torch']}."
    )
    return f"{grid(columns, rows)}\n\n{words(end)}"


def _slope(one: Mapping[str, Any], key: str) -> str:
    whole, last = one["slopes"][key], one["last"][key]
    return "" if whole is None else f"{number(whole, 2)} ({number(last, 2)})"


def rows_slope(stored: Stored) -> str:
    """Slopes of the study `scale`: rows and experts grow together."""
    seeds = stored.numbers("scale")["seeds"]
    points = [
        {key: one[key] for key in ("rows", "experts", "seconds", "model_bytes", "stages")} for one in seeds[0]
    ]
    first, last = points[len(points) // 2], points[-1]

    def power(pick: Callable[[Mapping[str, Any]], float]) -> str:
        return number(math.log(pick(last) / pick(first)) / math.log(last["rows"] / first["rows"]), 2)

    stages = ", ".join(
        f"{stage} {power(lambda one, stage=stage: one['stages'][stage])}"
        for stage in ("linearising", "dividing the rows", "solving the experts", "calibrating")
    )
    device = stored.study("scale")["provenance"]["device"]
    span = f"{device}, {first['rows']:,} to {last['rows']:,} rows"
    text = (
        f"Rows and experts together (`trustgp study scale`, {span}): the time of a fit grows with the power "
        f"{power(lambda one: one['seconds'])} of the rows, the model with "
        f"{power(lambda one: one['model_bytes'])}; by stage: {stages}."
    )
    return words(text)
