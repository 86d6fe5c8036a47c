"""Small tables for terminals and notebooks, made of texts."""

from collections.abc import Iterable, Sequence
from html import escape


def text_table(title: str, rows: Iterable[Sequence[str]], note: str = "") -> str:
    """The title, and a line for each row below it, in columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
    return "\n".join([title, *(f"  {line}" for line in [*lines, *([note] if note else [])])])


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """The same for a notebook, with a header. Every text is shown as it is: markup in it is not obeyed."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    caption = f'<caption style="text-align: left">{escape(title)}</caption>'
    return f"<table>{caption}<thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>{below}"
