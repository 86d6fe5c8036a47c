"""Forged files: damage at random places, and values that nobody would write, drawn from a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

COUNT = 500  # forgeries for each opener
# What a terminal, rich or a browser obeys when it is not written out; half a character; a long name.
TEXTS = (
    "\x1b[2J\x1b[31mred", "\x1b]0;owned\x07", "\x9b31m", "\r\nall is well", "\x08\x08\x00", "\u202etxt.exe",
    "[red]x[/red]", "[/]", "[/red]", "[link=file:///x]y[/link]", ":skull:", "[@click=app.quit]x",
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</title></style></script>",
    "$style ${x} $", "%s %n {0} {}", "\ud800", "caf\u00e9 \U0001f600", "", "a" * 50_000,
    "../../etc/passwd", "nan", "-1",
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, -0.0, 1e308, float("nan"),
    float("inf"), [], {}, [[]], [None], {"": None}, {"kind": "x", "settings": {}}, {"kind": []},
)  # fmt: skip
FOREIGN = (
    b"", b"\x00", b"{}", b"[]", b"PK\x05\x06" + bytes(18), b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"\x7fELF",
    b"\x80\x04K\x01.", b"%PDF-1.7", b"<html>", b"\xff\xfe{\x00}\x00", b"\x1f\x8b\x08\x00", bytes(4096),
    b"\xff" * 4096,
)  # fmt: skip


def strange(draw: random.Random) -> Any:
    """A value that does not belong: of another type, out of range, deep, or with something to obey."""
    kind = draw.randrange(5)
    if kind == 0:
        return nested(draw.choice((50, 400, 900)))
    return draw.choice(VALUES) if kind < 3 else draw.choice(TEXTS)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def changed(tree: Any, draw: random.Random) -> Any:
    """A copy of a JSON value in which one place, somewhere, is replaced, left out, doubled or renamed."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    holder, key = draw.choice(places)
    deed = draw.randrange(6)
    if deed == 0 and isinstance(holder, dict):
        del holder[key]
    elif deed == 1 and isinstance(holder, dict):
        holder[draw.choice(TEXTS)] = holder.pop(key)
    elif deed == 1:
        holder.insert(key, copy.deepcopy(holder[key]))
    elif deed == 2:
        other, at = draw.choice(places)
        holder[key] = copy.deepcopy(other[at])
    else:
        holder[key] = strange(draw)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield tree, key
        yield from _places(value)


def as_json(tree: Any, draw: random.Random) -> str:
    """The value as JSON, now and then with a key twice, or with text after it."""
    text = json.dumps(tree)
    kind = draw.randrange(20)
    if kind == 0 and isinstance(tree, dict) and tree:
        key = draw.choice(list(tree))
        return text[:-1] + ", " + json.dumps({key: strange(draw)})[1:]
    return text + draw.choice(("", "]", "\x00", " {}")) if kind == 1 else text


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The bytes cut, with bits flipped, a part overwritten, put in, left out or moved, or others."""
    kind, at = draw.randrange(7), draw.randrange(len(content) + 1)
    length = draw.choice((1, 2, 4, 8, 64, 500))
    end = min(len(content), at + length)
    if kind == 0:
        return content[:at]
    if kind == 1:
        flipped = bytearray(content)
        for _ in range(draw.choice((1, 1, 3, 30))):
            flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    if kind == 2:
        return content[:at] + draw.choice((b"\x00", b"\xff", b"\x1b", b"9")) * (end - at) + content[end:]
    if kind == 3:
        return content[:at] + draw.randbytes(length) + content[at:]
    if kind == 4:
        return content[:at] + content[end:]
    if kind == 5:
        return content[at:] + content[:at]
    return draw.choice(FOREIGN)
