"""A table as HTML: grouped by its block, the best in bold, ready to be sorted and filtered."""

from __future__ import annotations

import re
from typing import Any

from ..core.result import Column, Table
from .html import Html, join, prose, tag
from .terminal import best_cells, blocks_of, leading, text_of

LONG = 12  # rows above which a filter is offered
WIDE = 18  # letters above which the first column is broken into lines
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_ARROWS = {"low": "↓", "high": "↑"}
_WORDS = {"low": "lower is better", "high": "higher is better"}


def table_html(table: Table, name: str) -> Html:
    """The table with its title, tools, key and note.

    Args:
        table: Of a study.
        name: Its id on the page.
    """
    first = _sticky(table)
    widest = max((len(str(row[first])) for row in table.rows), default=0)
    kinds = {"grouped": _grouped(table), "long": widest > WIDE}
    whole = tag("table", _head(table), *_bodies(table), class_=_names(kinds))
    return tag(
        "section",
        tag("div", tag("h3", table.title, id=f"{name}-title"), _tools(table), class_="bar"),
        tag("div", whole, class_="scroll", tabindex="0", role="region", aria_labelledby=f"{name}-title"),
        _key(table),
        tag("p", prose(table.note), class_="note") if table.note else None,
        class_="table",
        id=name,
        aria_labelledby=f"{name}-title",
    )


def sort_value(cell: Any) -> float | None:
    """The number a cell is sorted by, for text the one it begins with; None where there is none."""
    if isinstance(cell, str):
        found = _NUMBER.match(cell)
        return float(found[1].replace(",", "")) if found else None
    return leading(cell)


def _grouped(table: Table) -> bool:
    return table.block is not None and len(blocks_of(table)) < len(table.rows)


def _sticky(table: Table) -> int:
    """The column that stays in sight: the first that says what a row is about within its group."""
    shown = [i for i, column in enumerate(table.columns) if not _grouped(table) or column.name != table.block]
    return shown[0] if shown else 0


def _classes(table: Table, place: int) -> str | None:
    column = table.columns[place]
    return _names(
        {
            "number": column.digits >= 0,
            "stick": place == _sticky(table),
            "block": column.name == table.block,
        }
    )


def _names(kinds: dict[str, bool]) -> str | None:
    return " ".join(name for name, holds in kinds.items() if holds) or None


def _head(table: Table) -> Html:
    cells = (_header(column, _classes(table, place)) for place, column in enumerate(table.columns))
    return tag("thead", tag("tr", *cells))


def _header(column: Column, classes: str | None) -> Html:
    words: list[str] = [column.name]
    if column.unit:
        words += [" ", tag("span", column.unit, class_="unit")]
    if column.better:
        words += [" ", tag("span", _ARROWS[column.better], class_="better", title=_WORDS[column.better])]
    return tag("th", tag("button", *words, type="button"), scope="col", aria_sort="none", class_=classes)


def _bodies(table: Table) -> list[Html]:
    """One `tbody` for each block, under a line with its name."""
    best = best_cells(table)
    bodies = []
    for block, numbers in blocks_of(table).items() if _grouped(table) else [(None, range(len(table.rows)))]:
        rows = [_row(table, number, best) for number in numbers]
        if block is not None:
            label = tag("th", tag("span", block), colspan=len(table.columns), scope="rowgroup")
            rows.insert(0, tag("tr", label, class_="group"))
        bodies.append(tag("tbody", *rows))
    return bodies


def _row(table: Table, number: int, best: set[tuple[int, int]]) -> Html:
    cells = []
    for place, cell in enumerate(table.rows[number]):
        value, stick = sort_value(cell), place == _sticky(table)
        content = _cell(cell, table.columns[place])
        cells.append(
            tag(
                "th" if stick else "td",
                tag("strong", content) if (number, place) in best else content,
                scope="row" if stick else None,
                class_=_classes(table, place),
                data_value=None if value is None else repr(value),
                data_gap=cell is None,
            )
        )
    return tag("tr", *cells)


def _cell(cell: Any, column: Column) -> Html:
    """The number, its spread in small print; the unit stands in the header."""
    if cell is None:
        return tag("span", "\N{EN DASH}", class_="gap", title="no value")
    if isinstance(cell, str):
        return prose(cell)
    first, *spread = text_of(cell, Column(column.name, column.digits)).split(" ± ")
    return join(first, *(tag("span", f" ± {part}", class_="spread") for part in spread))


def _tools(table: Table) -> Html | None:
    """Shown only where scripts run, for they do nothing without."""
    tools = []
    off = {"autocomplete": "off"}  # a page that is loaded again begins as it was written
    if _grouped(table):
        box = tag("input", type="checkbox", class_="grouping", checked=True, **off)
        tools.append(tag("label", box, f" Grouped by {table.block}"))
    if len(table.rows) > LONG:
        label = f"Filter the rows of: {table.title}"
        tools.append(tag("output", f"{len(table.rows)} rows"))
        tools.append(
            tag("input", type="search", class_="filter", placeholder="Filter rows", aria_label=label, **off)
        )
    return tag("div", *tools, class_="tools") if tools else None


def _key(table: Table) -> Html | None:
    ends = [end for end in _WORDS if any(column.better == end for column in table.columns)]
    if not ends:
        return None
    words = ", ".join(f"{_ARROWS[end]} {_WORDS[end]}" for end in ends)
    where = f" of each {table.block}" if _grouped(table) else ""
    spread = any(isinstance(cell, list | tuple) for row in table.rows for cell in row)
    return tag(
        "p",
        tag("strong", "Bold"),
        f": the best{where}; {words}",
        "; ±: the spread over seeds." if spread else ".",
        class_="key",
    )
