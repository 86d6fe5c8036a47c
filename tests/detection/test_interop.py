"""Detections for supervision: with the package where it is, else with a stand-in of its one class."""

import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trustgp.detection import Detections, to_supervision


def test_boxes_classes_and_error_bars_go_over_and_a_missing_package_is_named(monkeypatch):
    boxes = torch.tensor([[1.0, 2.0, 30.0, 40.0], [5.0, 6.0, 9.0, 11.0]])
    own = Detections(boxes, boxes / 10, torch.tensor([1, 0]), torch.rand(2), torch.rand(2, 3), torch.rand(2))
    if find_spec("supervision") is None:
        monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(Detections=SimpleNamespace))
    for detections in (own, own[:0]):
        given = to_supervision(detections)
        pairs = [(given.xyxy, detections.boxes), (given.class_id, detections.labels)]
        pairs += [(given.confidence, detections.confidence)]
        pairs += [(given.data[name], getattr(detections, name)) for name in ("novelty", "std")]
        for exported, expected in pairs:
            np.testing.assert_array_equal(exported, expected.numpy())
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(ImportError, match=r"pip install \"trustgp\[supervision\]\""):
        to_supervision(own)
