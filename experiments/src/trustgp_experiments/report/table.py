"""A table as the page's template shows it: grouped by its block, the best in bold; it sorts and filters."""

import re
from dataclasses import dataclass
from typing import Any

from ..core.result import Column, Table
from .terminal import best_cells, blocks_of, leading, text_of

MIN_FILTERED_ROWS = 13
MAX_UNBROKEN = 18  # letters; a longer first column is broken into lines
BETTER = {"low": ("↓", "lower is better"), "high": ("↑", "higher is better")}
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


@dataclass(frozen=True)
class TableView:
    """What the template shows of a table."""

    table: Table

    @property
    def grouped(self) -> bool:
        return self.table.block is not None and len(blocks_of(self.table)) < len(self.table.rows)

    @property
    def filtered(self) -> bool:
        return len(self.table.rows) >= MIN_FILTERED_ROWS

    @property
    def stick(self) -> int:
        """The column that stays visible: the first that names a row within its group."""
        names = (column.name for column in self.table.columns)
        return next((i for i, name in enumerate(names) if not self.grouped or name != self.table.block), 0)

    @property
    def classes(self) -> str | None:
        widest = max((len(str(row[self.stick])) for row in self.table.rows), default=0)
        return _names(grouped=self.grouped, long=widest > MAX_UNBROKEN)

    @property
    def columns(self) -> list[tuple[Column, str | None]]:
        """Columns, each with its CSS classes."""
        block, stick = self.table.block, self.stick
        return [
            (column, _names(number=column.digits >= 0, stick=place == stick, block=column.name == block))
            for place, column in enumerate(self.table.columns)
        ]

    @property
    def groups(self) -> list[tuple[str | None, list[list[dict[str, Any]]]]]:
        """The label and the cells of each group of rows; one without a label, if rows are not grouped."""
        blocks = blocks_of(self.table) if self.grouped else {None: range(len(self.table.rows))}
        best, columns, stick = best_cells(self.table), self.columns, self.stick

        def row(number: int) -> list[dict[str, Any]]:
            cells = zip(self.table.rows[number], columns, strict=True)
            return [
                {"best": (number, place) in best, **_cell(cell, column, classes, header=place == stick)}
                for place, (cell, (column, classes)) in enumerate(cells)
            ]

        return [(label, [row(number) for number in numbers]) for label, numbers in blocks.items()]

    @property
    def ends(self) -> list[str]:
        return [end for end in BETTER if any(column.better == end for column in self.table.columns)]

    @property
    def spread(self) -> bool:
        return any(isinstance(cell, list | tuple) for row in self.table.rows for cell in row)


def sort_value(cell: Any) -> float | None:
    """The number a cell is sorted by, for text its leading number; None if there is none."""
    if isinstance(cell, str):
        match = _NUMBER.match(cell)
        return float(match[1].replace(",", "")) if match else None
    return leading(cell)


def _names(**kinds: bool) -> str | None:
    return " ".join(name for name, holds in kinds.items() if holds) or None


def _cell(cell: Any, column: Column, classes: str | None, *, header: bool) -> dict[str, Any]:
    """Element, attributes and content of a cell: text, or number and spread; the unit is in the header."""
    value, (number, *spread) = sort_value(cell), text_of(cell, Column("", column.digits)).split(" ± ")
    return {
        "tag": "th" if header else "td",
        "attributes": {
            "scope": "row" if header else None,
            "class": classes,
            "data-value": None if value is None else repr(value),
            "data-gap": "" if cell is None else None,
        },
        "gap": cell is None,
        "text": cell if isinstance(cell, str) else None,
        "number": number,
        "spread": spread,
    }
