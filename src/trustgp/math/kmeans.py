r"""k-means by Lloyd's algorithm from k-means++ starts, step by step as in scikit-learn's `KMeans`.

The import of scikit-learn would take longer than a fit of a few hundred rows. Products have few columns,
and sums are in the order of the rows: the result does not depend on the number of CPU cores.
"""

from __future__ import annotations

import math

import numpy as np

MAX_STEPS, TOLERANCE = 300, 1e-4  # the latter for the squared shift, over the mean variance of the columns


def kmeans(points: np.ndarray, clusters: int, starts: int, seed: int) -> np.ndarray:
    """Centroids [k, d] of the least inertia among several starts; points [n, d], float64."""
    random, mean = np.random.RandomState(seed), points.mean(axis=0)  # the same draws in all versions of numpy
    tolerance, centred = TOLERANCE * float(points.var(axis=0).mean()), points - mean
    best, least, before = centred[:0], math.inf, np.empty(0)
    for _ in range(starts):
        labels, inertia, centres = _lloyd(centred, _plus_plus(centred, clusters, random), tolerance)
        if inertia < least and not (len(before) and _same(labels, before, clusters)):
            best, least, before = centres, inertia, labels
    return best + mean


def _plus_plus(points: np.ndarray, clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Initial centroids far from each other, each the best of a few draws (Arthur and Vassilvitskii 2007)."""
    trials, n, norms = 2 + int(math.log(clusters)), len(points), np.einsum("ij,ij->i", points, points)

    def squared(rows: np.ndarray) -> np.ndarray:
        return np.maximum(norms[rows, None] - 2.0 * points[rows] @ points.T + norms, 0.0)

    chosen = [int(random.choice(n, p=np.full(n, 1.0 / n)))]
    nearest = squared(np.array(chosen))[0]
    for _ in range(1, clusters):
        draws = random.uniform(size=trials) * nearest.sum()
        candidates = np.minimum(np.searchsorted(np.cumsum(nearest), draws), n - 1)
        tried = np.minimum(nearest, squared(candidates))
        best = int(tried.sum(axis=1).argmin())
        nearest = tried[best]
        chosen.append(int(candidates[best]))
    return points[chosen]


def _lloyd(points: np.ndarray, centres: np.ndarray, tolerance: float) -> tuple[np.ndarray, float, np.ndarray]:
    """Labels [n], inertia and centroids [k, d] from a start."""
    labels = np.full(len(points), -1)
    for _ in range(MAX_STEPS):
        before, labels = labels, _labels(points, centres)
        counts = np.bincount(labels, minlength=len(centres)).astype(float)
        sums = np.stack([np.bincount(labels, column, minlength=len(centres)) for column in points.T], axis=1)
        _fill_empty(points, centres, labels, counts, sums)
        last, means = centres, sums / np.maximum(counts, 1.0)[:, None]
        centres = np.where(counts[:, None] > 0, means, last)
        if np.array_equal(labels, before):
            break
        if float(np.square(centres - last).sum()) <= tolerance:
            labels = _labels(points, centres)
            break
    return labels, float(np.square(points - centres[labels]).sum()), centres


def _labels(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return (np.einsum("ij,ij->i", centres, centres) - 2.0 * points @ centres.T).argmin(axis=1)


def _fill_empty(
    points: np.ndarray, centres: np.ndarray, labels: np.ndarray, counts: np.ndarray, sums: np.ndarray
) -> None:
    """Give the rows furthest from their centroids to empty clusters, in place."""
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return
    distances = np.square(points - centres[labels]).sum(axis=1)
    if distances.max() == 0:
        return
    furthest = np.argpartition(distances, -len(empty))[: -len(empty) - 1 : -1]
    for cluster, row in zip(empty, furthest, strict=True):
        sums[labels[row]] -= points[row]
        counts[labels[row]] -= 1.0
        sums[cluster], counts[cluster] = points[row], 1.0


def _same(one: np.ndarray, other: np.ndarray, clusters: int) -> bool:
    """Whether two clusterings differ only in the numbers of their clusters."""
    partner = np.full(clusters, -1)
    partner[one] = other
    return bool((partner[one] == other).all())
