"""What the scale study measured by the number of rows: tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Table

REQUIRED = 2.2  # the most that time may grow when the rows double
MEGABYTE = 1e6
ROWS = {"rows": Column("rows", digits=0)}
TIMES = [
    Measure("experts", Column("experts", digits=0)),
    Measure("seconds", Column("time", digits=2, unit="s")),
    Measure("growth", Column("over half the rows", digits=2, unit="x")),
    Measure("speed", Column("rows per second", digits=0)),
    Measure("trustgp", Column("NLL: trustgp", digits=3)),
    Measure("network + noise", Column("NLL: network + noise", digits=3)),
]
SIZES = [
    Measure("model", Column("model", digits=0, unit="MB")),
    Measure("held_rows", Column("rows held by an expert", digits=0)),
]

Runs = list[dict[str, Any]]  # of one seed: what was measured, the fewest rows first


def scale_grid(runs: Sequence[Runs]) -> Grid:
    """By the number of rows; memory in megabytes, and time also over that of half the rows."""
    return Grid.of(("rows",), {(): runs}, _read)


def _read(entries: Runs) -> dict[tuple[int], dict[str, Any]]:
    growth = [None, *(after["seconds"] / before["seconds"] for before, after in pairwise(entries))]
    stages, places = entries[0]["stages"], entries[0]["peak"]
    return {
        (entry["rows"],): {
            **{key: entry[key] for key in ("experts", "seconds", "held_rows")},
            **entry["nll"],
            "growth": grown,
            "speed": entry["rows"] / entry["seconds"],
            "model": entry["model_bytes"] / MEGABYTE,
            **{f"time of {stage}": entry["stages"].get(stage, 0.0) for stage in stages},
            **{f"peak, {place}": _megabytes(entry["peak"].get(place)) for place in places},
            **{
                f"peak of {stage}, {place}": _megabytes(entry["stage_peaks"].get(stage, {}).get(place, 0))
                for stage in stages
                for place in places
            },
        }
        for entry, grown in zip(entries, growth, strict=True)
    }


def _megabytes(size: float | None) -> float | None:
    return None if size is None else size / MEGABYTE


def stages_of(grid: Grid) -> list[str]:
    """Of a fit, in their order."""
    return list(grid.parts[()][0][0]["stages"])


def scale_tables(grid: Grid) -> list[Table]:
    """Time, stages and memory, a line for each number of rows."""
    stages = [Measure(f"time of {name}", Column(name, digits=2, unit="s")) for name in stages_of(grid)]
    places = [f"peak, {place}" for place in grid.parts[()][0][0]["peak"]]
    peaks = [Measure(name, Column(name, digits=0, unit="MB")) for name in places]
    note = "At the peak, beside what there was before the fit."
    return [
        Pivot("Time, and how it grows", ROWS, TIMES).table(grid),
        Pivot("Time of each stage", ROWS, stages).table(grid),
        Pivot("Memory", ROWS, [*peaks, *SIZES], note=note).table(grid),
    ]


def scale_findings(grid: Grid, place: str) -> list[str]:
    """What the numbers say; `place`, where the work was done, is "cpu" or "cuda"."""
    rows = grid.along("rows")
    growth = {n: grid.mean((n,), "growth") for n in rows[1:]}
    worst = max(growth, key=growth.__getitem__)
    last, before = (rows[-1],), rows[rows.index(worst) - 1]
    kept = "as promised" if growth[worst] <= REQUIRED else "more than promised"
    seconds = grid.mean(last, "seconds")
    shares = {stage: grid.mean(last, f"time of {stage}") / seconds for stage in stages_of(grid)}
    longest = max(shares, key=shares.__getitem__)
    found = [
        f"Twice the rows take {fmean(growth.values()):.2f} times as long on average and {growth[worst]:.2f} "
        f"times at most, from {before} rows to {worst}: {kept} ({REQUIRED}).",
        f"{rows[-1]} rows take {seconds:.1f} s, {rows[-1] / seconds:.0f} rows per second; "
        f"{100 * shares[longest]:.0f} % of it is {longest}.",
    ]
    peak = f"peak, {place}"
    peaks = [grid.mean((n,), peak) for n in rows if grid.values((n,), peak) is not None]
    if peaks:
        found.append(
            f"At its peak the fit takes {peaks[0]:.0f} MB for the fewest rows and {peaks[-1]:.0f} MB for the "
            f"most, of which the model is {grid.mean(last, 'model'):.0f} MB."
        )
    ours, noise = (grid.mean(last, name) for name in ("trustgp", "network + noise"))
    found.append(
        f"With all rows the held-out NLL is {ours:.3f} per torque; with one constant noise it is {noise:.3f}."
    )
    return found
