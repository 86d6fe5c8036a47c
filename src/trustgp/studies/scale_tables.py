"""Tables and sentences of the scale study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from .base import Column, Table
from .summaries import mean_spread

PROMISE = 2.2  # the most that time may grow when the rows double
MEGABYTE = 1e6

Runs = list[dict[str, Any]]  # of one seed: what was measured, the fewest rows first


def ratios(entries: Sequence[dict[str, Any]]) -> list[float]:
    """Time over that of half the rows, from the second number of rows on."""
    return [after["seconds"] / before["seconds"] for before, after in pairwise(entries)]


def scale_tables(runs: Sequence[Runs]) -> list[Table]:
    """Time, stages and memory, a line for each number of rows.

    Args:
        runs: Of each seed.
    """
    return [_times(runs), _stages(runs), _memory(runs)]


def scale_findings(runs: Sequence[Runs], place: str) -> list[str]:
    """What the numbers say.

    Args:
        runs: Of each seed.
        place: Where the work was done: "cpu" or "cuda".
    """
    last, growth = (
        [found[-1] for found in runs],
        [fmean(seeds) for seeds in zip(*map(ratios, runs), strict=True)],
    )
    worst = max(range(len(growth)), key=growth.__getitem__)
    before, after = (runs[0][worst + step]["rows"] for step in (0, 1))
    kept = "as promised" if growth[worst] <= PROMISE else "more than promised"
    seconds = fmean(entry["seconds"] for entry in last)
    shares = {stage: fmean(entry["stages"][stage] for entry in last) / seconds for stage in last[0]["stages"]}
    longest = max(shares, key=shares.__getitem__)
    found = [
        f"Twice the rows take {fmean(growth):.2f} times as long on average and {growth[worst]:.2f} times at "
        f"most, from {before} rows to {after}: {kept} ({PROMISE}).",
        f"{last[0]['rows']} rows take {seconds:.1f} s, {last[0]['rows'] / seconds:.0f} rows per second; "
        f"{100 * shares[longest]:.0f} % of it is {longest}.",
    ]
    peaks = [fmean(entry["peak"][place] for entry in line) for line in _lines(runs) if _known(line, place)]
    if peaks:
        model = fmean(entry["model_bytes"] for entry in last)
        found.append(
            f"At its peak the fit takes {peaks[0] / MEGABYTE:.0f} MB for the fewest rows and "
            f"{peaks[-1] / MEGABYTE:.0f} MB for the most, of which the model is {model / MEGABYTE:.0f} MB."
        )
    ours, noise = (fmean(entry["nll"][name] for entry in last) for name in ("trustgp", "network + noise"))
    found.append(
        f"With all rows the held-out NLL is {ours:.3f} per torque; with one constant noise it is {noise:.3f}."
    )
    return found


def _times(runs: Sequence[Runs]) -> Table:
    columns = [
        Column("rows", digits=0),
        Column("experts", digits=0),
        Column("time", digits=2, unit="s"),
        Column("over half the rows", digits=2, unit="x"),
        Column("rows per second", digits=0),
        Column("NLL: trustgp", digits=3),
        Column("NLL: network + noise", digits=3),
    ]
    rows = []
    grown = [[None, *ratios(found)] for found in runs]
    for number, line in enumerate(_lines(runs)):
        over = [seed[number] for seed in grown if seed[number] is not None]
        rows.append(
            [
                line[0]["rows"],
                _cell(line, lambda entry: entry["experts"]),
                _cell(line, lambda entry: entry["seconds"]),
                mean_spread(over) if over else None,
                _cell(line, lambda entry: entry["rows"] / entry["seconds"]),
                _cell(line, lambda entry: entry["nll"]["trustgp"]),
                _cell(line, lambda entry: entry["nll"]["network + noise"]),
            ]
        )
    return Table("Time, and how it grows", columns, rows)


def _stages(runs: Sequence[Runs]) -> Table:
    names = list(runs[0][0]["stages"])
    rows = [
        [
            line[0]["rows"],
            *(_cell(line, lambda entry, name=name: entry["stages"].get(name, 0.0)) for name in names),
        ]
        for line in _lines(runs)
    ]
    columns = [Column("rows", digits=0), *(Column(name, digits=2, unit="s") for name in names)]
    return Table("Time of each stage", columns, rows)


def _memory(runs: Sequence[Runs]) -> Table:
    places = list(runs[0][0]["peak"])
    columns = [
        Column("rows", digits=0),
        *(Column(f"peak, {place}", digits=0, unit="MB") for place in places),
        Column("model", digits=0, unit="MB"),
        Column("rows held by an expert", digits=0),
    ]
    rows = [
        [
            line[0]["rows"],
            *(
                _cell(line, lambda entry, place=place: entry["peak"][place] / MEGABYTE)
                if _known(line, place)
                else None
                for place in places
            ),
            _cell(line, lambda entry: entry["model_bytes"] / MEGABYTE),
            _cell(line, lambda entry: entry["held_rows"]),
        ]
        for line in _lines(runs)
    ]
    return Table("Memory", columns, rows, note="At the peak, beside what there was before the fit.")


def _lines(runs: Sequence[Runs]) -> list[tuple[dict[str, Any], ...]]:
    """For each number of rows, the entries of all seeds."""
    return list(zip(*runs, strict=True))


def _known(line: Sequence[dict[str, Any]], place: str) -> bool:
    return all(entry["peak"].get(place) is not None for entry in line)


def _cell(line: Sequence[dict[str, Any]], number: Callable[[dict[str, Any]], float]) -> list[float]:
    return mean_spread([number(entry) for entry in line])
