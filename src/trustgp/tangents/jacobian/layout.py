"""Where are the rows in what a layer is given and gives?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


class LayoutError(RuntimeError):
    """A tensor does not hold the rows where they were when the network was probed."""


@dataclass(frozen=True)
class Layout:
    """Where the rows are in what a layer is given and gives.

    Args:
        axis: The dimension.
        inner: Where this dimension holds rows times positions: whether the rows run faster.
    """

    axis: int = 0
    inner: bool = False

    def rows(self, tensor: Tensor, n: int, *, skip: int = 0) -> Tensor:
        """The tensor as [n, positions, ...]; the first `skip` dimensions stay in front."""
        tensor = tensor.movedim(self.axis + skip, skip)
        positions, rest = divmod(tensor.shape[skip], n)
        if rest:
            raise LayoutError(f"{tensor.shape[skip]} is no multiple of the {n} rows")
        if self.inner:
            return tensor.unflatten(skip, (positions, n)).transpose(skip, skip + 1)
        return tensor.unflatten(skip, (n, positions))


def layout_of(few: Sequence[tuple[int, ...]], more: Sequence[tuple[int, ...]]) -> Layout | None:
    """Where the rows are, from a layer's shapes for two and for three rows; None: they are nowhere.

    Raises:
        LayoutError: When that cannot be told.
    """
    found = set()
    for two, three in zip(few, more, strict=True):
        grown = [axis for axis, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
        if not grown:
            found.add(None)
        elif len(grown) == 1 and 3 * two[grown[0]] == 2 * three[grown[0]]:
            found.add(Layout(grown[0]))
        else:
            raise LayoutError(f"shapes {two} for two rows and {three} for three")
    if len(found) != 1:
        raise LayoutError("its calls differ")
    return found.pop()
