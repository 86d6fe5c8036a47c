"""Detectors: an error bar for every box and class."""

from .fitting import fit_detector
from .matching import Things
from .model import DetectionModel, Detections
from .settings import Detection

__all__ = ["Detection", "DetectionModel", "Detections", "Things", "fit_detector"]
