"""Detectors: an error bar for every box and class."""

from .detections import Detections
from .fitting import fit_detector
from .matching import Things
from .model import DetectionModel
from .settings import Detection
from .watching import Watch

__all__ = ["Detection", "DetectionModel", "Detections", "Things", "Watch", "fit_detector"]
