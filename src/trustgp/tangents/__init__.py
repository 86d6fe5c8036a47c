"""Representations of the tangent features: one file each, one line here."""

from .base import Features, TangentMap, Tangents, output_mixes
from .factors import LayerFactors
from .rows import JacobianRows

KINDS = {"LayerFactors": LayerFactors, "JacobianRows": JacobianRows}

__all__ = [
    "KINDS",
    "Features",
    "JacobianRows",
    "LayerFactors",
    "TangentMap",
    "Tangents",
    "output_mixes",
]
