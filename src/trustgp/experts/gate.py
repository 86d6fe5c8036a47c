"""The division: kernel PCA on a random subset, k-means, and every row to its nearest centroid."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..data.chunking import at_once, evenly
from ..math.compression import projected
from ..math.kernel_pca import principal_components
from ..tangents.base import Features
from .shrink import Sizes, chosen_rows

DISTANCES = 64 * 2**20  # bytes of distances to all centroids at a time
HALVED = 4096  # rows from which the two halves of an oversized expert are found
OVERSIZE = 2.0  # an expert above so many times the target is split: it would dominate time and memory


@dataclass(frozen=True)
class Division:
    """How the rows are divided among the experts.

    Args:
        components: q, the kernel principal components in which distances are measured.
        subset: Rows of the kernel PCA and the k-means; None: 512, and at least 8 per expert.
    """

    components: int = 8
    subset: int | None = None

    def __post_init__(self) -> None:
        if self.components < 1:
            raise ValueError(f"components={self.components}; at least 1 is needed.")
        if self.subset is not None and self.subset < 2:
            raise ValueError(f"subset={self.subset}; at least 2 rows are needed.")

    def subset_size(self, n: int, num_experts: int) -> int:
        wanted = max(512, 8 * num_experts) if self.subset is None else self.subset
        return min(n, max(wanted, min(n, num_experts)))


@dataclass(frozen=True)
class GramProjection:
    """Components from a Gram matrix against the subset: z = k(x, S) A - o."""

    features: Features
    coefficients: Tensor  # A [m, q]
    offset: Tensor  # o [q]

    def __call__(self, features: Features) -> Tensor:
        return features.gram(self.features) @ self.coefficients - self.offset

    @property
    def size(self) -> int:
        """Rows of the subset."""
        return len(self.features)

    @property
    def directions(self) -> Tensor:
        """What k(x, S) is multiplied by, A."""
        return self.coefficients

    def shrink(self, sizes: Sizes) -> GramProjection:
        r"""From fewer rows of the subset S: the components of S are fitted by least squares.

        .. math:: \min_{A', o'} | K_{SS'} A' - 1 o'^\top - Z |^2, \qquad Z = K_{SS} A - 1 o^\top
        """
        features, pack = self.features, sizes.packer([self.features])
        gram = features.gram(features)
        chosen = chosen_rows(gram, sizes.gate)
        if len(chosen) == len(gram):
            return replace(self, features=pack(features))
        kept = pack(features.take(chosen))
        places, cross = gram @ self.coefficients, features.gram(kept)
        middle, level = places.mean(dim=0), cross.mean(dim=0)
        # centred: the offset is free
        coefficients = projected(cross - level, kept.gram(kept), places - middle)
        return GramProjection(kept, coefficients, self.offset - middle + level @ coefficients)

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds beside the features."""
        return {"coefficients": self.coefficients, "offset": self.offset}


@dataclass(frozen=True)
class SpanProjection:
    """The same for explicit features, contracted once: z = phi (Phi_S^T A) - o."""

    directions: Tensor  # Phi_S^T A [d, q]
    offset: Tensor  # o [q]

    features = None
    size = 0  # it holds no rows

    def __call__(self, features: Features) -> Tensor:
        phi = features.explicit()
        assert phi is not None
        return phi.double() @ self.directions - self.offset

    def shrink(self, sizes: Sizes) -> SpanProjection:
        """Itself: it is contracted already."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds."""
        return {"directions": self.directions, "offset": self.offset}


@dataclass(frozen=True)
class Gate:
    """Sends a row to the expert with the nearest centroid.

    Args:
        projection: From features to components; None with a single expert.
        centroids: Shape [M, q].
    """

    projection: GramProjection | SpanProjection | None
    centroids: Tensor

    @property
    def num_experts(self) -> int:
        return len(self.centroids)

    def embed(self, features: Features) -> Tensor:
        """Components z of some rows, shape [n, q]."""
        if self.projection is None:
            return torch.zeros(len(features), 0, dtype=torch.float64, device=self.centroids.device)
        return self.projection(features)

    def shrink(self, sizes: Sizes) -> Gate:
        """From fewer rows, or shorter numbers."""
        return self if self.projection is None else replace(self, projection=self.projection.shrink(sizes))


def nearest_two(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest and second-nearest centroid of each point, each of shape [n]; ties go to the first.

    With a single centroid the second is the first.
    """
    lots = [_nearest_two(lot, centroids) for lot in points.split(_at_once(points, centroids))]
    nearest, second = (torch.cat(found) for found in zip(*lots, strict=True))
    return nearest, second


def _at_once(points: Tensor, centroids: Tensor) -> int:
    """Rows whose distances to all centroids stand side by side."""
    return max(1, at_once(DISTANCES, points.device) // (points.element_size() * len(centroids)))


def _nearest_two(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    distances = _distances(points, centroids)
    nearest = distances.argmin(dim=1)
    if len(centroids) == 1:
        return nearest, nearest.clone()
    distances.scatter_(1, nearest[:, None], torch.inf)
    return nearest, distances.argmin(dim=1)


def _nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point and its squared distance, [n] each; ties go to the first."""
    lots = [_distances(lot, centroids).min(dim=1) for lot in points.split(_at_once(points, centroids))]
    return torch.cat([lot.indices for lot in lots]), torch.cat([lot.values for lot in lots])


def _distances(points: Tensor, centroids: Tensor) -> Tensor:
    """Squared distances, shape [n, M]."""
    # the direct difference keeps equal points at equal distances, the expansion of cdist may not
    total = points.new_zeros(len(points), len(centroids))
    for place, centre in zip(points.T, centroids.T, strict=True):
        total += (place[:, None] - centre).square_()
    return total


def make_projection(features: Features, components: int) -> GramProjection | SpanProjection:
    """Kernel PCA of the subset's features."""
    coefficients, offset = principal_components(features.gram(features), components)
    phi = features.explicit()
    if phi is None:
        return GramProjection(features, coefficients, offset)
    return SpanProjection(phi.double().T @ coefficients, offset)


def find_centroids(subset: Tensor, points: Tensor, num_experts: int, *, seed: int) -> Tensor:
    """Centroids such that no expert is empty and none is far above the target of n / M rows.

    Args:
        subset: Components of the subset, shape [m, q]: k-means runs on these.
        points: Components of all rows, shape [n, q].
        num_experts: M; up to 2 M come back when oversized experts are split, fewer when the rows have
            fewer distinct places.
        seed: Of the k-means.
    """
    centroids = _kmeans(subset, num_experts, seed)
    target = math.ceil(len(points) / num_experts)
    labels, apart = _nearest(points, centroids)
    for _ in range(4 * num_experts):
        sizes = torch.bincount(labels, minlength=len(centroids))
        if int(sizes.min()) == 0:
            filled = sizes > 0
            centroids, labels = centroids[filled], (filled.cumsum(0) - 1)[labels]
            continue
        largest = int(sizes.argmax())
        enough = len(centroids) >= num_experts and int(sizes[largest]) <= OVERSIZE * target
        if enough or len(centroids) >= 2 * num_experts:
            break
        mine = (labels == largest).nonzero().flatten()
        halves = _kmeans(points[mine[evenly(len(mine), HALVED).to(mine.device)]], 2, seed)
        if len(halves) < 2:  # all its rows lie in one place
            break
        centroids = torch.cat([centroids[:largest], centroids[largest + 1 :], halves])
        labels, apart = _with_halves(points, labels, apart, largest, mine, centroids)
    return centroids


def _with_halves(
    points: Tensor, labels: Tensor, apart: Tensor, gone: int, orphans: Tensor, centroids: Tensor
) -> tuple[Tensor, Tensor]:
    """Labels and distances when one centroid has gone, with its rows, and the last two have come."""
    added, nearer = _nearest(points, centroids[-2:])
    added += len(centroids) - 2
    labels = labels - (labels > gone).long()
    labels, apart = torch.where(nearer < apart, added, labels), torch.minimum(nearer, apart)
    labels[orphans], apart[orphans] = _nearest(points[orphans], centroids)
    return labels, apart


def _kmeans(points: Tensor, clusters: int, seed: int) -> Tensor:
    """scikit-learn's k-means on one thread, so that the sums do not depend on the machine's cores."""
    from sklearn.cluster import KMeans  # with SciPy, a second to import, which loading a model does without
    from threadpoolctl import threadpool_limits

    values = points.cpu().numpy()
    distinct = len(np.unique(values, axis=0))
    clusters = min(clusters, distinct)
    with threadpool_limits(limits=1):
        found = KMeans(clusters, n_init=3, random_state=seed)  # pyright: ignore[reportArgumentType]
        found.fit(values)
    return torch.from_numpy(found.cluster_centers_).to(points)


@dataclass(frozen=True)
class Partition:
    """Which expert each training row belongs to.

    Args:
        gate: Made the partition.
        points: Components of each row, shape [n, q], on the CPU.
        nearest: Expert of each row, shape [n].
        neighbours: Of each expert.
    """

    gate: Gate
    points: Tensor
    nearest: Tensor
    neighbours: tuple[tuple[int, ...], ...]

    def extend(self, points: Tensor) -> Partition:
        """The partition with further rows, whose components are given; the experts stay as they are."""
        nearest = nearest_two(points, self.gate.centroids)[0].cpu()
        return replace(
            self, points=torch.cat([self.points, points.cpu()]), nearest=torch.cat([self.nearest, nearest])
        )
