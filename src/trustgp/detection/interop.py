"""Detections for other packages."""

from __future__ import annotations

from typing import Any

from ..data.user_warnings import optional_package
from ..likelihoods.detections import Detections


def to_supervision(found: Detections) -> Any:
    """The detections of a picture as `supervision.Detections`, for its annotators, trackers and metrics.

    Boxes, labels and confidence are the detector's own; `data` holds "novelty" [k] and "std" [k, 4], that of
    each edge in pixels. It needs `pip install "trustgp[supervision]"`.
    """
    if not isinstance(found, Detections):
        raise TypeError(f"found is a {type(found).__name__}; pass the Detections of one picture.")
    missing = 'supervision is not installed; try: pip install "trustgp[supervision]"'
    supervision = optional_package("supervision", missing)
    own = found.numpy()
    return supervision.Detections(
        xyxy=own["boxes"],
        confidence=own["confidence"],
        class_id=own["labels"],
        data={"novelty": own["novelty"], "std": own["std"]},
    )
