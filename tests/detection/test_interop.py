"""Detections for supervision: with the package where it is, else with a stand-in of its one class."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
import pytest
import torch

from trustgp.detection import Detections, to_supervision


@dataclass
class StandIn:
    xyxy: np.ndarray
    confidence: np.ndarray
    class_id: np.ndarray
    data: dict = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.xyxy)


@pytest.fixture
def supervision(monkeypatch):
    try:
        import supervision
    except ImportError:
        supervision = ModuleType("supervision")
        supervision.Detections = StandIn  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "supervision", supervision)
    return supervision


def found(k: int) -> Detections:
    boxes = torch.tensor([[1.0, 2.0, 30.0, 40.0], [5.0, 6.0, 9.0, 11.0]])[:k]
    chances = torch.full((k, 3), 1 / 3)
    return Detections(boxes, boxes / 10, torch.tensor([1, 0])[:k], torch.rand(k), chances, torch.rand(k))


@pytest.mark.parametrize("k", [0, 1, 2])
def test_boxes_classes_and_error_bars_go_over(supervision, k):
    own = found(k)
    given = to_supervision(own)
    assert isinstance(given, supervision.Detections)
    assert len(given) == k
    np.testing.assert_array_equal(given.xyxy, own.boxes.numpy())
    np.testing.assert_array_equal(given.class_id, own.labels.numpy())
    np.testing.assert_array_equal(given.confidence, own.confidence.numpy())
    np.testing.assert_array_equal(given.data["novelty"], own.novelty.numpy())
    np.testing.assert_array_equal(given.data["std"], own.std.numpy())
    given.xyxy += 1.0  # a copy
    assert torch.equal(own.boxes, found(k).boxes)


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(ImportError, match=r"pip install \"trustgp\[supervision\]\""):
        to_supervision(found(1))
