"""The figure of the ablation: one small panel for each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustgp import plots

from .axes import HEARD, KINDS, Axis

COLOURS = {
    "own": plots.BLUE,
    "corrected": plots.GREEN,
    "plain": plots.GREY,
    "heard_own": plots.BLUE,
    "heard_corrected": plots.GREEN,
}
LABELS = {
    "own": "network's own prediction",
    "corrected": "corrected",
    "plain": "plain: the paper's variance",
    "heard_own": "own, with the witness",
    "heard_corrected": "corrected, with the witness",
}
COLUMNS = 4
LEAST_SPAN = 0.2  # nats: differences smaller than the eye should see stay small

Cells = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


def draw_ablation(axes: Sequence[Axis], cells: Cells, shown: Mapping[str, Sequence[str]], path: Path) -> None:
    """NLL against every setting, mean over seeds with its spread; a shaded strip is the default.

    Args:
        axes: One panel each.
        cells: Mean and spread of the NLL, by axis, setting and kind of prediction.
        shown: The kinds drawn, by axis.
        path: Of the picture.
    """
    count = -(-len(axes) // COLUMNS)
    with plots.figure(path, width=12.0, height=2.7 * count + 0.5, dpi=100) as figure:
        panels = figure.subplots(count, COLUMNS, squeeze=False).flatten()
        for panel, axis in zip(panels, axes, strict=False):
            _draw_axis(panel, axis, cells[axis.name], shown[axis.name])
        for panel in panels[len(axes) :]:
            panel.set_axis_off()
        for panel in panels[::COLUMNS]:
            panel.set_ylabel("NLL per torque")
        lines = {label: line for panel in panels for line, label in _legend(panel)}
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(LABELS))


def _draw_axis(
    panel: Any, axis: Axis, cells: Mapping[str, Mapping[str, Sequence[float]]], shown: Sequence[str]
) -> None:
    labels = [point.label for point in axis.points]
    default = labels.index(axis.default)
    panel.axvspan(default - 0.3, default + 0.3, color=plots.ORANGE, alpha=0.15, linewidth=0)
    for kind in (name for name in (*KINDS, *HEARD) if name in shown):
        places = [place for place, label in enumerate(labels) if kind in cells[label]]
        if places:
            _draw_kind(panel, kind, places, [cells[labels[place]][kind] for place in places], axis.ordered)
    # names in lines, so that neighbours do not touch
    ticks = labels if axis.ordered else [label.replace(" ", "\n") for label in labels]
    panel.set_xticks(range(len(labels)), ticks, fontsize=8)
    panel.set_xlim(-0.5, len(labels) - 0.5)
    low, high = panel.get_ylim()
    if high - low < LEAST_SPAN:
        middle = (low + high) / 2
        panel.set_ylim(middle - LEAST_SPAN / 2, middle + LEAST_SPAN / 2)
    panel.set_title(axis.title, fontsize=9)


def _draw_kind(
    panel: Any, kind: str, places: Sequence[int], values: Sequence[Sequence[float]], ordered: bool
) -> None:
    mean, spread = zip(*values, strict=True)
    colour, heard = COLOURS[kind], kind in HEARD
    marker = {"marker": "o", "markersize": 4, "markerfacecolor": "white" if heard else colour}
    if not ordered:
        panel.errorbar(
            places, mean, yerr=spread, color=colour, capsize=2, label=LABELS[kind], linestyle="none", **marker
        )
        return
    style = (0, (3, 2)) if heard else "-"
    panel.plot(places, mean, color=colour, linestyle=style, linewidth=1.3, label=LABELS[kind], **marker)
    lower, upper = ([m + sign * s for m, s in values] for sign in (-1, 1))
    panel.fill_between(places, lower, upper, color=colour, alpha=0.15, linewidth=0)


def _legend(panel: Any) -> list[tuple[Any, str]]:
    return list(zip(*panel.get_legend_handles_labels(), strict=True))
