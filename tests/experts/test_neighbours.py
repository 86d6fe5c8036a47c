import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustgp.experts.neighbours import MIN_VOTES, Patchwork, border_rows, neighbour_lists

NEAREST = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
SECOND = torch.tensor([1, 1, 2, 0, 2, 1, 1, 1, 2])


def votes_between(i: int, j: int, nearest: torch.Tensor, second: torch.Tensor) -> int:
    pairs = zip(nearest.tolist(), second.tolist(), strict=True)
    return sum({a, b} == {i, j} for a, b in pairs)


# on a line, in the order 0, 1, 2, 3, with a wide gap between 2 and 3
LINE = torch.tensor([[0.0], [1.0], [2.0], [9.0]], dtype=torch.float64)


def test_votes_go_before_neighbours_across_a_gap():
    assert neighbour_lists(NEAREST, SECOND, LINE, 1) == [[1], [2], [1], [2]]


def test_border_rows_are_the_neighbours_rows_nearest_to_the_border():
    points = torch.tensor([[0.9], [1.4], [0.7], [5.0], [1.2]], dtype=torch.float64)
    rows = torch.tensor([0, 1, 2, 4])
    assert border_rows(rows, points, LINE[2], LINE[1], 2).tolist() == [1, 4]
    assert border_rows(rows, points, LINE[0], LINE[1], 2).tolist() == [0, 2]
    assert border_rows(rows, points, LINE[0], LINE[1], 9).tolist() == [0, 1, 2, 4]


@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(1, 8))
def test_neighbours_are_the_experts_with_most_votes(seed, experts, most):
    generator = torch.Generator().manual_seed(seed)
    nearest = torch.randint(0, experts, (40,), generator=generator)
    second = (nearest + torch.randint(1, experts, (40,), generator=generator)) % experts
    centroids = torch.randn(experts, 3, generator=generator, dtype=torch.float64)
    lists = neighbour_lists(nearest, second, centroids, most)
    for i, found in enumerate(lists):
        votes = {j: votes_between(i, j, nearest, second) for j in range(experts) if j != i}
        assert len(set(found)) == len(found) <= most
        assert i not in found
        voted = [j for j in found if votes[j] >= MIN_VOTES]
        assert found[: len(voted)] == voted  # what is across a gap comes after
        assert [votes[j] for j in voted] == sorted((votes[j] for j in voted), reverse=True)
        left = [v for j, v in votes.items() if j not in found and v >= MIN_VOTES]
        assert len(found) == most or not left
        assert not left or not found or max(left) <= min(votes[j] for j in found)


@pytest.mark.parametrize("options", [{"neighbours": -1}, {"fraction": -0.1}, {"fraction": 1.5}])
def test_impossible_patchworks_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Patchwork(**options)
