"""Detectors: error bars for boxes and classes, and a novelty score for every detection and picture."""

from ..export.detector_file import DetectionRunner
from ..likelihoods.detections import Detections
from .adapter import Adapter, Detection
from .coco import coco_scenes
from .fitting import fit
from .model import DetectionModel
from .pictures import BoxTargets

__all__ = [  # noqa: RUF022 - grouped, not sorted
    # fit and use
    "fit", "Adapter", "Detection", "DetectionModel", "DetectionRunner", "Detections",
    # data
    "BoxTargets", "coco_scenes",
]  # fmt: skip
