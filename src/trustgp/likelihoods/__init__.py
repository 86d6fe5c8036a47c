"""Observation models: one file per likelihood."""

from .base import Calibrations, Likelihood, Shape
from .classification import Classification
from .paper import PaperClassification, PaperRegression
from .regression import Regression

KINDS = {kind.__name__: kind for kind in (Regression, Classification, PaperRegression, PaperClassification)}

__all__ = [
    "KINDS", "Calibrations", "Classification", "Likelihood", "PaperClassification", "PaperRegression",
    "Regression", "Shape",
]  # fmt: skip
