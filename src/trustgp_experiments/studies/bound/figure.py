"""The figure of the bound study: what falls between experts, against their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustgp import plots

KINDS = {"ours": ("ours", plots.BLUE), "random": ("random, same sizes", plots.GREY)}

Curve = Mapping[str, Sequence[Sequence[float]]]


def draw_bound(curves: Mapping[str, Curve], path: Path) -> None:
    """One panel for each data set.

    Args:
        curves: By title; mean and spread of "experts", "ours", "random", "centred_ours" and
            "centred_random" for each number of experts.
        path: Of the picture.
    """
    with plots.figure(path, width=9.0, height=3.8, dpi=110) as figure:
        panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
        for axes, (title, curve) in zip(panels, curves.items(), strict=True):
            _draw_curve(axes, curve)
            axes.set_title(title)
            axes.set_xlabel("experts")
        panels[0].set_ylabel("share of squared kernel between experts")
        panels[0].set_ylim(0, 1)
        panels[-1].legend(loc="lower right", fontsize=8)


def _draw_curve(axes: Any, curve: Curve) -> None:
    experts = [mean for mean, _ in curve["experts"]]
    for kind, (label, colour) in KINDS.items():
        for prefix, style, suffix in (("", "-", ""), ("centred_", "--", ", centred")):
            mean, spread = zip(*curve[prefix + kind], strict=True)
            axes.errorbar(
                experts,
                mean,
                yerr=spread,
                color=colour,
                linestyle=style,
                marker="o",
                markersize=3.5,
                linewidth=1.4,
                capsize=2,
                label=label + suffix,
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(experts, [f"{count:.0f}" for count in experts])
    axes.minorticks_off()
