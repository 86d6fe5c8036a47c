"""Sizes of experts and gates, estimated before the fit."""

from dataclasses import dataclass
from math import ceil

from ..experts.gate import OVERSIZE
from ..experts.neighbours import lend_rows
from ..tangents.base import TangentMap
from .prepare import Prepared

MIN_RANK = 8  # an expert with fewer directions than this, if it has them, is not worth its gate
OVERHEAD = 64 * 2**10  # bytes of names, scales and settings
# Measured: rows of experts over their mean, and experts over the number asked for, since some are split.
UNEVEN, SPLIT = (0.6, 0.8, 1.0, 1.2, 1.4), 1.02


def expert_bytes(tangents: TangentMap, rows: int, num_outputs: int, most: int | None = None) -> int:
    """Bytes of an expert of `rows` rows that keeps at most `most` directions (None: all)."""
    width = tangents.num_columns(expert=True)
    numbers = 8 * (3 * num_outputs + 4)  # scales, noise, kappa, jitter, sizes
    if width is None:
        return numbers + rows * (tangents.row_bytes() + 8 * rows + 8 * num_outputs + 8)
    rank = min(rows, width, width if most is None else most)
    chosen = 8 if width != tangents.num_columns(expert=False) else 0  # which columns it keeps
    basis = width * (rank * tangents.network.dtype.itemsize + 8 * num_outputs + chosen)
    return numbers + basis + 8 * rank + 8 * rows


def gate_bytes(tangents: TangentMap, subset: int, components: int, num_experts: int) -> int:
    """Bytes of a gate and its kernel: the mix, and which parameters are kept."""
    kernel = sum(value.nbytes for value in tangents.state().values())
    if num_experts == 1:
        return kernel + 8
    width = tangents.num_columns(expert=False)
    rows = subset * (tangents.row_bytes() + 8 * components)
    projection = rows if width is None else 8 * width * components
    return kernel + projection + 8 * components * (num_experts + 1)


@dataclass(frozen=True)
class Sizing:
    """Row counts of the experts, and the size of a model of them without a witness."""

    ready: Prepared
    n: int  # rows of all experts together
    num_experts: int  # of each kernel, as asked for

    @property
    def outputs(self) -> int:
        """Number of outputs that the experts of all kernels learn."""
        return len(self.ready.projections) or self.ready.num_outputs

    @property
    def subset(self) -> int:
        """Number of rows of the gate."""
        return self.ready.options.division.subset_size(self.n, self.num_experts)

    @property
    def largest(self) -> int:
        """Number of own rows of the largest expert."""
        mean = ceil(self.n / self.num_experts)
        return min(self.n, ceil(OVERSIZE * mean)) if self.num_experts > 1 else self.n

    def borrowed(self, actual: int) -> int:
        """Number of rows that an expert borrows from its neighbours, if there are `actual` experts."""
        patchwork = self.ready.options.patchwork
        return lend_rows(patchwork, self.n, self.num_experts) * min(patchwork.neighbours, actual - 1)

    def expected(self, rank: int | None) -> int:
        """Approximate bytes of a model whose experts keep at most `rank` directions (None: all)."""
        rows = ceil(self.n / self.num_experts) + self.borrowed(self.num_experts)
        outputs, components = self.outputs // len(self.ready.maps), self.ready.options.division.components
        uneven, split = (UNEVEN, SPLIT) if self.num_experts > 1 else ((1.0,), 1.0)
        total = 0.0
        for one, _ in self.ready.maps:
            sizes = [expert_bytes(one, ceil(share * rows), outputs, rank) for share in uneven]
            total += split * self.num_experts * sum(sizes) / len(sizes)
            total += gate_bytes(one, self.subset, components, self.num_experts)
        return int(total)

    def least(self) -> int:
        """Bytes that are certainly enough: every expert is split, and keeps few directions."""
        most = min(2 * self.num_experts, self.n) if self.num_experts > 1 else 1
        rows, total = ceil(self.n / most) + self.borrowed(most), 0
        outputs, components = self.outputs // len(self.ready.maps), self.ready.options.division.components
        for one, _ in self.ready.maps:  # explicit: the gate holds no rows
            total += OVERHEAD + gate_bytes(one, 0, components, most)
            total += most * expert_bytes(one, rows, outputs, MIN_RANK)
        return total
