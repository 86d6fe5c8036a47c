"""Matching and calibration of detections, against plain loops and numbers by hand."""

from dataclasses import dataclass

import pytest
import torch
from metrics.by_hand import there
from metrics.test_boxes import plain

from trustgp import metrics
from trustgp.detection import BoxTargets


@dataclass(frozen=True)
class Found(BoxTargets):
    confidence: torch.Tensor


def found(boxes: list, labels: list[int], confidence: list[float]) -> Found:
    return Found(**vars(there(boxes, labels)), confidence=tensor(confidence))


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


A, B, FAR = [0.0, 0, 10, 10], [20.0, 0, 30, 10], [50.0, 50, 60, 60]


def random_scenes(seed: int, *, ties: bool, pictures: int = 6, kinds: int = 3) -> tuple[list, list]:
    """Several detections for each thing, some of the wrong class; some pictures without things or boxes."""
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    every, targets = [], []
    for i in range(pictures):
        m, k = (0 if i == 1 else 5), (0 if i == 2 else 25)
        low = 100 * uniform(m, 2)
        boxes = torch.cat([low, low + 20 + 60 * uniform(m, 2)], dim=1)
        labels = torch.randint(0, kinds, (m,), generator=g)
        which = torch.randint(0, max(m, 1), (k,), generator=g)
        near = (boxes[which] if m else 100 * uniform(k, 4)) + 15 * (uniform(k, 4) - 0.5) * uniform(k, 1)
        other = torch.randint(0, kinds, (k,), generator=g)
        own = torch.where(uniform(k) < 0.8, labels[which], other) if m else other
        sure = (10 * uniform(k)).round() / 10 if ties else uniform(k)
        every.append(Found(near, own, sure))
        targets.append(BoxTargets(boxes, labels))
    return every, targets


def plain_matches(own: Found, targets: BoxTargets, least: float) -> list[int]:
    """COCO's matching, one detection after another."""
    boxes, goals = own.boxes.tolist(), targets.boxes.tolist()
    which = [-1] * len(boxes)
    for i in sorted(range(len(boxes)), key=lambda i: -float(own.confidence[i])):
        best = least
        for j, goal in enumerate(goals):
            free = j not in which and own.labels[i] == targets.labels[j]
            if free and plain(boxes[i], goal)[0] >= best:
                best, which[i] = plain(boxes[i], goal)[0], j
    return which


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_matches_are_those_of_a_plain_loop(seed, ties):
    for own, targets in zip(*random_scenes(seed, ties=ties), strict=True):
        for least in (0.5, 0.75):
            which, shared = metrics.match_targets(own, targets, min_overlap=least)
            assert which.tolist() == plain_matches(own, targets, least)
            for row, target in enumerate(which.tolist()):
                boxes = own.boxes[row].tolist(), targets.boxes[target].tolist() if target >= 0 else FAR
                expected = plain(*boxes)[0] if target >= 0 else 0.0
                assert float(shared[row]) == pytest.approx(expected, abs=1e-12)


def test_of_equal_targets_the_last_is_matched():
    own = found([A, A, B], [0, 0, 1], [0.9, 0.8, 0.7])
    assert metrics.match_targets(own, there([A, A], [0, 0]))[0].tolist() == [1, 0, -1]


def test_detection_calibration_error_by_hand():
    confidence, right = tensor([0.93, 0.91, 0.62, 0.64]), tensor([1, 0, 1, 1])
    # bins of a tenth: 0.92 against 1/2, and 0.63 against 1, half of the detections each
    error = metrics.detection_calibration_error(confidence, right, bins=10)
    assert float(error) == pytest.approx(0.5 * 0.42 + 0.5 * 0.37, abs=1e-12)
    assert metrics.detection_calibration_error(confidence[:0], right[:0]) is None
    # the upper end belongs to a bin, the lower does not
    assert float(metrics.detection_calibration_error(tensor([0.5, 0.4]), tensor([1, 0]), bins=2)) == (
        pytest.approx(0.5 - 0.45)
    )


def test_localisation_calibration_error_by_hand():
    confidence, shared = tensor([0.93, 0.95, 0.5]), tensor([0.8, 0.0, 0.5])
    error = metrics.localisation_calibration_error(confidence, shared, torch.tensor([0, 0, 4]), bins=10)
    # class 0: 0.94 against precision 1/2 times overlap 0.8; class 4: as sure as it fits
    assert float(error) == pytest.approx((0.54 + 0.0) / 2, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((tensor([0.5]), tensor([1, 0])), {}, "shapes differ"),
        ((tensor([1.5]), tensor([1])), {}, "logits"),
        ((tensor([0.5]), tensor([1])), {"bins": 0}, "bins=0"),
        ((tensor([[0.5]]), tensor([[1]])), {}, r"needed, \[n\]"),
    ],
)
def test_what_is_no_confidence_is_refused(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        metrics.detection_calibration_error(*arguments, **options)
