r"""The witness: a nearest-neighbour Gaussian process from the inputs to the targets, without the network.

The training residuals of a network that overfits underestimate its errors on new rows. A smooth function of
the inputs, fitted to the targets themselves, detects these errors. It predicts a row x from the p nearest
rows of the cell that x belongs to, with targets T about the cell's centre:

.. math:: G S = k(x), \qquad \nu = 1 - k(x)^\top S, \qquad \mathrm{mean} = \mathrm{centre} + S^\top T,

where G is the kernel among them with tau on its diagonal (Vecchia 1988, Datta et al. 2016). Its precision is

.. math:: (1 - \nu(x)) \min(1, \nu_0 / \nu(x)) \, / \, ( \lambda (\nu(x) + \tau) ),

where lambda is the cell's level and nu, posterior over prior variance, its novelty: far from the rows the
precision is 0. Left-out training rows carry no information about rows of higher novelty, so the precision
decreases beyond their novelty nu_0.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..data.torch_modes import readable
from ..data.trees import Inputs, leaves, state_tensors
from ..math.evidence import distances
from .blocks import Blocks, by_owner, rows_at

MAX_SCALED_INPUT = 1e30  # scaled inputs are clamped to it: they must fit into float32
PADDING = 2 * MAX_SCALED_INPUT  # every number of a missing neighbour: its kernel with all others is 0
MIN_RATIO = 1e-10  # of tau: with less, the kernel is singular in float64
NOISE_NEIGHBOURS = 32  # nearest rows whose errors are averaged
MIN_MEASURE, MIN_NOISE = 1e-12, 1e-300  # their logarithms are finite
TIE = 1e-9  # lengths: of equally distant rows, as tables of categories have, the first count as nearer
MIN_DIFFERENCES = 2**16  # numbers; with fewer, a GPU computes distances in one kernel
MIN_PRODUCTS = 2**21  # numbers; with fewer, a GPU takes differences, in fewer kernels than products
SOLVED_NUMBERS = 2**17  # numbers of kernel matrices that fit into the cache of a CPU
EPS, MAX_ROUNDING = 4e-15, 1e-6  # of squared distances from products; and of the kernel, over tau
TINY = 1e-300  # of -1 / (2 l^2)
KERNEL_ENDS = 39.0  # lengths: beyond, the kernel is 0 in float64
CHUNK_BYTES = 64 * 2**20  # of rows that are predicted together


@dataclass(frozen=True)
class Witness:
    """A nearest-neighbour GP on the inputs, which detects the errors of networks that overfit.

    Args:
        rows: Approximate rows of a cell; with more than 3,072 times as many rows there is no witness.
        borrowed: Rows of other cells that a cell stores for each of its own: the nearest ones.
        neighbours: Rows from which a new one is predicted; up to 8 times as many where noise asks for it.
        most_inputs: With more numbers a row, distances carry little information and there is no witness.

    Examples:
        >>> model = trustgp.fit(network, train, witness=trustgp.Witness(neighbours=16), progress=False)
    """

    rows: int = 250
    borrowed: int = 1
    neighbours: int = 8
    most_inputs: int = 64

    def __post_init__(self) -> None:
        if self.rows < 2 or self.borrowed < 0 or self.neighbours < 1 or self.most_inputs < 1:
            raise ValueError(
                f"rows={self.rows}, borrowed={self.borrowed}, neighbours={self.neighbours}, "
                f"most_inputs={self.most_inputs}; pass at least 2, 0, 1 and 1."
            )

    def settings(self) -> dict[str, int]:
        """Plain values by their names in a file."""
        return {"strangers" if name == "borrowed" else name: value for name, value in asdict(self).items()}

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Self:
        """Witness with these `settings()`."""
        plain = dict(settings)
        return cls(borrowed=plain.pop("strangers"), **plain)


@dataclass(frozen=True)
class WitnessPrediction:
    """The witness's prediction for n rows."""

    mean: Tensor  # of the target [n, C]
    variance: Tensor  # of the target, noise included [n, C]
    novelty: Tensor  # nu, posterior over prior variance [n]
    distance: Tensor  # to the furthest of its neighbours [n]
    noise: Tensor  # mean square of the left-out errors of the nearest rows [n, C]
    reach: Tensor  # nu_0, the novelty of left-out training rows, a scalar

    @cached_property
    def precision(self) -> Tensor:
        """Precision of the mean, shape [n, C]; 0 far from the rows."""
        support = (1.0 - self.novelty) * (self.reach / torch.maximum(self.novelty, self.reach))
        return support[:, None] / self.variance

    @cached_property
    def log_noise(self) -> Tensor:
        """Logarithm of the noise [n, C]."""
        return self.noise.clamp_min(MIN_NOISE).log()

    @cached_property
    def nearest(self) -> Tensor:
        """Logarithms of novelty and distance, shape [n, 2]."""
        return torch.stack([self.novelty, self.distance], dim=1).clamp(MIN_MEASURE, MAX_SCALED_INPUT).log()

    def opinion(self, outputs: Tensor) -> dict[str, Tensor]:
        """Fields that it adds to a `LatentPrediction`, where the network returns `outputs` [n, C]."""
        own = {"witness_mean": self.mean - outputs, "witness_precision": self.precision}
        return own | {"log_noise": self.log_noise, "nearest": self.nearest}


PREDICTED = ("mean", "variance", "novelty", "distance", "noise")


class ExcludedGroups(NamedTuple):
    """Rows that must not predict a point: those of its own group."""

    labels: Tensor  # the cell that predicts each point [n]
    groups: Tensor  # of the points [n]
    rows: Tensor  # groups of all rows [R]


@dataclass(frozen=True)
class WitnessState:
    """Cells of a witness, and their rows concatenated, R in all; a cell's own rows come first."""

    offset: Tensor  # of the inputs [d]
    spread: Tensor  # of the inputs [d]
    centroids: Tensor  # of the cells, in scaled inputs [M, d]
    length: Tensor  # l, a scalar
    ratio: Tensor  # tau, a scalar
    neighbours: Tensor  # p, a scalar
    reach: Tensor  # nu_0, the novelty that left-out training rows reach, a scalar
    floor: Tensor  # lower bound of the variance of each output [C]
    points: Tensor  # scaled inputs of the rows [R, d], float32 (float64 where an outlier sets the scale)
    targets: Tensor  # about the centre of the cell [R, C], float32 or float64
    errors: Tensor  # squared, of each row left out [R, C], float32 or float64
    rows: Tensor  # which training rows they are [R]
    sizes: Tensor  # rows of each cell [M]
    own: Tensor  # how many of them are its own [M]
    centre: Tensor  # mean target of each cell [M, C]
    level: Tensor  # lambda, the variance per nu + tau of each cell [M, C]

    @cached_property
    def cells(self) -> list[tuple[int, int, Tensor, Tensor]]:
        """First position, position after the last, points, and part of `order` of each cell's rows."""
        edges = [0, *self.sizes.cumsum(dim=0).tolist()]
        return [(a, b, self.points[a:b], self.order[: b - a]) for a, b in pairwise(edges)]

    @cached_property
    def numbers(self) -> Tensor:
        """lambda tau, lambda and the mean target of each cell, shape [M, 3, C]."""
        return torch.stack([self.level * self.ratio, self.level, self.centre], dim=1)

    @cached_property
    def largest(self) -> int:
        """Number of rows of the largest cell."""
        return int(self.sizes.max())

    @cached_property
    def full(self) -> bool:
        """Whether every cell has at least `num_nearest` rows."""
        return int(self.sizes.min()) >= self.num_nearest

    @cached_property
    def starts(self) -> Tensor:
        """Position of the first row of each cell [M], on the device of the points."""
        return (self.sizes.cumsum(dim=0) - self.sizes).to(self.points.device)

    @cached_property
    def order(self) -> Tensor:
        """Increments of distances to a cell's rows [largest]: all runtimes break ties the same way."""
        return TIE * self.length * torch.arange(self.largest, device=self.length.device)

    @cached_property
    def sharpness(self) -> float:
        """-1 / (2 l^2), finite also for tiny lengths."""
        return float((-0.5 / self.length.square()).clamp_min(-1e300))

    @cached_property
    def near_radius(self) -> float:
        """Distance of neighbours from a point up to which the kernel among them comes from products, whose
        rounding changes it by far less than tau."""
        rounding = EPS * self.most_neighbours * max(-self.sharpness, TINY)
        return math.sqrt(MAX_ROUNDING * float(self.ratio) / rounding)

    @cached_property
    def most_neighbours(self) -> int:
        """p as a Python number."""
        return int(self.neighbours)

    @cached_property
    def compact(self) -> bool:
        """Whether rows beyond `near_radius` have a kernel of 0, and can be left out."""
        return self.near_radius >= KERNEL_ENDS * float(self.length)

    @property
    def num_nearest(self) -> int:
        """Number of nearest rows of a cell that are looked up."""
        return max(self.most_neighbours, NOISE_NEIGHBOURS)

    @property
    def nbytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in state_tensors(self))

    def scaled(self, vectors: Tensor) -> Tensor:
        """Standardised inputs, shape [n, d]."""
        return ((vectors - self.offset) / self.spread).clamp(-MAX_SCALED_INPUT, MAX_SCALED_INPUT)

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> WitnessPrediction:
        """Predictions for finite inputs."""
        vectors = vectors_of(inputs)
        if (given := vectors.shape[1]) != (fitted := len(self.offset)):
            raise ValueError(f"inputs hold {given} numbers a row; the witness was fitted on {fitted}.")
        return self.predict_scaled(self.scaled(vectors))

    def predict_scaled(self, points: Tensor, excluded: ExcludedGroups | None = None) -> WitnessPrediction:
        """Predictions for scaled points [n, d], float64, by their nearest cells or those in `excluded`."""
        p, width = min(self.num_nearest, self.largest) + 1, len(self.offset) + len(self.floor)
        row = 8 * (len(self.centroids) + 2 * self.largest + 4 * p * (p + width))
        space, block = 16 * CHUNK_BYTES if points.is_cuda else CHUNK_BYTES, 0
        if points.is_cuda:  # the rows of a cell, twice, for each block of points: at most 3 for each cell
            block = 16 * self.largest * len(self.offset)
        size = max(1, space // (row + block), (space - 3 * len(self.centroids) * block) // row)
        if len(points) <= size:
            return self._predict_lot(points, excluded)
        parts = []
        for start in range(0, len(points), size):
            lot, left_out = slice(start, start + size), excluded
            if left_out is not None:
                left_out = left_out._replace(labels=left_out.labels[lot], groups=left_out.groups[lot])
            parts.append(self._predict_lot(points[lot], left_out))
        values = {name: torch.cat([getattr(part, name) for part in parts]) for name in PREDICTED}
        return WitnessPrediction(**values, reach=self.reach)

    def _predict_lot(self, points: Tensor, excluded: ExcludedGroups | None) -> WitnessPrediction:
        """Predictions as in `predict_scaled` for a batch of points that fits into memory."""
        labels = _between(points, self.centroids).argmin(dim=1) if excluded is None else excluded.labels
        full = self.full and excluded is None
        if readable(labels):
            cell = partial(self._in_cell, points, excluded)
            rows, radius = by_owner(cell, labels, len(self.sizes))
        else:
            rows, radius = self._in_cells(points, labels, excluded)
        closest, nearest = radius, rows
        if (neighbours := min(self.most_neighbours, radius.shape[1])) < radius.shape[1]:
            closest, nearest = radius[:, :neighbours], rows[:, :neighbours]
        size = max(1, SOLVED_NUMBERS // neighbours**2) if readable(points) else len(points)
        if len(points) <= size:
            mean, novelty = self._solved(points, nearest, closest, full=full)
        else:
            lots = zip(*(each.split(size) for each in (points, nearest, closest)), strict=True)
            solved = [self._solved(*lot, full=full) for lot in lots]
            mean, novelty = map(torch.cat, zip(*solved, strict=True))
        errors = torch.embedding(self.errors, rows)  # [n, k, C]
        if full:
            distance, noise = closest[:, -1], errors.mean(dim=1).double()
        else:
            inside = (~radius.isinf()).to(errors)[:, :, None]
            number, total = inside.sum(dim=1), (inside * errors).sum(dim=1)
            noise = (total / number.clamp_min(1.0)).double()
            if excluded is not None:  # which may be all of a cell's rows
                noise = torch.where(number > 0, noise, self.errors.double().mean(dim=0))
            distance = closest.masked_fill(closest.isinf(), 0.0).amax(dim=1)
        # tau > 0 keeps it positive where rounding takes the novelty below 0
        least, level, centre = self.numbers.index_select(0, labels).unbind(dim=1)
        variance = torch.maximum(least + level * novelty, self.floor)
        return WitnessPrediction(centre + mean, variance, novelty.squeeze(1), distance, noise, self.reach)

    def _in_cell(
        self, points: Tensor, excluded: ExcludedGroups | None, number: int, index: Any
    ) -> tuple[Tensor, Tensor]:
        """Positions of the nearest rows of a cell [n, k] for the points with this index, and their distances
        [n, k], infinite for missing and excluded rows."""
        first, last, own, order = self.cells[number]
        distance = distances(rows_at(points, index), own.double()).add_(order)
        if excluded is not None:
            same = excluded.groups[index][:, None] == excluded.rows[first:last]
            distance.masked_fill_(same, torch.inf)
        most = min(self.num_nearest, self.largest)
        if last - first >= most:
            distance, positions = distance.topk(most, dim=1, largest=False)
            return positions + first, distance
        distance = nn.functional.pad(distance, (0, most - last + first), value=torch.inf)
        distance, positions = distance.topk(most, dim=1, largest=False)
        return (positions + first).clamp_max_(len(self.points) - 1), distance

    def _in_cells(
        self, points: Tensor, labels: Tensor, excluded: ExcludedGroups | None
    ) -> tuple[Tensor, Tensor]:
        """Positions and distances as from `_in_cell` for all points, each in its own cell."""
        blocks = Blocks.of(labels, len(self.sizes))
        starts, sizes = self.starts, self.sizes.to(labels.device)
        numbers = torch.arange(self.largest, device=labels.device)
        rows = (starts[blocks.owner][:, None] + numbers).clamp_max_(len(self.points) - 1)  # [B, largest]
        given, own = blocks.split(points), self.points[rows].double()
        exact = not points.is_cuda or given.numel() * own.shape[1] < MIN_DIFFERENCES
        distance = distances(given, own) if exact else _by_products(given, own)
        beyond = (numbers >= sizes[blocks.owner][:, None])[:, None]
        if excluded is not None:
            beyond = beyond | (blocks.split(excluded.groups)[:, :, None] == excluded.rows[rows][:, None])
        distance = blocks.join(distance.add_(self.order).masked_fill_(beyond, torch.inf))
        distance, positions = distance.topk(min(self.num_nearest, self.largest), dim=1, largest=False)
        rows = (starts[labels][:, None] + positions).clamp_max_(len(self.points) - 1)
        if not exact:
            radius = torch.linalg.vector_norm(points[:, None] - self.points[rows], dim=2)
            radius += self.order[positions]
            distance = torch.where(distance.isinf(), distance, radius)
        return rows, distance

    def _solved(
        self, points: Tensor, positions: Tensor, closest: Tensor, *, full: bool
    ) -> tuple[Tensor, Tensor]:
        """Mean about the centre [n, C] and novelty [n, 1] from the nearest rows, at the distances `closest`,
        infinite for missing rows; with `full` no row is missing."""
        rows, targets = (torch.embedding(table, positions) for table in (self.points, self.targets))
        read, count = readable(closest), positions.shape[1]
        many = rows.numel() * count >= MIN_PRODUCTS
        if float(closest.max()) <= self.near_radius if read else many and self.compact:
            rows = rows - points[:, None]  # [n, p, d], float64, as the points are
            inside = None if read else (closest <= self.near_radius).to(rows)[:, :, None]
            rows = rows if inside is None else rows * inside
            squares = rows.square().sum(dim=2, keepdim=True).mul_(self.sharpness)
            gram = squares + squares.mT
            gram = gram.baddbmm_(rows, rows.mT, alpha=-2.0 * self.sharpness).exp_()
            cross = squares.exp_()
            if inside is not None:  # a row that is left out has no part in the others' kernel
                gram, cross = gram.mul_(inside).mul_(inside.mT), cross.mul_(inside)
        else:
            rows = rows if full else rows.masked_fill(closest.isinf()[:, :, None], PADDING)
            joint = torch.cat([rows, points[:, None]], dim=1)
            kernel = _between(joint, joint).square_().mul_(self.sharpness).exp_()  # [n, p + 1, p + 1]
            gram, cross = kernel[:, :-1].split([count, 1], dim=2)
        gram.diagonal(dim1=1, dim2=2).add_(self.ratio)
        # L^-1 of k and T: their products are those with G^-1
        factor = torch.linalg.cholesky_ex(gram, upper=True).L.mT  # which is faster than the lower one
        sides = torch.linalg.solve_triangular(factor, torch.cat([targets, cross], dim=2), upper=False)
        mean, support = (
            torch.bmm(sides[:, :, -1:].mT, sides).squeeze(1).split_with_sizes([targets.shape[2], 1], dim=1)
        )
        return mean, (1.0 - support).clamp(0.0, 1.0)


def _between(first: Tensor, second: Tensor) -> Tensor:
    """Distances as from `distances`; a GPU computes many of them far faster as norms of differences."""
    if not first.is_cuda or first.numel() * second.shape[-2] < MIN_DIFFERENCES:
        return distances(first, second)
    return torch.linalg.vector_norm(first.unsqueeze(-2) - second.unsqueeze(-3), dim=-1)


def _by_products(first: Tensor, second: Tensor) -> Tensor:
    """Distances [B, b, m] of [B, b, d] and [B, m, d], whose squares have rounding errors of about 1e-16 times
    those of the vectors."""
    squares = first.square().sum(dim=2)[:, :, None] + second.square().sum(dim=2)[:, None]
    return squares.baddbmm_(first, second.mT, alpha=-2.0).clamp_min_(0.0).sqrt_()


def vectors_of(inputs: Inputs) -> Tensor:
    """All inputs of a row as one vector, shape [n, d], float64."""
    flat = [(leaf if leaf.ndim == 2 else leaf.reshape(len(leaf), -1)).double() for leaf in leaves(inputs)]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
