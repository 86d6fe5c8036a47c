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
    if not isinstance(detections, Detections):
        raise TypeError(f"detections is a {type(detections).__name__}; pass the Detections of one picture.")
    missing = 'supervision is not installed; try: pip install "trustgp[supervision]"'
    supervision = optional_package("supervision", missing)
    own = detections.numpy()
    return supervision.Detections(
        xyxy=own["boxes"],
        confidence=own["confidence"],
        class_id=own["labels"],
        data={"novelty": own["novelty"], "std": own["std"]},
    )
