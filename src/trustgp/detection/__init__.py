"""Detectors: an error bar for every box and class."""

from ..likelihoods.detections import Detections
from .fit import fit_detector
from .model import DetectionModel, DetectionRunner
from .query_rows import Detection
from .scenes import Things

__all__ = ["Detection", "DetectionModel", "DetectionRunner", "Detections", "Things", "fit_detector"]
