"""What a model holds, and the rows that fit a budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .gating import Division
from .solving import Handout
from .tangents.base import TangentMap

FEWEST_ROWS = 8  # an expert with fewer rows than this, if it has them, is not worth its gate
OVERHEAD = 64 * 2**10  # names, scales and settings
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
    """

    size: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        said = [] if self.size is None else [size_text(self.size)]
        said += [] if self.seconds is None else [f"{1e3 * self.seconds:g} ms"]
        return " and ".join(said) or "no limit"


def parse_budget(value: int | str | Sequence[int | str] | None, *, name: str) -> Budget:
    """A budget from bytes, a text like "64 MiB", "2 ms" or "64 MiB, 2 ms", or several of these."""
    if value is None:
        return Budget()
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


class FromTheStart(int):
    """Bytes that experts keep to while they are fitted, also where a smaller form of a whole model could be
    had: for studies of just that, and where a second fit would take too long."""


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


def expert_bytes(tangents: TangentMap, rows: int, num_outputs: int) -> int:
    """What an expert of so many rows holds."""
    width = tangents.width(expert=True)
    numbers = 8 * (3 * num_outputs + 4)  # scales, noise, kappa, jitter, sizes
    if width is None:
        return numbers + rows * (tangents.row_bytes() + 8 * rows + 8 * num_outputs + 8)
    rank = min(rows, width)
    basis = width * (rank * tangents.network.dtype.itemsize + 8 * num_outputs + 8)
    return numbers + basis + 8 * rank + 8 * rows


def gate_bytes(tangents: TangentMap, subset: int, components: int, num_experts: int) -> int:
    """What a gate holds, with what the kernel itself needs: the mix, and which parameters are kept."""
    kernel = sum(value.numel() * value.element_size() for value in tangents.state().values())
    if num_experts == 1:
        return kernel + 8
    width = tangents.width(expert=False)
    projection = subset * (tangents.row_bytes() + 8 * components)
    if width is not None:
        projection = 8 * width * components
    return kernel + projection + 8 * components * (num_experts + 1)


def smallest_subset(division: Division, n: int, num_experts: int) -> int:
    """The gate's rows below which a budget may not push it."""
    return min(division.subset_size(n, num_experts), max(32, 2 * num_experts), n)


def smallest_budget(
    tangents: TangentMap, n: int, num_experts: int, division: Division, num_outputs: int
) -> int:
    """The least memory with which a model of so many experts, each split once, is possible."""
    most = min(2 * num_experts, n) if num_experts > 1 else 1
    subset = smallest_subset(division, n, num_experts)
    gate = gate_bytes(tangents, subset, division.components, most)
    return OVERHEAD + gate + most * expert_bytes(tangents, min(FEWEST_ROWS, n), num_outputs)


def subset_for_budget(tangents: TangentMap, n: int, num_experts: int, division: Division, budget: int) -> int:
    """The gate's rows such that it takes at most a quarter of the budget, if that is possible."""
    wanted = division.subset_size(n, num_experts)
    if tangents.width(expert=False) is not None:  # contracted: its size does not depend on the rows
        return wanted
    room = budget // 4 // (tangents.row_bytes() + 8 * division.components)
    return min(wanted, max(room, smallest_subset(division, n, num_experts)))


def handout_for_budget(
    tangents: TangentMap,
    sizes: list[int],
    neighbours: list[int],
    lend: int,
    room: int,
    num_outputs: int,
) -> Handout:
    """The most rows per expert such that all experts together stay within `room` bytes.

    Args:
        sizes: Own rows of each expert.
        neighbours: How many neighbours each has.
        lend: Rows wanted from each neighbour.
        room: Bytes for the experts.
    """
    most = max(sizes)

    def share(cap: int) -> int:  # neighbours lend as much less as there is less to hold
        return lend * cap // most

    def total(cap: int) -> int:
        return sum(
            expert_bytes(tangents, min(own, cap) + share(cap) * near, num_outputs)
            for own, near in zip(sizes, neighbours, strict=True)
        )

    low, high = 1, most
    while low < high:  # the largest cap that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if total(middle) <= room else (low, middle - 1)
    return Handout(low, share(low))
