"""Detectors: an error bar for every box and class."""

from ..likelihoods.detections import Detections
from .fit import fit_detector
from .matching import Things
from .model import DetectionModel
from .runner import DetectionRunner
from .settings import Detection

__all__ = ["Detection", "DetectionModel", "DetectionRunner", "Detections", "Things", "fit_detector"]
