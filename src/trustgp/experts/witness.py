r"""A second opinion: local Gaussian processes on the inputs, which know the targets but not the network.

A network that has learnt its training rows by heart leaves residuals that say little about its errors on
new rows. A smooth function of the inputs, fitted to the targets themselves, knows where the network is off.
It speaks with the precision

.. math:: (1 - \nu(x)) \min(1, \nu_0 / \nu(x)) \, / \, ( s \kappa (\nu(x) + \tau) ),

where nu is its posterior variance over its prior's, its novelty: far from the rows it is silent. Left-out
training rows say nothing about rows more novel than themselves, so its word fades beyond the novelty nu_0
that they reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from ..data.chunking import chunks
from ..data.trees import Inputs, leaves, state_tensors
from ..math.evidence import squared_exponential
from .gate import nearest_two
from .posteriors import GramPosterior, RootPosterior, Sizes, log_kappas, with_posteriors

FARTHEST = 1e50  # scaled inputs beyond are taken as this: their squares must not overflow


@dataclass(frozen=True)
class Witness:
    """How the second opinion is formed.

    Args:
        rows: Of a cell, about; of more than 1,024 cells' rows there is no witness.
        borrowed: Rows of other cells that each row brings along: its nearest ones.
        most_inputs: With more numbers a row than this, distances say little and there is no witness.
    """

    rows: int = 750
    borrowed: int = 2
    most_inputs: int = 64

    def __post_init__(self) -> None:
        if self.rows < 2 or self.borrowed < 0 or self.most_inputs < 1:
            raise ValueError(
                f"rows={self.rows}, borrowed={self.borrowed}, most_inputs={self.most_inputs}; at least 2, "
                "0 and 1 are needed."
            )

    def settings(self) -> dict[str, int]:
        """Plain values, under the names that a file has for them."""
        return {"rows": self.rows, "strangers": self.borrowed, "most_inputs": self.most_inputs}

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Self:
        """The witness whose `settings()` these are."""
        plain = dict(settings)
        return cls(borrowed=plain.pop("strangers"), **plain)


@dataclass(frozen=True)
class PointFeatures:
    """Inputs whose kernel is a squared exponential."""

    points: Tensor  # scaled [n, d], float64
    length: float  # l

    def __len__(self) -> int:
        return len(self.points)

    def gram(self, other: Self) -> Tensor:
        return squared_exponential(self.points, other.points, self.points.new_tensor(self.length))

    def diag(self) -> Tensor:
        return torch.ones_like(self.points[:, 0])

    def take(self, rows: Tensor) -> Self:
        return replace(self, points=self.points[rows])

    def tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.points}

    stored = tensors

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        return replace(parts[0], points=torch.cat([part.points for part in parts]))


@dataclass(frozen=True)
class Cell:
    """A Gaussian process on the rows of one region."""

    rows: Tensor  # training rows it holds, its own first [m]
    own: Tensor  # how many of them are its own, a scalar
    posterior: GramPosterior | RootPosterior  # answers about the targets over the centre
    centre: Tensor  # mean target [C]
    scale: Tensor  # s [C]
    kappa: Tensor  # leave-one-out scale [C]
    tau: Tensor  # noise ratio, any jitter included, a scalar


@dataclass(frozen=True)
class WitnessPrediction:
    """What the witness says of n rows."""

    mean: Tensor  # of the target [n, C]
    variance: Tensor  # of the target, noise included [n, C]
    novelty: Tensor  # nu, posterior over prior variance [n]
    reach: Tensor  # nu_0, the novelty up to which it is sure of itself, a scalar

    @property
    def precision(self) -> Tensor:
        """How much its word counts, shape [n, C]; 0: it says nothing."""
        least = torch.finfo(self.novelty.dtype).tiny
        known = (1.0 - self.novelty) * (self.reach / self.novelty.clamp_min(least)).clamp_max(1.0)
        return known[:, None] / self.variance


@dataclass(frozen=True)
class WitnessState:
    """The cells, and what they share."""

    offset: Tensor  # of the inputs [d]
    spread: Tensor  # of the inputs [d]
    centroids: Tensor  # of the cells, in scaled inputs [M, d]
    length: Tensor  # l, a scalar
    ratio: Tensor  # tau before any jitter, a scalar
    size: Tensor  # a cell holds at most twice as many rows, a scalar
    reach: Tensor  # nu_0, the novelty that left-out training rows reach, a scalar
    floor: Tensor  # the least variance of each output that it claims [C]
    cells: tuple[Cell, ...]  # M of them, their posteriors all of one kind

    @cached_property
    def kappa(self) -> Tensor:
        """Leave-one-out scales of the cells, steadied where a cell has few rows, shape [M, C]."""
        return log_kappas(self.cells).exp()

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return sum(tensor.numel() * tensor.element_size() for tensor in state_tensors(self))

    def scaled(self, vectors: Tensor) -> Tensor:
        """Inputs as the cells see them, shape [n, d]."""
        return ((vectors.to(self.offset) - self.offset) / self.spread).clamp(-FARTHEST, FARTHEST)

    def gathered(self, n: int, told: Iterable[tuple[int, Tensor, Tensor, Tensor]]) -> WitnessPrediction:
        """Of n rows, from what cells tell: their number, the rows [k], mean [k, C] and posterior over prior
        variance [k] of these. Of rows that no cell tells of, nothing is known."""
        mean = self.floor.new_zeros(n, len(self.floor))
        variance, novelty = torch.ones_like(mean), mean.new_ones(n)
        for number, rows, expected, unit in told:
            # tau > 0 is added to it: what rounding takes below 0 cannot make it certain
            cell, unit = self.cells[number], unit.clamp(0.0, 1.0)
            spread = self.kappa[number] * cell.scale * (unit + cell.tau)[:, None]
            mean[rows], variance[rows], novelty[rows] = expected, torch.maximum(spread, self.floor), unit
        return WitnessPrediction(mean, variance, novelty, self.reach)

    def shrink(self, sizes: Sizes, known: dict | None = None) -> WitnessState | None:
        """With fewer directions in each cell; its mean stays what it is.

        Where several sizes are wanted, `known` holds posteriors by number of directions; they are added.
        """
        if sizes.witness == 0:
            return None
        if sizes.witness is None and not sizes.half:
            return self
        known = {} if known is None else known
        if sizes.witness not in known:
            known[sizes.witness] = [cell.posterior.rooted(sizes.witness) for cell in self.cells]
        return replace(self, cells=tuple(with_posteriors(self.cells, known[sizes.witness], sizes)))

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> WitnessPrediction:
        """WitnessPrediction about finite inputs, chunk by chunk."""
        vectors = vectors_of(inputs)
        if vectors.shape[1] != len(self.offset):
            raise ValueError(
                f"inputs hold {vectors.shape[1]} numbers a row; the witness was fitted on {len(self.offset)}."
            )
        points = self.scaled(vectors)

        def told() -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
            for index in chunks(len(points), 4096):
                index = index.to(points.device)
                labels = nearest_two(points[index], self.centroids)[0]
                for number in labels.unique().tolist():
                    rows, cell = index[labels == number], self.cells[number]
                    answer = cell.posterior(PointFeatures(points[rows], float(self.length)))
                    yield number, rows, cell.centre + answer.residual_mean, answer.unit

        return self.gathered(len(points), told())


def vectors_of(inputs: Inputs) -> Tensor:
    """All numbers of a row side by side, shape [n, d], float64."""
    return torch.cat([leaf.detach().double().reshape(len(leaf), -1) for leaf in leaves(inputs)], dim=1)
