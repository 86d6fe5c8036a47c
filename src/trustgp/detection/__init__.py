"""Detectors: an error bar for every box and class, and for every picture."""

from ..data.user_warnings import former_names
from ..export.detector_file import DetectionRunner
from ..likelihoods.detections import Detections
from .adapter import Adapter, Detection
from .coco import coco_scenes
from .fitting import fit
from .model import DetectionModel, to_supervision
from .pictures import BoxTargets

__all__ = [  # noqa: RUF022 - grouped, not sorted
    # fit and use
    "fit", "Adapter", "Detection", "DetectionModel", "DetectionRunner", "Detections",
    # data, and detections for other packages
    "BoxTargets", "coco_scenes", "to_supervision",
]  # fmt: skip

__getattr__ = former_names(
    __name__, Things=BoxTargets, fit_detector="call trustgp.detection.fit(detector, pictures, ...)."
)
