"""What the targets are: one file per likelihood."""

from .base import Calibrations, Likelihood, Shape
from .classification import Classification
from .regression import Regression

KINDS = {"Regression": Regression, "Classification": Classification}

__all__ = ["KINDS", "Calibrations", "Classification", "Likelihood", "Regression", "Shape"]
