"""Observation models: one file per likelihood."""

from .base import Calibrations, Likelihood, Shape
from .classification import Classification
from .multilabel import MultiLabel
from .paper import PaperClassification, PaperRegression
from .regression import Regression

KINDS = {
    kind.__name__: kind
    for kind in (Regression, Classification, MultiLabel, PaperRegression, PaperClassification)
}

__all__ = [
    "KINDS", "Calibrations", "Classification", "Likelihood", "MultiLabel", "PaperClassification",
    "PaperRegression", "Regression", "Shape",
]  # fmt: skip
