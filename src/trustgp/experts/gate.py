"""The gate: kernel PCA on a random subset, k-means, and the nearest centroid of every row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..data.chunking import at_once, evenly
from ..math.kmeans import kmeans
from ..math.low_rank import principal_components
from ..tangents.base import Features
from ..tangents.rows import RowFeatures

DISTANCES = 64 * 2**20  # bytes of distances to all centroids at a time
MAX_CDIST_NUMBERS = 2**18  # up to so many differences, one call of cdist is faster
MAX_SPLIT_ROWS = 4096  # rows of an oversized expert in the k-means that halves it
OVERSIZE = 2.0  # an expert above so many times the target size is split: it would dominate time and memory
MAX_ROUNDS = 8  # of splitting; rows move between the experts after each
SUBSET, PER_EXPERT = 512, 8  # rows of the kernel PCA, and of the k-means for each expert


@dataclass(frozen=True)
class Division:
    """How the rows are divided among the experts.

    Args:
        components: q, the kernel principal components in which distances are measured.
        subset: Rows of the kernel PCA and the k-means; None: 512, and for the k-means at least 8 per expert.

    Examples:
        >>> model = trustgp.fit(network, train, division=trustgp.Division(components=4), progress=False)
    """

    components: int = 8
    subset: int | None = None

    def __post_init__(self) -> None:
        if self.components < 1:
            raise ValueError(f"components={self.components}; at least 1 is needed.")
        if self.subset is not None and self.subset < 2:
            raise ValueError(f"subset={self.subset}; at least 2 rows are needed.")

    def subset_size(self, n: int, num_experts: int) -> int:
        """Number of rows of the kernel PCA, which a gate may have to store."""
        return min(n, SUBSET if self.subset is None else max(self.subset, num_experts))

    def clustered_size(self, n: int, num_experts: int) -> int:
        """Number of rows of the k-means."""
        least = PER_EXPERT * num_experts if self.subset is None else 0
        return min(n, max(self.subset_size(n, num_experts), least))


@dataclass(frozen=True)
class Projection:
    """Components from a Gram matrix against the subset S: z = k(x, S) A - o.

    Explicit features are contracted once: z = phi (Phi_S^T A) - o.
    """

    features: Features | None  # of S; None: the features are explicit
    directions: Tensor  # A [m, q], or Phi_S^T A [d, q]
    offset: Tensor  # o [q]

    def __call__(self, features: Features) -> Tensor:
        if self.features is not None:
            return features.gram(self.features) @ self.directions - self.offset
        phi = features.wide if isinstance(features, RowFeatures) else features.explicit()
        assert phi is not None
        return torch.addmm(self.offset, phi.double(), self.directions, beta=-1)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to save besides the features."""
        name = "directions" if self.features is None else "coefficients"
        return {name: self.directions, "offset": self.offset}


@dataclass(frozen=True)
class Gate:
    """Sends a row to the expert with the nearest centroid."""

    projection: Projection | None  # from features to components; None: a single expert
    centroids: Tensor  # [M, q]

    @property
    def num_experts(self) -> int:
        return len(self.centroids)

    def embed(self, features: Features) -> Tensor:
        """Components z of these rows, shape [n, q]."""
        if self.projection is None:
            return torch.zeros(len(features), 0, dtype=torch.float64, device=self.centroids.device)
        return self.projection(features)


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Index of the nearest centroid of each point [n]; ties go to the first."""
    parts = [distances.argmin(dim=1) for distances in _distances(points, centroids)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def nearest_two(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest and second-nearest centroid of each point, [n] each; ties go to the first, a single is both."""
    first, second = [], []
    for distances in _distances(points, centroids):
        first.append(distances.argmin(dim=1))
        if len(centroids) > 1:
            distances.scatter_(1, first[-1][:, None], torch.inf)
        second.append(distances.argmin(dim=1))
    return torch.cat(first), torch.cat(second)


def _distances(points: Tensor, centroids: Tensor) -> Iterator[Tensor]:
    """Distances [., M], or their squares, of chunks of points."""
    size = max(1, at_once(DISTANCES, points.device) // (points.element_size() * len(centroids)))
    if points.numel() * len(centroids) <= MAX_CDIST_NUMBERS:
        yield torch.cdist(points, centroids, compute_mode="donot_use_mm_for_euclid_dist")
        return
    for lot in points.split(size):
        total = lot.new_zeros(len(lot), len(centroids))
        # direct differences keep equal points at equal distances; the expansion of cdist may not
        for place, centre in zip(lot.T, centroids.T, strict=True):
            total += (place[:, None] - centre).square_()
        yield total


def make_projection(features: Features, components: int) -> Projection:
    """Kernel PCA of the subset's features."""
    coefficients, offset = principal_components(features.gram(features), components)
    phi = features.explicit()
    if phi is None:
        return Projection(features, coefficients, offset)
    return Projection(None, phi.double().T @ coefficients, offset)


def find_centroids(subset: Tensor, points: Tensor, num_experts: int, *, seed: int) -> Tensor:
    """Centroids such that no expert is empty and none is far above the target of n / M rows.

    k-means runs on components of a subset [m, q], and all rows' [n, q] are counted. There are up
    to 2 M where oversized experts are split, and fewer than M where rows have fewer distinct places.
    """
    centroids = _kmeans(subset, num_experts, seed)
    for most in [2 * num_experts] * MAX_ROUNDS + [0]:
        labels = _counted(points, centroids)
        sizes = torch.bincount(labels, minlength=len(centroids)).tolist()
        cells = {i: rows for i, rows in enumerate(labels.argsort(stable=True).split(sizes)) if len(rows)}
        filled = len(cells)
        centroids = _split(points, centroids, cells, math.ceil(len(points) / num_experts), most, seed)
        if len(centroids) == filled:
            break
    return centroids


def _counted(points: Tensor, centroids: Tensor) -> Tensor:
    """Nearest centroid of each point [n], for counts: a GPU takes products, which break ties arbitrarily."""
    if not points.is_cuda:
        return nearest(points, centroids)
    size = max(1, at_once(DISTANCES, points.device) // (points.element_size() * len(centroids)))
    norms = centroids.square().sum(dim=1)
    return torch.cat([torch.addmm(norms, lot, centroids.T, alpha=-2).argmin(1) for lot in points.split(size)])


def _split(
    points: Tensor, centroids: Tensor, cells: dict[int, Tensor], target: int, most: int, seed: int
) -> Tensor:
    """Centroids of the cells, given by their rows, after the largest are halved, up to `most` in all.

    Cells are halved while one is oversized, or there are too few, from their own rows only: rows move between
    cells in the next round.
    """
    means, sizes = list(centroids), {number: len(rows) for number, rows in cells.items()}
    while max(sizes.values()) > (OVERSIZE * target if 2 * len(cells) >= most else 1) and len(cells) < most:
        largest = max(sizes, key=sizes.__getitem__)
        rows = cells[largest]
        halves = _kmeans(points[rows[evenly(len(rows), MAX_SPLIT_ROWS).to(rows.device)]], 2, seed)
        if len(halves) < 2:  # all its rows lie in one place: it cannot be split
            sizes[largest] = 0
            continue
        del cells[largest], sizes[largest]
        nearer = nearest(points[rows], halves)
        for number, half in enumerate(halves):
            cells[len(means)] = rows[nearer == number]
            sizes[len(means)] = len(cells[len(means)])
            means.append(half)
    return torch.stack([means[number] for number in cells])


def _kmeans(points: Tensor, clusters: int, seed: int) -> Tensor:
    values = points.cpu().numpy()
    clusters = min(clusters, len(np.unique(values, axis=0)))  # at most the number of distinct points
    starts = 3 if PER_EXPERT * clusters <= SUBSET else 1  # for many clusters one start is as good
    return torch.from_numpy(kmeans(values, clusters, starts, seed)).to(points)


@dataclass(frozen=True)
class Partition:
    """Which expert each training row belongs to."""

    gate: Gate  # made the partition
    points: Tensor  # components of each row [n, q], on the CPU
    nearest: Tensor  # expert of each row [n]
    neighbours: tuple[tuple[int, ...], ...]  # of each expert

    def extend(self, points: Tensor) -> Partition:
        """The partition with further rows, whose components are given; the experts stay as they are."""
        labels = torch.cat([self.nearest, nearest(points, self.gate.centroids).cpu()])
        return replace(self, points=torch.cat([self.points, points.cpu()]), nearest=labels)
