"""Blocks of the ablation: the paper's observations, and the defaults beside the best settings."""

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from .stored import Stored, bullets, grid, number

ABOUT_OURS = re.compile(r"(Of our own: .*?\))\.(?= |$)")  # with its numbers in brackets
DEFAULT = " (default)"
KINDS = ("own", "own, witness")  # columns of the stored table


def observations(stored: Stored) -> str:
    """Findings against the defaults, and on the paper's observations, judged by the plain variance."""
    findings = stored.study("ablation")["findings"]
    shorter = (ABOUT_OURS.sub(lambda ours: _without_numbers(ours[1]), one) for one in findings)
    return bullets(one.replace(", as the paper observed,", "") for one in shorter)


def _without_numbers(verdict: str) -> str:
    return re.sub(r" \([^)]*\)", "", verdict) + "."


def defaults(stored: Stored) -> str:
    """Table of the NLL of the default on each axis of ours, and of the best other setting."""
    table = stored.tables("ablation")[1]
    names = [column["name"] for column in table["columns"]]
    rows = []
    for axis, block in groupby(table["rows"], key=lambda row: row[0]):
        settings = list(block)
        nll = [{row[1]: row[names.index(kind)] for row in settings} for kind in KINDS]
        (default,) = (name for name in nll[0] if name.endswith(DEFAULT))
        cells = [cell for one in nll for cell in _cells(one, default)]
        rows.append([axis, default.removesuffix(DEFAULT), *cells])
    columns = ["setting", "default", "NLL", "best other", "NLL, witness", "best other"]
    return f"{grid(columns, rows)}\n\nMeans over {stored.seeds('ablation')}."


def _cells(nll: Mapping[str, Any], default: str) -> list[str]:
    """Cells with the NLL of the default and of the best other setting."""
    others = {name: cell[0] for name, cell in nll.items() if name != default and cell is not None}
    best = min(others, key=others.__getitem__)
    return [number(nll[default][0], 3), f"{best}: {number(others[best], 3)}"]
