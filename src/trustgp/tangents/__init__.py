"""Representations of the tangent features: one file each, one line here."""

from .base import Features, TangentMap, Tangents, output_mixes
from .factors import LayerFactors
from .rows import JacobianRows
from .sketch import Sketch

KINDS = {kind.__name__: kind for kind in (LayerFactors, JacobianRows, Sketch)}

__all__ = [
    "KINDS", "Features", "JacobianRows", "LayerFactors", "Sketch", "TangentMap", "Tangents", "output_mixes",
]  # fmt: skip
