"""Matching, average precision and calibration of detections, against plain loops and numbers by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from trustgp import metrics
from trustgp.metrics.detections import FEWEST, STEPS


@dataclass
class Found:
    boxes: torch.Tensor
    labels: torch.Tensor
    confidence: torch.Tensor


@dataclass
class True_:
    boxes: torch.Tensor
    labels: torch.Tensor


def found(boxes: list, labels: list[int], confidence: list[float]) -> Found:
    return Found(torch.tensor(boxes).reshape(-1, 4).double(), torch.tensor(labels).long(), tensor(confidence))


def true(boxes: list, labels: list[int]) -> True_:
    return True_(torch.tensor(boxes).reshape(-1, 4).double(), torch.tensor(labels).long())


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


A, B, FAR = [0.0, 0, 10, 10], [20.0, 0, 30, 10], [50.0, 50, 60, 60]
NEAR_A = [0.0, 0, 10, 7.8]  # overlaps A by 0.78


def random_scenes(seed: int, *, ties: bool, pictures: int = 6, kinds: int = 3) -> tuple[list, list]:
    """Several detections for each thing, some of the wrong class; some pictures without things or boxes."""
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    every, there = [], []
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
        there.append(True_(boxes, labels))
    return every, there


def plain_overlap(a: list[float], b: list[float]) -> float:
    wide, high = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
    sizes = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    return wide * high / (sum(sizes) - wide * high)


def plain_ap(every: list, there: list, kind: int, least: float) -> float:
    """COCO's definition, one detection after another."""
    entries, number = [], 0
    for mine, things in zip(every, there, strict=True):
        goals = [b for b, c in zip(things.boxes.tolist(), things.labels.tolist(), strict=True) if c == kind]
        number += len(goals)
        rows = zip(mine.boxes.tolist(), mine.labels.tolist(), mine.confidence.tolist(), strict=True)
        own = sorted([(s, b) for b, c, s in rows if c == kind], key=lambda one: -one[0])[:100]
        taken: set[int] = set()
        for s, box in own:
            best, at = least, -1
            for j, goal in enumerate(goals):
                if j not in taken and plain_overlap(box, goal) >= best:
                    best, at = plain_overlap(box, goal), j
            taken |= {at} - {-1}
            entries.append((s, at >= 0))
    entries.sort(key=lambda one: -one[0])
    points, hits = [], 0
    for n, (_, right) in enumerate(entries, start=1):
        hits += right
        points.append((hits / number, hits / n))
    best_from = [max((p for r, p in points if r >= recall), default=0.0) for recall in np.linspace(0, 1, 101)]
    return sum(best_from) / 101


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_average_precision_is_that_of_a_plain_loop(seed, ties):
    every, there = random_scenes(seed, ties=ties)
    curves = metrics.precision_curves(every, there)
    assert sorted(curves) == [0, 1, 2]
    for kind, curve in curves.items():
        expected = [plain_ap(every, there, kind, least) for least in STEPS.tolist()]
        assert curve.mean(dim=1).tolist() == pytest.approx(expected, abs=1e-12)
        assert min(expected) + max(expected) > 0.05  # the case says something
    mean = torch.stack(list(curves.values())).mean()
    assert float(metrics.average_precision(every, there)) == pytest.approx(float(mean), abs=1e-12)


def test_average_precision_by_hand():
    # right, a second time the same thing, right: precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1
    mine = found([A, A, B], [0, 0, 0], [0.9, 0.8, 0.7])
    expected = (51 * 1.0 + 50 * 2 / 3) / 101
    half = STEPS[:1]
    assert float(metrics.average_precision([mine], [true([A, B], [0, 0])], least=half)) == pytest.approx(
        expected, abs=1e-12
    )
    # a box that overlaps by 0.78 is right at 0.5, 0.55, ..., 0.75: six of ten overlaps
    near = found([NEAR_A], [0], [0.9])
    assert float(metrics.average_precision([near], [true([A], [0])])) == pytest.approx(0.6, abs=1e-12)
    # half of what there is: recalls up to 0.5
    assert float(
        metrics.average_precision([found([A], [0], [0.3])], [true([A, B], [0, 0])])
    ) == pytest.approx(51 / 101)


def test_classes_count_alike_and_those_without_things_do_not_count():
    mine = found([A, B, FAR], [0, 1, 2], [0.9, 0.9, 0.9])
    there = true([A, FAR], [0, 1])  # class 0 is found, class 1 is not, class 2 is not there
    assert float(metrics.average_precision([mine], [there])) == 0.5
    assert set(metrics.precision_curves([mine], [there])) == {0, 1}


def test_only_the_100_surest_of_a_class_count_in_a_picture():
    many = found([FAR] * 100 + [A], [0] * 101, [0.9] * 100 + [0.1])
    assert float(metrics.average_precision([many], [true([A], [0])])) == 0.0
    fewer = found([FAR] * 99 + [A], [0] * 100, [0.9] * 99 + [0.1])
    assert float(metrics.average_precision([fewer], [true([A], [0])])) == pytest.approx(0.01)


def test_the_surest_detection_takes_the_thing():
    mine = found([NEAR_A, A, B], [0, 0, 1], [0.9, 0.8, 0.7])
    which, shared = metrics.match_things(mine, true([A, B], [0, 0]))
    assert which.tolist() == [0, -1, -1]  # the second comes late, the third is of another class
    assert shared.tolist() == pytest.approx([0.78, 0.0, 0.0])
    which, _ = metrics.match_things(mine, true([A, B], [0, 0]), least=torch.tensor([0.5, 0.9]))
    assert which.tolist() == [[0, -1, -1], [-1, 0, -1]]


def test_what_is_missing_is_said():
    with pytest.raises(ValueError, match="no thing"):
        metrics.average_precision([found([A], [0], [0.5])], [true([], [])])
    with pytest.raises(ValueError, match="1 pictures but true of 0"):
        metrics.precision_curves([found([A], [0], [0.5])], [])
    assert float(metrics.average_precision([found([], [], [])], [true([A], [0])])) == 0.0


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


def test_detection_calibration_error_by_place_sees_what_confidence_alone_does_not():
    confidence = torch.full((2 * FEWEST + 3,), 0.75, dtype=torch.float64)
    side = tensor([0.1] * FEWEST + [0.9] * FEWEST + [0.5] * 3)[:, None]
    right = (side[:, 0] < 0.3).double()  # all right on the left, all wrong on the right
    two = slice(0, 2 * FEWEST)
    assert float(metrics.detection_calibration_error(confidence[two], right[two])) == pytest.approx(0.25)
    # 1/4 off on the left, 3/4 on the right; three detections in the middle are too few
    by_place = metrics.detection_calibration_error(confidence, right, places=side)
    assert float(by_place) == pytest.approx(0.5)
    assert metrics.detection_calibration_error(confidence[-3:], right[-3:], places=side[-3:]) is None


def test_bins_by_place_are_those_of_a_plain_loop():
    g = torch.Generator().manual_seed(0)
    n = 4000
    confidence, places = torch.rand(n, generator=g).double(), torch.rand(n, 2, generator=g).double()
    right = (torch.rand(n, generator=g) < 0.3 + 0.5 * places[:, 0]).double()
    cells: dict[tuple, list[int]] = {}
    for i in range(n):
        values = [float(confidence[i]), *places[i].tolist()]
        cells.setdefault(tuple(min(4, max(0, int(np.ceil(5 * v)) - 1)) for v in values), []).append(i)
    full = [rows for rows in cells.values() if len(rows) >= FEWEST]
    counted = sum(len(rows) for rows in full)
    expected = sum(
        len(rows) / counted * abs(float(right[rows].mean()) - float(confidence[rows].mean())) for rows in full
    )
    error = metrics.detection_calibration_error(confidence, right, places=places)
    assert float(error) == pytest.approx(expected, abs=1e-12)


def test_localisation_calibration_error_by_hand():
    confidence, shared = tensor([0.93, 0.95, 0.5]), tensor([0.8, 0.0, 0.5])
    errors = metrics.localisation_calibration_error(confidence, shared, torch.tensor([0, 0, 4]), bins=10)
    # class 0: 0.94 against precision 1/2 times overlap 0.8; class 4: as sure as it fits
    assert {c: float(e) for c, e in errors.items()} == pytest.approx({0: 0.54, 4: 0.0}, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((tensor([0.5]), tensor([1, 0])), {}, "shapes differ"),
        ((tensor([1.5]), tensor([1])), {}, "logits"),
        ((tensor([0.5]), tensor([1])), {"bins": 0}, "bins=0"),
        ((tensor([0.5]), tensor([1])), {"places": tensor([0.5])}, r"\[n, D\]"),
    ],
)
def test_what_is_no_confidence_is_refused(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        metrics.detection_calibration_error(*arguments, **options)
