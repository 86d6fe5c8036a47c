"""What the targets are: one file per likelihood."""

from .base import Calibrations, Likelihood, Shape
from .classification import Classification, Finding
from .regression import Regression

KINDS = {"Regression": Regression, "Classification": Classification, "Finding": Finding}

__all__ = ["KINDS", "Calibrations", "Classification", "Finding", "Likelihood", "Regression", "Shape"]
