"""Small text tables for terminals and notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def text_table(title: str, rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Table as plain text: the title, a line for each row in aligned columns, and the note."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
    return "\n".join([title, *(f"  {line}" for line in [*lines, *([note] if note else [])])])


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Table as HTML for a notebook, with a header; markup in the texts is escaped."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    caption = f'<caption style="text-align: left">{escape(title)}</caption>'
    return f"<table>{caption}<thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>{below}"
