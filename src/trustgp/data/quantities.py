"""Sizes and times as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_ALLOWED = 'write bytes, a text like "64 MiB" or "2 GB", a time like "2 ms", "64 MiB, 2 ms", or "none".'
EXACT = "none"  # instead of a budget: experts that keep all they know, however large that is
_QUANTITY = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Zµ]+)\s*")


@dataclass(frozen=True)
class Budget:
    """What a model may take."""

    size: int | None = None  # bytes; None: any
    seconds: float | None = None  # of a prediction for one row; None: any
    exact: bool = False  # whether experts keep all they know, exactly; else a model is light

    def __str__(self) -> str:
        said = [] if self.size is None else [size_text(self.size)]
        said += [] if self.seconds is None else [f"{1e3 * self.seconds:g} ms"]
        return " and ".join(said) or "no limit"

    def allows(self, size: int, seconds: float | None = None) -> bool:
        """Whether a model that takes so much stays within it; without a time: as far as its size goes."""
        small = self.size is None or size <= self.size
        return small and (self.seconds is None or seconds is None or seconds <= self.seconds)


BudgetText = int | str | Sequence[int | str] | Budget | None
"""A budget as a user may write it."""


def parse_budget(value: BudgetText, *, name: str) -> Budget:
    """A budget from bytes, a text like "64 MiB", "2 ms" or "64 MiB, 2 ms", or several of these."""
    if value is None or isinstance(value, Budget):
        return value or Budget()
    if value == EXACT:
        return Budget(exact=True)
    parts = (
        value.split(",")
        if isinstance(value, str)
        else list(value)
        if isinstance(value, Sequence)
        else [value]
    )
    sizes, times = [], []
    for part in parts:
        match = _QUANTITY.fullmatch(part) if isinstance(part, str) else None
        unit = "" if match is None else match[2].lower()
        if match is not None and unit in _TIMES:
            times.append(float(match[1]) * _TIMES[unit])
        elif unit in _UNITS or (isinstance(part, int) and not isinstance(part, bool)):
            sizes.append(parse_bytes(part, name=name))
        else:
            raise ValueError(f"{name}={value!r}; {_ALLOWED}")
    if len(sizes) > 1 or len(times) > 1 or not parts:
        raise ValueError(f"{name}={value!r} names {len(sizes)} sizes and {len(times)} times; {_ALLOWED}")
    if times and not times[0] > 0:
        raise ValueError(f"{name}={value!r}; a positive time is needed.")
    return Budget(*sizes or [None], *times)


def parse_bytes(value: int | str, *, name: str) -> int:
    """Bytes from a number or a text like "64 MiB"."""
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
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
