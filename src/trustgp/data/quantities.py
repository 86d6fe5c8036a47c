"""Sizes in bytes, read from and written as text."""

import re
from dataclasses import dataclass

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
EXACT = "none"  # instead of a budget: experts keep everything, at any size
_QUANTITY = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]+)\s*")


@dataclass(frozen=True)
class Budget:
    """The largest size that a model may have."""

    size: int | None = None  # bytes; None: any
    exact: bool = False  # whether experts keep everything, exactly; else a model is light


BudgetText = int | str | None  # a budget as a user may write it


def parse_budget(value: BudgetText, *, name: str) -> Budget:
    """A budget from bytes, a text like "64 MiB", or "none"."""
    if value is None or value == EXACT:
        return Budget(exact=value == EXACT)
    return Budget(parse_bytes(value, name=name))


def parse_bytes(value: int | str, *, name: str) -> int:
    """Bytes from a number or a text like "64 MiB"."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match[2].lower() in _UNITS:
        value = int(float(match[1]) * _UNITS[match[2].lower()])
    elif isinstance(value, bool) or not isinstance(value, int):
        given = f'"{value}"' if isinstance(value, str) else value
        raise ValueError(f'{name}={given}; write bytes, or a text like "64 MiB" or "2 GB".')
    if value < 1:
        raise ValueError(f"{name}={value} bytes; a positive size is needed.")
    return value


def size_text(size: float) -> str:
    """Bytes as text with a unit, such as "64.0 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
