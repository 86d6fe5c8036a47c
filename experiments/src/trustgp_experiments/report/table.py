"""A table as HTML, in which text is escaped: grouped by its block, the best in bold; it sorts and filters."""

import re
from html import escape
from typing import Any

from ..core.result import Column, Table
from .terminal import best_cells, blocks_of, leading, text_of

VOID = ("img", "input")  # the elements we use that have no end


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: str | None, **attributes: str | bool | int | None) -> Html:
    """An element: `tag("p", "1 < 2", class_="note")` is `<p class="note">1 &lt; 2</p>`.

    Html stands as it is, other text is escaped, None is left out. A final underscore of an attribute falls
    off, others become hyphens; True is the name alone, None and False are left out.
    """
    words, names = "", {key: key.rstrip("_").replace("_", "-") for key in attributes}
    for key, value in attributes.items():
        if value is not None and value is not False:
            words += f" {names[key]}" if value is True else f' {names[key]}="{escape(str(value))}"'
    return Html(f"<{name}{words}>" + ("" if name in VOID else f"{join(*children)}</{name}>"))


def join(*children: str | None) -> Html:
    """The children, one after another."""
    known = (child for child in children if child is not None)
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in known))


def prose(text: str) -> Html:
    """Plain words in which `code` may stand between backticks; no line begins with ± or %, or ends in ±."""
    parts = re.split(r"`([^`]+)`", re.sub(r"(?<=\d) (?=[±%])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", text))
    return join(*(tag("code", part) if place % 2 else part for place, part in enumerate(parts)))


LONG = 12  # rows above which a filter is offered
WIDE = 18  # letters above which the first column is broken into lines
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_ARROWS = {"low": "↓", "high": "↑"}
_WORDS = {"low": "lower is better", "high": "higher is better"}


def table_html(table: Table, name: str) -> Html:
    """The table with its title, tools, key and note; `name` is its id on the page."""
    grouped = table.block is not None and len(blocks_of(table)) < len(table.rows)
    # the column that stays in sight: the first that says what a row is about within its group
    stick = next((i for i, c in enumerate(table.columns) if not grouped or c.name != table.block), 0)
    widest = max((len(str(row[stick])) for row in table.rows), default=0)
    classes = [
        _names(number=column.digits >= 0, stick=place == stick, block=column.name == table.block)
        for place, column in enumerate(table.columns)
    ]
    heads = map(_header, table.columns, classes)
    bodies = _bodies(table, stick, classes, grouped)
    kinds = _names(grouped=grouped, long=widest > WIDE)
    whole = tag("table", tag("thead", tag("tr", *heads)), *bodies, class_=kinds)
    return tag(
        "section",
        tag("div", tag("h3", table.title, id=f"{name}-title"), _tools(table, grouped), class_="bar"),
        tag("div", whole, class_="scroll", tabindex="0", role="region", aria_labelledby=f"{name}-title"),
        _key(table, grouped),
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


def _names(**kinds: bool) -> str | None:
    return " ".join(name for name, holds in kinds.items() if holds) or None


def _header(column: Column, classes: str | None) -> Html:
    words: list[str] = [column.name]
    if column.unit:
        words += [" ", tag("span", column.unit, class_="unit")]
    if column.better:
        words += [" ", tag("span", _ARROWS[column.better], class_="better", title=_WORDS[column.better])]
    return tag("th", tag("button", *words, type="button"), scope="col", aria_sort="none", class_=classes)


def _bodies(table: Table, stick: int, classes: list[str | None], grouped: bool) -> list[Html]:
    """One `tbody` for each block, under a line with its name."""
    best, bodies = best_cells(table), []
    for block, numbers in blocks_of(table).items() if grouped else [(None, range(len(table.rows)))]:
        rows = []
        if block is not None:
            label = tag("th", tag("span", block), colspan=len(table.columns), scope="rowgroup")
            rows.append(tag("tr", label, class_="group"))
        for number in numbers:
            cells = []
            for place, (cell, column) in enumerate(zip(table.rows[number], table.columns, strict=True)):
                content = _cell(cell, column)
                content = tag("strong", content) if (number, place) in best else content
                cells.append(_place(cell, content, place == stick, classes[place]))
            rows.append(tag("tr", *cells))
        bodies.append(tag("tbody", *rows))
    return bodies


def _place(cell: Any, content: Html, stick: bool, classes: str | None) -> Html:
    value, scope = sort_value(cell), "row" if stick else None
    data = {"data_value": None if value is None else repr(value), "data_gap": cell is None}
    return tag("th" if stick else "td", content, scope=scope, class_=classes, **data)


def _cell(cell: Any, column: Column) -> Html:
    """The number, its spread in small print; the unit stands in the header."""
    if cell is None:
        return tag("span", "\N{EN DASH}", class_="gap", title="no value")
    if isinstance(cell, str):
        return prose(cell)
    first, *spread = text_of(cell, Column(column.name, column.digits)).split(" ± ")
    return join(first, *(tag("span", f" ± {part}", class_="spread") for part in spread))


def _tools(table: Table, grouped: bool) -> Html | None:
    """Shown only where scripts run, for they do nothing without."""
    tools = []
    off = {"autocomplete": "off"}  # a page that is loaded again begins as it was written
    if grouped:
        box = tag("input", type="checkbox", class_="grouping", checked=True, **off)
        tools.append(tag("label", box, f" Grouped by {table.block}"))
    if len(table.rows) > LONG:
        words = {"placeholder": "Filter rows", "aria_label": f"Filter the rows of: {table.title}"}
        tools.append(tag("output", f"{len(table.rows)} rows"))
        tools.append(tag("input", type="search", class_="filter", **words, **off))
    return tag("div", *tools, class_="tools") if tools else None


def _key(table: Table, grouped: bool) -> Html | None:
    ends = [end for end in _WORDS if any(column.better == end for column in table.columns)]
    if not ends:
        return None
    words = ", ".join(f"{_ARROWS[end]} {_WORDS[end]}" for end in ends)
    where = f" of each {table.block}" if grouped else ""
    spread = any(isinstance(cell, list | tuple) for row in table.rows for cell in row)
    end = "; ±: the spread over seeds." if spread else "."
    return tag("p", tag("strong", "Bold"), f": the best{where}; {words}{end}", class_="key")
