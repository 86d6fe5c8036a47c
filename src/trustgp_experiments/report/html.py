"""HTML from pieces, where text is escaped unless it says that it is HTML."""

from __future__ import annotations

import re
from html import escape

VOID = ("img", "input")  # the elements we use that have no end


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: str | None, **attributes: str | bool | int | None) -> Html:
    """An element: `tag("p", "1 < 2", class_="note")` is `<p class="note">1 &lt; 2</p>`.

    Html stands as it is, other text is escaped, None is left out. A final underscore of an attribute falls
    off, others become hyphens; True is the name alone, None and False are left out.
    """
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{name}{words}>" + ("" if name in VOID else f"{join(*children)}</{name}>"))


def join(*children: str | None) -> Html:
    """The children, one after another."""
    known = (child for child in children if child is not None)
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in known))


def prose(text: str) -> Html:
    """Plain words in which `code` may stand between backticks; no line begins with ± or %, or ends in ±."""
    parts = re.split(r"`([^`]+)`", re.sub(r"(?<=\d) (?=[±%])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", text))
    return join(*(tag("code", part) if place % 2 else part for place, part in enumerate(parts)))


def _attribute(name: str, value: str | bool | int | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
