"""A study's result in the terminal."""

from typing import Any

from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from ..core.result import Column, Result, Table

MAX_ROWS = 24  # of a table that a terminal shows


def show(result: Result, console: Console) -> None:
    """Print the tables and the findings."""
    for table in result.tables:
        if len(table.rows) > MAX_ROWS:
            console.print(f"{table.title}: {len(table.rows)} rows, in the report.", markup=False)
            continue
        console.print(as_rich(table))
        if table.note:
            console.print(table.note, markup=False)
    for finding in result.findings:
        console.print(f"* {finding}", markup=False)


def as_rich(table: Table) -> rich_table.Table:
    """The table for a terminal, the best numbers in bold."""
    shown = rich_table.Table(title=Text(table.title), title_justify="left")
    for column in table.columns:
        shown.add_column(Text(column.name), justify="right" if column.digits >= 0 else "left")
    best = best_cells(table)
    for number, row in enumerate(table.rows):
        cells = [text_of(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        # Text, because a bracket in a cell is not markup
        shown.add_row(*(Text(c, style="bold" if (number, i) in best else "") for i, c in enumerate(cells)))
    return shown


def text_of(cell: Any, column: Column) -> str:
    """Cell as text: "-1.741 ± 0.012", "94.2 %", or empty for a gap."""
    if cell is None or isinstance(cell, str | bool):
        return cell if isinstance(cell, str) else {None: "", True: "yes", False: "no"}[cell]
    values = cell if isinstance(cell, list | tuple) else [cell]
    unit = f" {column.unit}" if column.unit else ""
    return " ± ".join(f"{value:.{max(column.digits, 0)}f}" for value in values) + unit


def blocks_of(table: Table) -> dict[Any, list[int]]:
    """Row numbers of each block, in the order of the blocks; without blocks, all rows under None."""
    at = None if table.block is None else [column.name for column in table.columns].index(table.block)
    blocks: dict[Any, list[int]] = {}
    for number, row in enumerate(table.rows):
        name = None if at is None else text_of(row[at], table.columns[at])
        blocks.setdefault(name, []).append(number)
    return blocks


def best_cells(table: Table) -> set[tuple[int, int]]:
    """Row and column of each block's best numbers, if the column has a better end; ties are as printed."""
    best = set()
    for place, column in enumerate(table.columns):
        sign, digits = {"low": 1, "high": -1}.get(column.better or "", 0), max(column.digits, 0)
        for numbers in blocks_of(table).values() if sign else ():
            cells = {number: leading(table.rows[number][place]) for number in numbers}
            values = {number: sign * round(v, digits) for number, v in cells.items() if v is not None}
            best |= {(number, place) for number, value in values.items() if value == min(values.values())}
    return best


def leading(cell: Any) -> float | None:
    """The number that a cell is compared by; None for text and gaps."""
    if isinstance(cell, list | tuple):
        return float(cell[0])
    return None if cell is None or isinstance(cell, str | bool) else float(cell)
