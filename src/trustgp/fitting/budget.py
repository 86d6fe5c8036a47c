"""What a model holds, and the rows that fit a budget."""

from __future__ import annotations

from ..experts.gate import Division
from ..experts.neighbours import RowQuota
from ..tangents.base import TangentMap

FEWEST_ROWS = 8  # an expert with fewer rows than this, if it has them, is not worth its gate
OVERHEAD = 64 * 2**10  # names, scales and settings


def expert_bytes(tangents: TangentMap, rows: int, num_outputs: int) -> int:
    """What an expert of so many rows holds."""
    width = tangents.num_columns(expert=True)
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
    width = tangents.num_columns(expert=False)
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
    if tangents.num_columns(expert=False) is not None:  # contracted: its size does not depend on the rows
        return wanted
    room = budget // 4 // (tangents.row_bytes() + 8 * division.components)
    return min(wanted, max(room, smallest_subset(division, n, num_experts)))


def quota_for_budget(
    tangents: TangentMap,
    sizes: list[int],
    neighbours: list[int],
    lend: int,
    room: int,
    num_outputs: int,
) -> RowQuota:
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
    return RowQuota(low, share(low))
