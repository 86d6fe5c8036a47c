"""PDQ by hand, and against a loop over pixels and over all assignments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations

import pytest
import torch
from metrics.by_hand import there

from trustgp import metrics
from trustgp.detection import BoxTargets


@dataclass
class Found:
    boxes: torch.Tensor
    std: torch.Tensor
    probabilities: torch.Tensor


def found(boxes: list, std: list, probabilities: list, classes: int = 2) -> Found:
    sides = (torch.tensor(part, dtype=torch.float64).reshape(-1, 4) for part in (boxes, std))
    return Found(*sides, torch.tensor(probabilities, dtype=torch.float64).reshape(-1, classes))


SURE = [0.0] * 4
BOX, OTHER = [2.0, 3, 6, 8], [10.0, 1, 15, 4]
SIZE = (12, 16)


def pdq(*scene) -> float:
    return metrics.detection_quality(*([part] for part in scene)).pdq


def test_a_perfect_detection_is_1():
    scene = found([BOX, OTHER], [SURE, SURE], [[1, 0], [0, 1]]), there([OTHER, BOX], [1, 0]), SIZE
    quality = metrics.detection_quality(*([part] for part in scene))
    assert quality.pdq == pytest.approx(1.0, abs=1e-9)
    assert (quality.pairs, quality.false, quality.missed) == (2, 0, 0)
    assert (quality.spatial, quality.label) == pytest.approx((1.0, 1.0), abs=1e-9)


def test_a_miss_or_a_false_alarm_halves_it():
    one, two = found([BOX], [SURE], [[1, 0]]), found([BOX, OTHER], [SURE, SURE], [[1, 0], [1, 0]])
    assert pdq(one, there([BOX, OTHER], [0, 0]), SIZE) == pytest.approx(0.5, abs=1e-9)
    assert pdq(two, there([BOX], [0]), SIZE) == pytest.approx(0.5, abs=1e-9)
    # of all pictures together: a quality of 1 over a pair, a false alarm and a miss
    several = [one, one, found([], [], [])], [there([BOX], [0]), there([], []), there([BOX], [0])], [SIZE] * 3
    quality = metrics.detection_quality(*several)
    assert quality.pdq == pytest.approx(1 / 3, abs=1e-9)
    assert (quality.pairs, quality.false, quality.missed) == (1, 1, 1)


def test_a_pair_of_no_quality_is_a_false_alarm_and_a_miss():
    quality = metrics.detection_quality([found([BOX], [SURE], [[1, 0]])], [there([BOX], [1])], [SIZE])
    assert (quality.pdq, quality.pairs, quality.false, quality.missed) == (0.0, 0, 1, 1)


def test_boxes_far_from_a_thing_make_no_pair_with_it():
    # else a false alarm and a miss would count as one pair, and cost less
    for std in (SURE, [1.0] * 4):
        quality = metrics.detection_quality([found([OTHER], [std], [[1, 0]])], [there([BOX], [0])], [SIZE])
        assert (quality.pairs, quality.false, quality.missed) == (0, 1, 1)
    both = found([OTHER, BOX], [SURE, SURE], [[1, 0], [1, 0]]), there([BOX, [10, 8, 15, 11]], [0, 0]), SIZE
    assert pdq(*both) == pytest.approx(1 / 3, abs=1e-9)


def plain_spatial(box: list, std: list, thing: list, size: tuple[int, int]) -> float:
    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    front, back, area = 0.0, 0.0, 0
    for row in range(size[0]):
        for column in range(size[1]):
            x, y = column + 0.5, row + 0.5
            p = below((x - box[0]) / std[0]) * below((box[2] - x) / std[2])
            p *= below((y - box[1]) / std[1]) * below((box[3] - y) / std[3])
            p = 0.0 if p < 0.0027 else p
            if thing[0] <= x < thing[2] and thing[1] <= y < thing[3]:
                front, area = front + math.log(p + 1e-14), area + 1
            else:
                back += math.log(1 - p + 1e-14)
    quality = math.exp((front + back) / area)
    return quality if quality > 1e-8 else 0.0


def some_boxes(n: int, g: torch.Generator) -> torch.Tensor:
    low = 6 * torch.rand(n, 2, generator=g, dtype=torch.float64)
    return torch.cat([low, low + 3 + 3 * torch.rand(n, 2, generator=g, dtype=torch.float64)], dim=1)


@pytest.mark.parametrize(("k", "m"), [(4, 3), (2, 4)])
def test_quality_is_that_of_loops_over_pixels_and_assignments(k, m):
    g = torch.Generator().manual_seed(k)
    things = some_boxes(m, g)
    boxes = things[torch.arange(k) % m] + 0.7 * torch.randn(k, 4, generator=g, dtype=torch.float64)
    std = 0.2 + torch.rand(k, 4, generator=g, dtype=torch.float64)
    chances = torch.rand(k, 3, generator=g, dtype=torch.float64).softmax(dim=1)
    labels = torch.randint(0, 3, (m,), generator=g)
    plain = [
        [plain_spatial(b, s, t, SIZE) for t in things.tolist()]
        for b, s in zip(boxes.tolist(), std.tolist(), strict=True)
    ]
    spatial = metrics.spatial_quality(boxes, std, things, SIZE)
    # 1 - p of a pixel that is surely inside is of the size of a rounding error, and its logarithm is taken
    torch.testing.assert_close(spatial, torch.tensor(plain, dtype=torch.float64), rtol=1e-4, atol=1e-8)
    quality = (torch.tensor(plain, dtype=torch.float64) * chances[:, labels]).sqrt()
    quality = quality if k >= m else quality.T
    best = max(
        sum(float(quality[row, column]) for column, row in enumerate(rows))
        for rows in permutations(range(max(k, m)), min(k, m))
    )
    scored = metrics.detection_quality([Found(boxes, std, chances)], [BoxTargets(things, labels)], [SIZE])
    assert scored.pdq == pytest.approx(best / max(k, m), abs=1e-6)


def test_nothing_at_all_is_0_and_lengths_must_agree():
    assert pdq(found([], [], []), there([], []), SIZE) == 0.0
    with pytest.raises(ValueError, match="sizes of 0"):
        metrics.detection_quality([found([], [], [])], [there([], [])], [])
    with pytest.raises(ValueError, match="probabilities of 2 classes"):
        pdq(found([BOX], [SURE], [[1, 0]]), there([BOX], [5]), SIZE)
