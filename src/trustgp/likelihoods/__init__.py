"""What the targets are: one file per likelihood."""

from .base import Calibrations, Likelihood, Shape
from .classification import Classification, Finding
from .paper import PaperClassification, PaperRegression
from .regression import Regression

KINDS = {
    "Regression": Regression,
    "Classification": Classification,
    "Finding": Finding,
    "PaperRegression": PaperRegression,
    "PaperClassification": PaperClassification,
}

__all__ = [
    "KINDS",
    "Calibrations",
    "Classification",
    "Finding",
    "Likelihood",
    "PaperClassification",
    "PaperRegression",
    "Regression",
    "Shape",
]
