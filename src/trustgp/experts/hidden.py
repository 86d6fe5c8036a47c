r"""Nearest training rows by the inputs of the network's last layer, the hidden vectors.

Directions of hidden vectors h separate the classes. The distance of a row is

.. math:: 1 - \cos(h, h_{(k)}) ,

where :math:`h_{(k)}` is the k-th nearest of a few training rows of each class (Sun et al. 2022 take all).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import Self

from ..data.chunking import evenly

USUAL_ROWS = 3000  # kept, where there are few classes
MAX_PER_CLASS, MIN_PER_CLASS = 300, 4  # rows kept of each of many classes
MAX_BYTES = 4 * 2**20  # of all rows kept; with very many classes more
ROWS_PER_NEIGHBOUR = 100  # rows of a class for each of k
MIN_DISTANCE, MAX_DISTANCE = 1e-5, 2.0  # its logarithm is finite, and less is rounding
MIN_LENGTH = 1e-30  # vectors are divided by it at least
MAX_PRODUCTS = 2**22  # cosines in memory at a time


@dataclass(frozen=True)
class HiddenRows:
    """Hidden vectors of training rows."""

    points: Tensor  # of length 1 [R, h], float32
    labels: Tensor  # classes of the rows, int64 [R]

    @classmethod
    def of(cls, hidden: Tensor, labels: Tensor) -> Self:
        """Sample of training rows, from their hidden vectors [n, h] and classes [n]."""
        points = unit_vectors(hidden).float()
        usable = torch.isfinite(points).all(dim=1)
        return cls(points[usable], labels[usable])._thinned()

    def extended(self, hidden: Tensor, labels: Tensor) -> Self:
        """Sample with more rows, thinned to the same limit per class."""
        more = self.of(hidden, labels.to(self.labels.device))
        points, classes = torch.cat([self.points, more.points]), torch.cat([self.labels, more.labels])
        return replace(self, points=points, labels=classes)._thinned()

    def _thinned(self) -> Self:
        most = rows_per_class(len(self.labels.unique()), self.points.shape[1])
        each = [(self.labels == label).nonzero().flatten() for label in self.labels.unique()]
        kept = torch.cat([rows[evenly(len(rows), most).to(rows.device)] for rows in each])
        return replace(self, points=self.points[kept], labels=self.labels[kept])

    @cached_property
    def neighbours(self) -> int:
        """k, which grows with the number of rows of the largest class."""
        return max(1, int(torch.bincount(self.labels).max()) // ROWS_PER_NEIGHBOUR)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Log distance of hidden vectors [n, h], float64, shape [n, 1]; computed in chunks."""
        size = max(1, MAX_PRODUCTS // len(self.points))
        return torch.cat([self.log_distance(part) for part in hidden.split(size)])

    def log_distance(self, hidden: Tensor) -> Tensor:
        """Log distance of hidden vectors [n, h], float64, shape [n, 1]; computed at once."""
        cosines = unit_vectors(hidden) @ self.points.double().T
        distance = 1.0 - cosines.topk(self.neighbours, dim=1).values[:, -1:]
        # NaN where vectors overflow: the largest distance
        distance = torch.where(distance < MAX_DISTANCE, distance, MAX_DISTANCE).clamp_min(MIN_DISTANCE)
        # rounded, so that it does not depend on how many rows are multiplied together
        return distance.float().double().log()


def unit_vectors(hidden: Tensor) -> Tensor:
    """Vectors [n, h] over their lengths, float64; a vector of zeros stays."""
    wide = hidden.double()
    return wide / wide.square().sum(dim=1, keepdim=True).sqrt().clamp_min(MIN_LENGTH)


def rows_per_class(classes: int, width: int) -> int:
    """Number of rows to keep of each class where hidden vectors have `width` numbers."""
    room = MAX_BYTES // (4 * width * max(1, classes))
    return max(MIN_PER_CLASS, min(max(MAX_PER_CLASS, USUAL_ROWS // max(1, classes)), room))
