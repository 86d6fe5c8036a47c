"""Sizes and times as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_ALLOWED = 'write bytes, a text like "64 MiB" or "2 GB", a time like "2 ms", or "64 MiB, 2 ms".'
_QUANTITY = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Zµ]+)\s*")


@dataclass(frozen=True)
class Budget:
    """What a model may take.

    Args:
        size: Bytes; None: any.
        seconds: Of a prediction for one row; None: any.
        during_fit: Whether experts keep to it while they are fitted, also where a smaller form of a whole
            model could be had: for studies of just that, and where a second fit would take too long.
    """

    size: int | None = None
    seconds: float | None = None
    during_fit: bool = False

    def __str__(self) -> str:
        said = [] if self.size is None else [size_text(self.size)]
        said += [] if self.seconds is None else [f"{1e3 * self.seconds:g} ms"]
        return " and ".join(said) or "no limit"


BudgetText = int | str | Sequence[int | str] | Budget | None
"""A budget as a user may write it."""


def parse_budget(value: BudgetText, *, name: str) -> Budget:
    """A budget from bytes, a text like "64 MiB", "2 ms" or "64 MiB, 2 ms", or several of these."""
    if value is None or isinstance(value, Budget):
        return value or Budget()
    parts = [value] if isinstance(value, int) else value.split(",") if isinstance(value, str) else list(value)
    sizes, times = [], []
    for part in parts:
        match = _QUANTITY.fullmatch(part) if isinstance(part, str) else None
        if match is not None and match[2].lower() in _TIMES:
            times.append(float(match[1]) * _TIMES[match[2].lower()])
        elif match is not None and match[2].lower() not in _UNITS:
            raise ValueError(f"{name}={value!r}; {_ALLOWED}")
        else:
            sizes.append(_parsed_size(part, value, name))
    if len(sizes) > 1 or len(times) > 1 or not parts:
        raise ValueError(f"{name}={value!r} names {len(sizes)} sizes and {len(times)} times; {_ALLOWED}")
    if times and not times[0] > 0:
        raise ValueError(f"{name}={value!r}; a positive time is needed.")
    return Budget(*sizes or [None], *times)


def _parsed_size(part: int | str, given: object, name: str) -> int:
    if isinstance(part, bool) or not isinstance(part, (int, str)):
        raise ValueError(f"{name}={given!r}; {_ALLOWED}")
    if isinstance(part, str) and _QUANTITY.fullmatch(part) is None:
        raise ValueError(f"{name}={given!r}; {_ALLOWED}")
    return parse_bytes(part, name=name)


def parse_bytes(value: int | str, *, name: str) -> int:
    """Bytes from a number or a text like "64 MiB"."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]+)\s*", value)
        if match is None or match[2].lower() not in _UNITS:
            raise ValueError(f'{name}="{value}"; write bytes, or a text like "64 MiB" or "2 GB".')
        value = int(float(match[1]) * _UNITS[match[2].lower()])
    if value < 1:
        raise ValueError(f"{name}={value} bytes; a positive size is needed.")
    return value


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
