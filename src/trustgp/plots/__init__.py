"""Drawings of predictions and their scores, on axes that the caller owns; `overview` makes one picture.

Everywhere `axes` are those of matplotlib, `colour` is that of a line and its band, `label` appears in the
legend, and `path` is the PNG, PDF or SVG to write (None: none), with `dpi` pixels per inch of a PNG.
"""

from .basic import draw_bands, draw_histograms
from .boxes import detections
from .quality import draw_calibration, draw_parity, draw_sparsification, overview
from .style import BLUE, GREEN, GREY, INK, ORANGE, PALETTE, RED, figure, require_matplotlib

__all__ = [  # noqa: RUF022  grouped by what they are for
    "figure", "require_matplotlib",  # a figure in our style
    "BLUE", "ORANGE", "GREEN", "RED", "GREY", "INK", "PALETTE",
    "overview",  # one picture of an evaluation
    "detections",  # a picture with its detections
    "draw_bands", "draw_calibration", "draw_histograms", "draw_parity", "draw_sparsification",  # panels
]  # fmt: skip
