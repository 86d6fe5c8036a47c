"""Observation models: one file per likelihood."""

from .base import Calibrations, Likelihood, Shape
from .classification import Classification
from .paper import PaperClassification, PaperRegression
from .regression import Regression

KINDS = {
    "Regression": Regression,
    "Classification": Classification,
    "PaperRegression": PaperRegression,
    "PaperClassification": PaperClassification,
}

__all__ = [
    "KINDS",
    "Calibrations",
    "Classification",
    "Likelihood",
    "PaperClassification",
    "PaperRegression",
    "Regression",
    "Shape",
]
