r"""Tangent features as sketches of gradient rows: any network, `dim` numbers a row whatever its size.

At a layer the gradient of a row is :math:`\sum_t g_t a_t^\top`. It is never materialised: inputs and signals
are projected first, :math:`\sum_t (P^\top g_t) (Q^\top a_t)^\top`, with P and Q of `width` columns,

.. math:: P = \big[ V, \sqrt{(m - r) / (k - r)} \; Z \big], \qquad E[P P^\top] = I,

where V are the r leading directions of a few rows at this layer and Z is random and orthonormal in their
complement. So the kernel is unbiased for any V, and its error comes from the directions outside V. Where
k >= m nothing is projected. A convolution projects the channels of each group. Biases, and parameters that no
layer covers, are not projected.

The numbers of all layers are then hashed to `dim` buckets with random signs; a bucket is used a second time
only when every one has been used. Each of K mixed outputs has its own cyclic shift and sign.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import working_set
from ..data.trees import Inputs
from .base import Tangents
from .chain import MAX_GATHERED, ChainRows, LayerChain
from .jacobian.accumulators import DenseAccumulator
from .jacobian.per_sample import Gradients
from .network import Choice, TangentNetwork
from .projections import Projections, find_projections
from .rows import GradientMap, RowFeatures

MIN_DIM, MIN_WIDTH = 16, 2  # fewer numbers do not approximate a kernel


@dataclass(frozen=True)
class Sketch(Tangents):
    """Projected gradients in random-sign buckets: unbiased for the kernel, its error falls as 1/sqrt(dim).

    Args:
        dim: Numbers per row.
        parameters: "all", "last", or names of parameters.
        seed: Seed of the projections, buckets and signs.
        width: Numbers to which inputs and signals of each layer are projected.

    Examples:
        >>> model = trustgp.fit(network, train, tangents=trustgp.Sketch(64), progress=False)
    """

    dim: int = 4096
    parameters: Choice = "all"
    seed: int = 0
    width: int = 32

    def __post_init__(self) -> None:
        for name, minimum in (("dim", MIN_DIM), ("width", MIN_WIDTH)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < minimum:
                raise ValueError(f"{name}={value}; a whole number of at least {minimum} is needed.")

    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> SketchMap:
        gradients = Gradients(network, mix)
        working = gradients.plan(sample).row_bytes
        return SketchMap(gradients, self, working, find_projections(gradients, sample, self.width, self.seed))

    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> SketchMap:
        projections: dict[tuple[str, str], Tensor] = {}
        shapes = [value.shape for value in network.parameters.values()]
        for key, value in state.items():
            side, _, number = key.partition(".")
            if number:
                if shapes[int(number)][("left", "right").index(side)] % len(value):
                    raise ValueError(f"{key} does not project '{network.names[int(number)]}'")
                projections[network.names[int(number)], side] = value.to(network.device)
        return SketchMap(Gradients(network, state["mix"]), self, int(state["working_bytes"]), projections)


class SketchMap(GradientMap):
    """Computes sketches in chunks of rows; all mixed outputs share one row of `dim` numbers."""

    def __init__(self, gradients: Gradients, sketch: Sketch, layer_bytes: int, by: Projections) -> None:
        super().__init__(gradients)
        self.sketch, self.projections, self._layer_bytes = sketch, by, layer_bytes
        self._tables: dict[torch.device, Tables] = {}

    def collector(self, n: int, mixed: int | None = None) -> SketchCollector:
        return SketchCollector(self.tables, n, mixed or len(self.mix))

    def gathered(self, chain: LayerChain) -> ChainRows | None:
        tables, mix = self.tables, self.mix.to(self.network.device, self.network.dtype)
        if tables.entries.numel() > MAX_GATHERED:
            return None
        # the one mixed output has a shift and a sign, too
        entries, signs = (table[:, tables.shift[0].long()] for table in (tables.entries, tables.signs))
        return ChainRows(chain, mix, tables.cores, tables.projections, (entries, signs * tables.turn))

    def chunk_memory(self) -> int:
        space = working_set(self.network.device, self.working_bytes())
        return space * (1 if self.network.device.type == "cuda" else 2)

    def num_columns(self, *, expert: bool) -> int:
        return self.sketch.dim

    def working_bytes(self) -> int:
        numbers = self.gradients.num_mixed * (self.tables.size + 2 * max(self.tables.size, self.sketch.dim))
        return self._layer_bytes + numbers * self.network.dtype.itemsize

    def state(self) -> dict[str, Tensor]:
        state = {"mix": self.mix, "working_bytes": torch.tensor(self._layer_bytes)}
        numbers = {name: number for number, name in enumerate(self.network.names)}
        return state | {f"{side}.{numbers[name]}": value for (name, side), value in self.projections.items()}

    @property
    def tables(self) -> Tables:
        """Projections, buckets and signs, on the network's device."""
        device = self.network.device
        if device not in self._tables:
            generator = torch.Generator().manual_seed(self.sketch.seed)
            shapes = {name: value.shape for name, value in self.network.parameters.items()}
            dim, mixed = self.sketch.dim, len(self.mix)
            cores = core_shapes(shapes, self.projections)
            entries, signs = spread(cores, self.projections, dim, generator)
            buckets = [torch.randperm(dim, generator=generator) for _ in range(math.ceil(mixed / dim))]
            turn = torch.randint(0, 2, (mixed,), generator=generator, dtype=torch.int8) * 2 - 1
            shift = (torch.arange(dim) - torch.cat(buckets)[:mixed, None]) % dim
            shift += dim * torch.arange(mixed)[:, None]
            entries, shift = (index.to(device, torch.int32) for index in (entries, shift))
            signs, turn = (sign.to(device, self.network.dtype) for sign in (signs, turn[:, None]))
            projections = {key: value.to(device) for key, value in self.projections.items()}
            self._tables = {device: Tables(projections, shapes, cores, entries, signs, shift, turn)}
        return self._tables[device]


class OutputSketchMap(SketchMap):
    """Computes sketches of each output [n, C, D] in one pass; that of a mix follows by linearity."""

    each_output = True

    def __init__(self, plain: SketchMap) -> None:
        self.num_outputs = plain.mix.shape[1]
        eye = torch.eye(self.num_outputs, dtype=torch.float64)
        gradients = Gradients(plain.network, eye, plain.gradients)
        super().__init__(gradients, plain.sketch, plain._layer_bytes, plain.projections)
        self.plain, self.mix = plain, plain.mix
        self._folded: tuple[Any, Any] = (None, None)

    def collector(self, n: int, mixed: int | None = None) -> SketchCollector:
        return SketchCollector(self.tables, n, mixed or self.num_outputs, per_output=True)

    def features(self, rows: Tensor, hidden: Tensor | None = None) -> RowFeatures:
        each, (mix, shift) = rows.reshape(rows.shape[0], self.num_outputs, -1), self._folding
        # the one mixed output has a shift and a sign
        mixed = torch.bmm(mix.expand(rows.shape[0], -1, -1), each).squeeze(1)
        return RowFeatures(mixed.index_select(1, shift), each, hidden)

    @property
    def _folding(self) -> tuple[Tensor, Tensor]:
        """The mix [1, 1, C], with its sign, and the shift [D], on the network's device."""
        tables = self.tables
        if self._folded[0] is not tables:
            self._folded = tables, ((self.mix.to(tables.turn) * tables.turn[:1])[None], tables.shift[0])
        return self._folded[1]

    def gathered(self, chain: LayerChain) -> ChainRows | None:
        tables, mix = self.tables, self.gradients.mix.to(self.network.device, self.network.dtype)
        if tables.entries.numel() > MAX_GATHERED:
            return None
        table, weights = (tables.entries, tables.signs), self.gradients.weights
        own = weights if self.gradients.top > 1 else None
        return ChainRows(chain, mix, tables.cores, tables.projections, table, own)


class LeadingSketchMap(OutputSketchMap):
    """Computes sketches of a mix and of the differences between each row's largest output and the k - 1 next,
    [n, k, D], in one pass. For one or two outputs there is only the mix: [n, 1, D]."""

    def __init__(self, plain: SketchMap, top: int) -> None:
        outputs = plain.mix.shape[1]
        gradients = Gradients(
            plain.network, plain.mix, plain.gradients, top=min(top, outputs) if outputs > 2 else 1
        )
        SketchMap.__init__(self, gradients, plain.sketch, plain._layer_bytes, plain.projections)
        self.plain, self.num_outputs = plain, gradients.num_mixed

    def features(self, rows: Tensor, hidden: Tensor | None = None) -> RowFeatures:
        each = rows.reshape(rows.shape[0], self.num_outputs, -1)
        return RowFeatures(self.tables.folded(each[:, :1]), each, hidden)


@dataclass(frozen=True)
class Tables:
    """Tables by which the gradients of n rows become sketches."""

    projections: Projections
    shapes: Mapping[str, torch.Size]  # of each parameter
    cores: Mapping[str, torch.Size]  # of their projected gradients
    entries: Tensor  # L indices for each bucket, into all parameters' projected gradients [L, D]
    signs: Tensor  # of these [L, D]; 0 where there is no entry
    shift: Tensor  # for each mixed output and bucket, the index of its source in [K * D], [K, D]
    turn: Tensor  # sign of each mixed output [K, 1]

    @cached_property
    def size(self) -> int:
        """Total size of all parameters' projected gradients of a row."""
        return sum(shape.numel() for shape in self.cores.values())

    def buckets(self, values: Tensor) -> Tensor:
        """Buckets [n, K, D] of projected gradients [n, K, size + 1], whose last column is 0."""
        buckets = values.index_select(2, self.entries.flatten()).unflatten(2, self.entries.shape)
        return (buckets * self.signs).sum(dim=2)

    def folded(self, buckets: Tensor) -> Tensor:
        """Sketches [n, D]: the sum over K mixed outputs, each with its own shift and sign."""
        buckets = buckets.flatten(1)  # [n, K * D]
        shifted = buckets.index_select(1, self.shift.flatten()).unflatten(1, self.shift.shape)
        return (shifted * self.turn).sum(dim=1)


def core_shapes(shapes: Mapping[str, torch.Size], projections: Projections) -> dict[str, torch.Size]:
    """Shapes of the parameters' projected gradients."""
    cores = {}
    for name, shape in shapes.items():
        left, right = (projections.get((name, side)) for side in ("left", "right"))
        sides = list(shape)
        if left is not None:
            sides[0] = sides[0] // left.shape[0] * left.shape[1]
        if right is not None:
            sides[1] = right.shape[1]
        cores[name] = torch.Size(sides)
    return cores


def spread(
    cores: Mapping[str, torch.Size], projections: Projections, dim: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Assign every number to a bucket; return `entries` and `signs` of `Tables`.

    A bucket is used a second time only when all have been used. Products of leading directions, the largest
    numbers, come first, so that they seldom share a bucket.
    """
    faint = torch.cat([_faintness(name, shape, projections) for name, shape in cores.items()])
    size, lines = len(faint), math.ceil(len(faint) / dim)
    order = (faint + torch.rand(size, generator=generator, dtype=torch.float32)).argsort(stable=True)
    order = torch.nn.functional.pad(order, (0, lines * dim - size), value=size).view(lines, dim)
    entries = torch.stack([line[torch.randperm(dim, generator=generator)] for line in order])
    signs = torch.randint(0, 2, entries.shape, generator=generator) * 2 - 1
    signs[entries == size] = 0
    return entries, signs


def _faintness(name: str, shape: torch.Size, projections: Projections) -> Tensor:
    """Number of random directions (0 to 2) of each entry of a projected gradient; a bias counts as one."""
    faint = torch.full(shape, float(len(shape) < 2), dtype=torch.float32)
    for axis, side in enumerate(("left", "right")):
        if (by := projections.get((name, side))) is not None:
            random = torch.arange(shape[axis]) % by.shape[1] >= by.shape[1] // 2
            faint += random.view([-1 if place == axis else 1 for place in range(len(shape))])
    return faint.flatten()


class SketchCollector(DenseAccumulator):
    """Collects projected gradients and sketches them; stored tensors are not changed in place."""

    def __init__(self, tables: Tables, n: int, mixed: int, *, per_output: bool = False) -> None:
        self.per_output = per_output  # whether the rows are the buckets of each mixed output, [n, K * D]
        self.tables, self.shapes, self._n, self._rows = tables, tables.cores, n, slice(None)
        self._lots: list[dict[str, Tensor]] = [{} for _ in range(mixed)]  # [n, 1, d] of each parameter

    def part(self, rows: slice, mixed: slice) -> SketchCollector:
        part = copy.copy(self)
        part._rows, part._lots = (self._rows if rows == slice(None) else rows), self._lots[mixed]
        return part

    def room(self, size: int) -> int:
        return 0  # projections are small

    def thin(self, name: str, side: str, values: Tensor, axis: int, groups: int) -> Tensor:
        """The values projected along the channels, dimension `axis`, of each group."""
        if (by := self.tables.projections.get((name, side))) is None:
            return values
        if axis == -1:
            return values.to(by.dtype) @ by
        channels, wide = by.shape
        parted = values.to(by.dtype).reshape(-1, channels, values.shape[axis + 1 :].numel())  # [n * g, c, p]
        thin = torch.bmm(by.T.expand(len(parted), -1, -1), parted)
        return thin.reshape(*values.shape[:axis], groups * wide, *values.shape[axis + 1 :])

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        if (lines := self.tables.projections.get((name, "left"))) is None:
            return super().lookup(name, index, value)
        self.add(name, lines[index].mT[:, None] @ value)

    def plain(self, name: str, value: Tensor) -> None:
        """Project the whole gradient [n, K, *shape], and add it."""
        shape = self.tables.shapes[name]
        if self.tables.cores[name] != shape:
            left, right = (self.tables.projections.get((name, side)) for side in ("left", "right"))
            value = value.reshape(*value.shape[:2], *shape)
            if left is not None:
                parted = value.unflatten(2, (-1, len(left)))  # [n, K, g, o, ...]
                value = torch.einsum("nkgo...,oa->nkga...", parted, left).flatten(2, 3)
            value = value if right is None else torch.einsum("nkoi...,ib->nkob...", value, right)
        self.add(name, value)

    def add(self, name: str, value: Tensor) -> None:
        value = value if value.ndim == 3 else value.reshape(*value.shape[:2], -1)
        parts = value.split(1, dim=1) if len(self._lots) > 1 else [value]
        for lot, one in zip(self._lots, parts, strict=True):
            if self._rows == slice(None):
                lot[name] = lot[name] + one if name in lot else one
            else:  # not in place: others may share this tensor
                whole = lot[name].clone() if name in lot else one.new_zeros(self._n, *one.shape[1:])
                whole[self._rows] += one
                lot[name] = whole

    def rows(self) -> Tensor:
        zeros, sizes = self.tables.signs.new_zeros, {k: v.numel() for k, v in self.shapes.items()}
        whole = []
        for lot in self._lots:
            each = [lot[k] if k in lot else zeros(self._n, 1, size) for k, size in sizes.items()]
            whole.append(torch.cat([*each, zeros(self._n, 1, 1)], dim=2))
        buckets = self.tables.buckets(torch.cat(whole, dim=1) if len(whole) > 1 else whole[0])
        return buckets.flatten(1) if self.per_output else self.tables.folded(buckets)
