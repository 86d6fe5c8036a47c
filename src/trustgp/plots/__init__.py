"""Drawings of predictions and their scores, on axes that the caller owns; `overview` makes one picture.

In all functions `axes` are matplotlib axes, `colour` is that of a line and its band, `label` appears in the
legend, and `path` is the PNG, PDF or SVG to write (None: none), with `dpi` pixels per inch of a PNG.

Examples:
    >>> plots, report = trustgp.plots, trustgp.evaluate(model, held_out, progress=False)
    >>> overview = plots.overview(report, "overview.png")
    >>> with plots.figure("panels.png", width=9, height=6) as figure:
    ...     one, two, three, four, five, six = figure.subplots(2, 3).flat
    ...     p, x = model.predict(inputs), torch.arange(len(inputs))
    ...     plots.draw_band(one, x, p.mean[:, 0], 2 * p.std[:, 0], label="2 std", line="network")
    ...     plots.draw_bands(two, x, p, targets=targets)
    ...     plots.draw_calibration(three, report)
    ...     plots.draw_sparsification(four, report)
    ...     plots.draw_parity(five, report)
    ...     plots.draw_histograms(six, {"std": p.std[:, 0]})
    >>> axes = plots.detections(pictures[0].sigmoid(), detections.predict(pictures)[0])
"""

from .basic import draw_band, draw_bands, draw_histograms
from .boxes import detections
from .quality import draw_calibration, draw_parity, draw_sparsification, overview
from .style import BLUE, GREEN, GREY, INK, ORANGE, PALETTE, RED, figure

__all__ = [  # noqa: RUF022  grouped by what they are for
    "figure",  # in our style
    "BLUE", "ORANGE", "GREEN", "RED", "GREY", "INK", "PALETTE",
    "overview",  # one picture of an evaluation
    "detections",  # a picture with its detections
    "draw_band", "draw_bands", "draw_calibration", "draw_histograms",  # panels
    "draw_parity", "draw_sparsification",
]  # fmt: skip
