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

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..data.chunking import at_once
from ..data.trees import Inputs, leaves, state_tensors
from ..math.evidence import distances

MAX_SCALED_INPUT = 1e30  # scaled inputs are clamped to it: they must fit into float32
PADDING = 2 * MAX_SCALED_INPUT  # every number of a missing neighbour: its kernel with all others is 0
MIN_RATIO = 1e-10  # of tau: with less, the kernel is singular in float64
TIE = 1e-9  # lengths: of equally distant rows, as tables of categories have, the first count as nearer
CHUNK_BYTES = 64 * 2**20  # of rows that are predicted together


@dataclass(frozen=True)
class Witness:
    """A nearest-neighbour GP on the inputs, which detects the errors of networks that overfit.

    Args:
        rows: Approximate rows of a cell; with more than 3,072 times as many rows there is no witness.
        borrowed: Rows of other cells that a cell stores for each of its own: the nearest ones.
        neighbours: Rows from which a new one is predicted; up to 8 times as many where noise asks for it.
        most_inputs: With more numbers a row, distances carry little information and there is no witness.
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
        """Plain values, under their names in a file."""
        return {"strangers" if name == "borrowed" else name: value for name, value in asdict(self).items()}

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Self:
        """The witness whose `settings()` these are."""
        plain = dict(settings)
        return cls(borrowed=plain.pop("strangers"), **plain)


@dataclass(frozen=True)
class WitnessPrediction:
    """The witness's prediction for n rows."""

    mean: Tensor  # of the target [n, C]
    variance: Tensor  # of the target, noise included [n, C]
    novelty: Tensor  # nu, posterior over prior variance [n]
    reach: Tensor  # nu_0, the novelty of left-out training rows, a scalar

    @property
    def precision(self) -> Tensor:
        """Precision of the mean, shape [n, C]; 0 far from the rows."""
        support = (1.0 - self.novelty) * (self.reach / torch.maximum(self.novelty, self.reach))
        return support[:, None] / self.variance


class ExcludedGroups(NamedTuple):
    """Rows that must not predict a point: those of its own group."""

    labels: Tensor  # the cell that predicts each point [n]
    groups: Tensor  # of the points [n]
    rows: Tensor  # groups of all rows [R]


@dataclass(frozen=True)
class WitnessState:
    """The cells, and their rows concatenated, R in all; a cell's own rows come first."""

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
    rows: Tensor  # which training rows they are [R]
    sizes: Tensor  # rows of each cell [M]
    own: Tensor  # how many of them are its own [M]
    centre: Tensor  # mean target of each cell [M, C]
    level: Tensor  # lambda, the variance per nu + tau of each cell [M, C]

    @cached_property
    def edges(self) -> list[int]:
        """Offsets of the cells' rows [M + 1]."""
        return [0, *self.sizes.cumsum(dim=0).tolist()]

    @cached_property
    def cells(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Points, level and centre of each, the latter [1, C]."""
        parts = self.points.split(self.sizes.tolist()), self.level.split(1), self.centre.split(1)
        return list(zip(*parts, strict=True))

    @cached_property
    def largest(self) -> int:
        """Rows of the largest cell."""
        return int(self.sizes.max())

    @cached_property
    def order(self) -> Tensor:
        """Added to the distances of a cell's rows [largest], so that every runtime breaks ties alike."""
        return TIE * self.length * torch.arange(self.largest, device=self.length.device)

    @cached_property
    def sharpness(self) -> float:
        """-1 / (2 l^2), finite also for tiny lengths."""
        return float((-0.5 / self.length.square()).clamp_min(-1e300))

    @cached_property
    def most_neighbours(self) -> int:
        """p as a plain number."""
        return int(self.neighbours)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
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
        """Predictions of the nearest cells, or those of `excluded`, for scaled points [n, d], float64."""
        p, width = min(self.most_neighbours, self.largest) + 1, len(self.offset) + len(self.floor)
        row = 8 * (len(self.centroids) + 2 * self.largest + 4 * p * (p + width))
        size = max(1, at_once(CHUNK_BYTES, points.device) // row)
        if len(points) <= size:
            return WitnessPrediction(*self._predict_lot(points, excluded), self.reach)
        parts = []
        for start in range(0, len(points), size):
            lot, left_out = slice(start, start + size), excluded
            if left_out is not None:
                left_out = left_out._replace(labels=left_out.labels[lot], groups=left_out.groups[lot])
            parts.append(self._predict_lot(points[lot], left_out))
        mean, variance, novelty = map(torch.cat, zip(*parts, strict=True))
        return WitnessPrediction(mean, variance, novelty, self.reach)

    def _predict_lot(self, points: Tensor, excluded: ExcludedGroups | None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance [n, C], and novelty [n]."""
        labels = distances(points, self.centroids).argmin(dim=1) if excluded is None else excluded.labels
        mean, novelty = self._solved(points, *self._nearest(points, labels, excluded))
        if len(labels) == 1:
            _, level, centre = self.cells[labels.tolist()[0]]
        else:
            level, centre = self.level[labels], self.centre[labels]
        # tau > 0 keeps it positive where rounding takes the novelty below 0
        variance = torch.maximum(level * (novelty + self.ratio), self.floor)
        return centre + mean, variance, novelty.squeeze(1)

    def _nearest(
        self, points: Tensor, labels: Tensor, excluded: ExcludedGroups | None
    ) -> tuple[Tensor, Tensor | None]:
        """Positions of the nearest rows [n, p], and which of them are missing [n, p]; None: none is."""
        numbers, p = set(labels.tolist()), min(self.most_neighbours, self.largest)
        if len(numbers) == 1 and excluded is None:
            return self._in_cell(points, numbers.pop())[0], None
        positions = labels.new_zeros(len(labels), p)
        missing = torch.ones_like(positions, dtype=torch.bool)
        for number in numbers:
            inside = (labels == number).nonzero().flatten()
            unseen = None if excluded is None else (excluded.groups[inside], excluded.rows)
            rows, distance = self._in_cell(points[inside], number, unseen)
            positions[inside, : rows.shape[1]], missing[inside, : rows.shape[1]] = rows, distance.isinf()
        return positions, missing

    def _in_cell(
        self, points: Tensor, number: int, unseen: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same of one cell, at most p of its rows, and their distances; infinite: excluded."""
        first, last = self.edges[number : number + 2]
        distance = distances(points, self.cells[number][0].double()).add_(self.order[: last - first])
        if unseen is not None:
            distance.masked_fill_(unseen[0][:, None] == unseen[1][first:last], torch.inf)
        distance, positions = distance.topk(min(self.most_neighbours, last - first), dim=1, largest=False)
        return positions + first, distance

    def _solved(self, points: Tensor, positions: Tensor, missing: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mean about the centre [n, C] and the novelty [n, 1], from the nearest rows."""
        rows = self.points[positions]  # [n, p, d]
        if missing is not None:
            rows = rows.masked_fill(missing[:, :, None], PADDING)
        joint = torch.cat([rows, points[:, None]], dim=1)  # float64, as the points are
        kernel = distances(joint, joint).square_().mul_(self.sharpness).exp_()  # [n, p + 1, p + 1]
        kernel.diagonal(dim1=1, dim2=2).add_(self.ratio)
        gram, cross = kernel[:, :-1].split([positions.shape[1], 1], dim=2)
        shares = torch.cholesky_solve(cross, torch.linalg.cholesky_ex(gram).L)  # S [n, p, 1]
        novelty = (1.0 - (shares * cross).sum(dim=1)).clamp(0.0, 1.0)
        return (shares * self.targets[positions]).sum(dim=1), novelty


def vectors_of(inputs: Inputs) -> Tensor:
    """All inputs of a row as one vector, shape [n, d], float64."""
    flat = [(leaf if leaf.ndim == 2 else leaf.reshape(len(leaf), -1)).double() for leaf in leaves(inputs)]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
