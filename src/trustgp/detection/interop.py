"""Detections for other packages."""

from __future__ import annotations

from typing import Any

from ..data.user_warnings import optional_package
from ..likelihoods.detections import Detections


def to_supervision(detections: Detections) -> Any:
    """The detections of a picture as `supervision.Detections`, for its annotators, trackers and metrics.

    Boxes, labels and confidence are the detector's own; `data` holds "novelty" [k] and "std" [k, 4], that of
    each edge in pixels. It needs `pip install "trustgp[supervision]"`.
    """
    missing = 'supervision is not installed; try: pip install "trustgp[supervision]"'
    own, supervision = detections.numpy(), optional_package("supervision", missing)
    boxes = {"xyxy": own["boxes"], "confidence": own["confidence"], "class_id": own["labels"]}
    return supervision.Detections(**boxes, data={"novelty": own["novelty"], "std": own["std"]})
