"""Overlaps of boxes against plain loops."""

import pytest
import torch

from trustgp.metrics.boxes import corners, generous_overlaps, nearest, overlaps


def some_boxes(n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    return torch.cat([low, low + torch.rand(n, 2, generator=generator, dtype=torch.float64)], dim=1)


def plain(a: list[float], b: list[float]) -> tuple[float, float]:
    """Intersection over union, and the generous one, by hand."""
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    high = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    sizes = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    union = sum(sizes) - wide * high
    around = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return wide * high / union, wide * high / union - (around - union) / around


def test_overlaps_are_those_of_a_plain_loop():
    first, second = some_boxes(6, 0), some_boxes(5, 1)
    second[0] += 5.0  # far away
    expected = torch.tensor([[plain(a, b) for b in second.tolist()] for a in first.tolist()]).double()
    torch.testing.assert_close(overlaps(first, second), expected[..., 0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(generous_overlaps(first, second), expected[..., 1], rtol=1e-6, atol=1e-7)
    assert float(overlaps(torch.zeros(1, 4), torch.zeros(1, 4))) == 0.0
    assert corners(torch.tensor([0.5, 0.4, 0.2, 0.6])).tolist() == pytest.approx([0.4, 0.1, 0.6, 0.7])


def test_the_nearest_true_box_is_the_one_that_is_overlapped_most():
    boxes = torch.tensor([[0.0, 0, 10, 10], [4, 0, 14, 10], [50, 50, 60, 60]])
    truth = torch.tensor([[0.0, 0, 10, 10], [5, 0, 15, 10]])
    shared, which = nearest(boxes, truth)
    assert which.tolist()[:2] == [0, 1]
    assert shared.tolist() == pytest.approx([1.0, 90 / 110, 0.0])
    assert [part.tolist() for part in nearest(boxes, truth[:0])] == [[0.0] * 3, [-1] * 3]
