"""Blocks about classes: tables of the classification study, as they are stored."""

from typing import Any

from .stored import NotRun, Stored, grid, number, words

STUDY = "classification"


def table(stored: Stored, *, title: str) -> str:
    """A stored table of that title, mean and spread over seeds in a cell, and its note."""
    found = {one["title"]: one for one in stored.study(STUDY)["tables"]}
    if title not in found:
        raise NotRun(f"study `{STUDY}` in its present form")
    columns, rows = found[title]["columns"], found[title]["rows"]
    cells = [[_cell(cell, column) for cell, column in zip(row, columns, strict=True)] for row in rows]
    names = [
        f"{column['name']}, {column['unit']}" if column["unit"] else column["name"] for column in columns
    ]
    made = grid(names, cells)
    return f"{made}\n\n{words(found[title]['note'])}" if found[title]["note"] else made


def _cell(cell: Any, column: dict[str, Any]) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    values = cell if isinstance(cell, list) else [cell]
    return " ± ".join(number(value, column["digits"]) for value in values)
