"""Unknown things: found, marked, or taken for what is known, by hand."""

import pytest
import torch
from metrics.by_hand import there

from trustgp import metrics

KNOWN = 2  # classes 0 and 1


A, B, C = [0.0, 0, 10, 10], [20.0, 0, 30, 10], [50.0, 50, 60, 60]
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
    true = [there([A, B, C], [2, 0, 3]), there([A], [2]), there([], [])]
    boxes = [torch.tensor(part).reshape(-1, 4) for part in ([A, B, A, SOME_OF_A], [A], [C])]
    marks = [torch.tensor(part) for part in ([True, True, False, True], [False], [True])]
    # A of the first picture is marked; C is not found; A of the second is found, but not marked
    assert metrics.unknown_recall(boxes, marks, true, num_classes=KNOWN) == pytest.approx(1 / 3)
    # the third detection of the first picture, and that of the second, pass for known classes
    assert metrics.open_set_errors(boxes, marks, true, num_classes=KNOWN) == 2
    nothing = [torch.zeros_like(mark) for mark in marks]
    assert metrics.unknown_recall(boxes, nothing, true, num_classes=KNOWN) == 0.0
    assert metrics.open_set_errors(boxes, nothing, true, num_classes=KNOWN) == 3
    case = [torch.tensor([A])], [torch.tensor([True])], [there([A], [1])]
    assert metrics.unknown_recall(*case, num_classes=KNOWN) is None
    assert metrics.open_set_errors(*case, num_classes=KNOWN) == 0
