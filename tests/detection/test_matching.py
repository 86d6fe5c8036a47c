"""Queries and targets: the assignment of least cost."""

from itertools import permutations

import pytest
import torch

from trustgp.detection import BoxTargets
from trustgp.detection.adapter import CLASS_COST, DISTANCE_COST, OVERLAP_COST, match
from trustgp.metrics.boxes import generous_overlaps


def boxes(n: int, seed: int) -> torch.Tensor:
    low, size = torch.rand(2, n, 2, generator=torch.Generator().manual_seed(seed))
    return torch.cat([40 * low, 40 * low + 4 + 10 * size], dim=1)


@pytest.mark.parametrize("seed", range(3))
def test_the_assignment_is_the_cheapest_of_all(seed):
    found, targets = boxes(6, seed), BoxTargets(boxes(3, seed + 50), torch.tensor([0, 1, 0]))
    chances = torch.rand(6, 2, generator=torch.Generator().manual_seed(seed))
    query, shared = match(chances, found, targets, side=48.0)

    def cost(assignment: tuple[int, ...]) -> float:
        total = 0.0
        for k, q in enumerate(assignment):
            total -= CLASS_COST * float(chances[q, targets.labels[k]])
            total += DISTANCE_COST * float((found[q] - targets.boxes[k]).abs().sum()) / 48.0
            total -= OVERLAP_COST * float(generous_overlaps(found[q : q + 1], targets.boxes[k : k + 1]))
        return total

    best = min(permutations(range(6), 3), key=cost)
    assert tuple(query.tolist()) == best
    assert bool(((shared >= 0) & (shared <= 1)).all())


def test_targets_may_be_none_or_more_than_the_queries():
    none = BoxTargets(torch.zeros(0, 4), torch.zeros(0).long())
    assert [len(part) for part in match(torch.ones(4, 2), boxes(4, 0), none, side=48.0)] == [0, 0]
    more = BoxTargets(boxes(4, 9), torch.zeros(4).long())
    query, shared = match(torch.ones(2, 1), boxes(2, 0), more, side=48.0)
    assert sorted(query.tolist()) == [-1, -1, 0, 1]
    assert bool((shared[query == -1] == 0).all())
