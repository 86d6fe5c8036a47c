"""Overlaps, matching, calibration and unknown things of detections, against plain loops and by hand."""

from dataclasses import dataclass

import pytest
import torch
from draws import Draws
from metrics.by_hand import there

from trustgp import metrics
from trustgp.detection import BoxTargets
from trustgp.metrics.boxes import corners, generous_overlaps, nearest, overlaps


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
    draws, every, targets = Draws(seed), [], []
    uniform = draws.uniform
    for i in range(pictures):
        m, k = (0 if i == 1 else 5), (0 if i == 2 else 25)
        low = 100 * uniform(m, 2)
        boxes = torch.cat([low, low + 20 + 60 * uniform(m, 2)], dim=1)
        labels, which = draws.whole(0, kinds, m), draws.whole(0, max(m, 1), k)
        near = (boxes[which] if m else 100 * uniform(k, 4)) + 15 * (uniform(k, 4) - 0.5) * uniform(k, 1)
        other = draws.whole(0, kinds, k)
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
    error = metrics.detection_calibration_error(tensor([0.5, 0.4]), tensor([1, 0]), bins=2)
    assert float(error) == pytest.approx(0.5 - 0.45)


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


KNOWN = 2  # classes 0 and 1
SOME_OF_A = [0.0, 0, 10, 4]  # overlaps A by 0.4
LESS_OF_A = [0.0, 0, 10, 2]  # by 0.2


def test_a_detection_lies_on_an_unknown_thing_that_it_overlaps_more_than_any_familiar_one():
    boxes = torch.tensor([A, SOME_OF_A, LESS_OF_A, B])
    unknown = metrics.on_unknown(boxes, there([A], [2]), num_classes=KNOWN)
    assert unknown.tolist() == [True, True, False, False]
    assert not metrics.on_unknown(boxes, there([A, B], [0, 1]), num_classes=KNOWN).any()
    # a familiar thing that fits the second box better takes it
    both = there([A, [0.0, 0, 10, 5]], [7, 1])
    assert metrics.on_unknown(boxes[:2], both, num_classes=KNOWN).tolist() == [True, False]
    assert metrics.on_unknown(boxes[:0], both, num_classes=KNOWN).tolist() == []
    assert not metrics.on_unknown(boxes, there([], []), num_classes=KNOWN).any()


def test_recall_of_unknown_things_which_may_be_absent_and_open_set_errors():
    # three unknown things in two pictures, and a familiar one
    true = [there([A, B, FAR], [2, 0, 3]), there([A], [2]), there([], [])]
    boxes = [torch.tensor(part).reshape(-1, 4) for part in ([A, B, A, SOME_OF_A], [A], [FAR])]
    marks = [torch.tensor(part) for part in ([True, True, False, True], [False], [True])]
    # A of the first picture is marked; FAR is not found; A of the second is found, but not marked
    assert metrics.unknown_recall(boxes, marks, true, num_classes=KNOWN) == pytest.approx(1 / 3)
    # the third detection of the first picture, and that of the second, pass for known classes
    assert metrics.open_set_errors(boxes, marks, true, num_classes=KNOWN) == 2
    nothing = [torch.zeros_like(mark) for mark in marks]
    assert metrics.unknown_recall(boxes, nothing, true, num_classes=KNOWN) == 0.0
    assert metrics.open_set_errors(boxes, nothing, true, num_classes=KNOWN) == 3
    case = [torch.tensor([A])], [torch.tensor([True])], [there([A], [1])]
    assert metrics.unknown_recall(*case, num_classes=KNOWN) is None
    assert metrics.open_set_errors(*case, num_classes=KNOWN) == 0


def some_boxes(n: int, seed: int) -> torch.Tensor:
    low, size = Draws(seed).uniform(2, n, 2)
    return torch.cat([low, low + size], dim=1)


def plain(a: list[float], b: list[float]) -> tuple[float, float]:
    """Intersection over union, and the generous one, by hand."""
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    high = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = sum((c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)) - wide * high
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
