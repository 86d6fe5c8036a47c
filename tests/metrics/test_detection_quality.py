"""PDQ by hand, and against a loop over pixels and over all assignments."""

import math
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from many import each
from metrics.by_hand import there

from trustgp import metrics
from trustgp.detection import BoxTargets


def found(boxes: list, std: list, probabilities: list) -> SimpleNamespace:
    parts = {"boxes": (boxes, 4), "std": (std, 4), "probabilities": (probabilities, 2)}
    return SimpleNamespace(**{k: torch.tensor(v).double().reshape(-1, n) for k, (v, n) in parts.items()})


SURE = [0.0] * 4
BOX, OTHER = [2.0, 3, 6, 8], [10.0, 1, 15, 4]
SIZE = (12, 16)


NOTHING = found([], [], [])


@each(
    ("detections", "targets", "expected"),  # PDQ, pairs, false alarms, misses
    [
        (found([BOX, OTHER], [SURE, SURE], [[1, 0], [0, 1]]), there([OTHER, BOX], [1, 0]), (1.0, 2, 0, 0)),
        (found([BOX], [SURE], [[1, 0]]), there([BOX, OTHER], [0, 0]), (0.5, 1, 0, 1)),
        (found([BOX, OTHER], [SURE] * 2, [[1, 0]] * 2), there([BOX], [0]), (0.5, 1, 1, 0)),
        (found([BOX], [SURE], [[1, 0]]), there([BOX], [1]), (0.0, 0, 1, 1)),  # a pair of no quality is none
        # far from a target: else a false alarm and a miss would count as one pair, and cost less
        (found([OTHER], [SURE], [[1, 0]]), there([BOX], [0]), (0.0, 0, 1, 1)),
        (found([OTHER], [[1.0] * 4], [[1, 0]]), there([BOX], [0]), (0.0, 0, 1, 1)),
        (NOTHING, there([], []), (0.0, 0, 0, 0)),
    ],
)
def test_misses_and_false_alarms_count_as_much_as_pairs(detections, targets, expected):
    quality = metrics.detection_quality([detections], [targets], [SIZE])
    assert quality.pdq == pytest.approx(expected[0], abs=1e-7)
    assert (quality.pairs, quality.false, quality.missed) == expected[1:]
    if expected[0] == 1.0:
        assert (quality.spatial, quality.label) == pytest.approx((1.0, 1.0), abs=1e-9)


def test_pdq_is_of_all_pictures_together_and_lengths_must_agree():
    one = found([BOX], [SURE], [[1, 0]])
    several = [one, one, NOTHING], [there([BOX], [0]), there([], []), there([BOX], [0])], [SIZE] * 3
    assert metrics.detection_quality(*several).pdq == pytest.approx(1 / 3, abs=1e-9)
    with pytest.raises(ValueError, match="1 targets and 0 sizes"):
        metrics.detection_quality([NOTHING], [there([], [])], [])
    with pytest.raises(ValueError, match="probabilities of 2 classes"):
        metrics.detection_quality([one], [there([BOX], [5])], [SIZE])


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
    given = SimpleNamespace(boxes=boxes, std=std, probabilities=chances)
    scored = metrics.detection_quality([given], [BoxTargets(things, labels)], [SIZE])
    assert scored.pdq == pytest.approx(best / max(k, m), abs=1e-6)
