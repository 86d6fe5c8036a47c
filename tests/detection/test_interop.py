"""Detections for supervision: with the package where it is, else with a stand-in of its one class."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trustgp.detection import Detections, to_supervision


def found(k: int) -> Detections:
    boxes = torch.tensor([[1.0, 2.0, 30.0, 40.0], [5.0, 6.0, 9.0, 11.0]])[:k]
    chances = torch.full((k, 3), 1 / 3)
    return Detections(boxes, boxes / 10, torch.tensor([1, 0])[:k], torch.rand(k), chances, torch.rand(k))


@pytest.mark.parametrize("k", [0, 2])
def test_boxes_classes_and_error_bars_go_over(monkeypatch, k):
    if find_spec("supervision") is None:
        monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(Detections=SimpleNamespace))
    own = found(k)
    given = to_supervision(own)
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
