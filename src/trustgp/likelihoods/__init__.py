"""What the targets are: one file per likelihood."""

from .regression import Regression

KINDS = {"Regression": Regression}

__all__ = ["KINDS", "Regression"]
