"""Detectors: an error bar for every box and class, and for every picture."""

from ..likelihoods.detection_runner import DetectionRunner
from ..likelihoods.detections import Detections
from .adapter import Adapter
from .coco import coco_scenes
from .fit import fit_detector
from .interop import to_supervision
from .model import DetectionModel
from .query_rows import Detection
from .things import Things

__all__ = [  # noqa: RUF022 - grouped, not sorted
    # fit and use
    "Adapter", "Detection", "DetectionModel", "DetectionRunner", "Detections", "fit_detector",
    # data, and detections for other packages
    "Things", "coco_scenes", "to_supervision",
]  # fmt: skip
