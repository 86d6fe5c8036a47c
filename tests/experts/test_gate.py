import pytest
import torch
from draws import normal
from hypothesis import given
from hypothesis import strategies as st

from trustgp.experts import gate as gating
from trustgp.experts.gate import OVERSIZE, Division, Gate, find_centroids, make_projection, nearest_two
from trustgp.tangents.factors import FactorFeatures
from trustgp.tangents.rows import RowFeatures


def test_nearest_two_equal_the_sorted_distances():
    points, centroids = normal(40, 3), normal(6, 3, seed=1)
    nearest, second = nearest_two(points, centroids)
    for i in range(40):
        order = sorted(range(6), key=lambda j: float((points[i] - centroids[j]).square().sum()))
        assert [int(nearest[i]), int(second[i])] == order[:2]


def test_a_cell_that_is_too_large_gives_way_to_the_means_of_its_halves(monkeypatch):
    points, centroids = normal(200, 3), normal(5, 3, seed=1)
    labels = nearest_two(points, centroids)[0]
    cells = [(labels == number).nonzero().flatten() for number in range(5)]
    *others, largest = sorted(range(5), key=lambda number: len(cells[number]))
    monkeypatch.setattr(gating, "OVERSIZE", (len(cells[largest]) - 1) / 40)
    after = gating._split(points, centroids, dict(enumerate(cells)), target=40, most=10, seed=0)
    assert torch.equal(after[:4], centroids[sorted(others)])
    members = points[cells[largest]]
    side = nearest_two(members, after[4:])[0]
    for number, half in enumerate(after[4:]):
        torch.testing.assert_close(half, members[side == number].mean(dim=0), rtol=1e-10, atol=1e-10)


def test_rows_in_one_place_do_not_keep_the_others_from_being_split():
    points = torch.cat([torch.zeros(500, 2, dtype=torch.float64), normal(400, 2) + 9.0])
    centroids = find_centroids(points[498:502], points, 10, seed=0)
    sizes = torch.bincount(nearest_two(points, centroids)[0])
    assert sorted(sizes.tolist())[-2] <= OVERSIZE * 90


def test_ties_go_to_the_first_centroid():
    nearest, second = nearest_two(torch.zeros(1, 1), torch.tensor([[1.0], [-1.0], [1.0]]))
    assert (int(nearest), int(second)) == (0, 1)


def test_explicit_features_give_the_same_components_as_a_gram_matrix():
    phi = normal(20, 5)
    explicit = RowFeatures(phi)
    ones = torch.ones(20, 1, dtype=torch.float64)
    hidden = FactorFeatures((phi,), (ones,), ())  # (a . a') (1 . 1): the same kernel
    span, gram = make_projection(explicit, 3), make_projection(hidden, 3)
    assert span.features is None
    assert gram.features is not None
    torch.testing.assert_close(span(explicit), gram(hidden), rtol=1e-10, atol=1e-10)


def test_a_gate_without_projection_has_no_components():
    gate = Gate(None, torch.zeros(1, 0, dtype=torch.float64))
    assert gate.embed(RowFeatures(normal(7, 2))).shape == (7, 0)
    assert gate.num_experts == 1


SIZES = st.integers(4, 60), st.integers(1, 4), st.integers(2, 8)
KINDS = st.sampled_from(["gaussian", "copies", "one place", "heavy"])


@given(st.integers(0, 10**6), *SIZES, KINDS)
def test_every_row_has_exactly_one_expert_and_no_expert_is_empty(seed, n, q, experts, kind):
    experts = min(experts, n)
    points = normal(n, q, seed=seed)
    if kind == "copies":
        points = points[torch.arange(n) % 3]
    if kind == "one place":
        points = points[:1].repeat(n, 1)
    if kind == "heavy":
        points[: n // 2] *= 1e-3
    centroids = find_centroids(points[: max(2, n // 2)], points, experts, seed=0)
    labels, _ = nearest_two(points, centroids)
    sizes = torch.bincount(labels, minlength=len(centroids))
    assert int(sizes.sum()) == n
    assert int(sizes.min()) > 0
    assert len(centroids) <= 2 * experts


@pytest.mark.parametrize(
    ("n", "experts", "subset", "expected"),
    [
        (10_000, 4, None, (512, 512)),
        (10_000, 64, None, (512, 512)),
        (10_000, 100, None, (512, 800)),  # the gate does not grow with the experts
        (600, 100, None, (512, 600)),
        (100, 4, None, (100, 100)),
        (100, 4, 20, (20, 20)),
        (100, 40, 20, (40, 40)),
        (10_000, 100, 200, (200, 200)),
    ],
)
def test_rows_of_the_kernel_pca_and_of_the_k_means(n, experts, subset, expected):
    division = Division(subset=subset)
    assert (division.subset_size(n, experts), division.clustered_size(n, experts)) == expected


@pytest.mark.parametrize("options", [{"components": 0}, {"subset": 1}])
def test_impossible_divisions_are_refused(options):
    with pytest.raises(ValueError, match="needed"):
        Division(**options)
