"""k-means, against scikit-learn's."""

import numpy as np
import pytest

from trustgp.math.kmeans import kmeans


@pytest.mark.parametrize(
    ("n", "d", "clusters", "digits"), [(300, 3, 5, 9), (200, 2, 60, 9), (400, 8, 2, 1), (60, 2, 55, 1)]
)
def test_centroids_are_those_of_scikit_learn(n, d, clusters, digits):
    from sklearn.cluster import KMeans

    points = np.random.default_rng(n).normal(size=(n, d)).round(digits) * [1.0, 10.0, *[0.1] * (d - 2)] + 3.0
    expected = KMeans(clusters, n_init=3, random_state=0).fit(points).cluster_centers_
    np.testing.assert_allclose(kmeans(points, clusters, 3, 0), expected, rtol=1e-12, atol=1e-12)


def test_clusters_without_rows_get_the_furthest_ones():
    points = np.repeat([[0.0], [1.0], [5.0]], [50, 3, 1], axis=0)
    assert sorted(kmeans(points, 3, 1, 0).flatten().tolist()) == pytest.approx([0.0, 1.0, 5.0])
