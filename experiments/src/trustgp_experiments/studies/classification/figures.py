"""Figures of the classification study: novel images told, reliability, and the images themselves."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from trustgp import plots

from ...core.cases import OURS
from ...core.grid import Grid
from ...core.result import Figure, Setting
from ...datasets import draw_letters, draw_textures
from .differences import there
from .pairs import NAMES, SETS, looked_at, new_pairs, pair_name

Curves = Mapping[str, Mapping[str, Any]]  # by method, by test set: rows, confidence and share of right ones
MARKS = "os^vDP"  # of the pairs in a panel
ACROSS, DOWN = 16, 2  # images of a kind that are shown


def class_figures(setting: Setting, grid: Grid) -> list[Figure]:
    """Drawn beside the result."""
    first = next(iter(SETS))
    methods = grid.parts[first,][0]["methods"]
    curves = {name: found["curves"] for name, found in methods.items() if found["curves"]}
    draw_told(grid, setting.out / "novelty.png")
    draw_reliability(curves, setting.out / "reliability.png")
    draw_images(setting.out / "images.png")
    return [
        Figure("novelty.png", "Novel images told, by method and pair", NOVELTY_CAPTION),
        Figure("reliability.png", f"Reliability, trained on {NAMES[first]}", RELIABILITY_CAPTION),
        Figure("images.png", "Letters and textures", IMAGES_CAPTION),
    ]


def draw_told(grid: Grid, path: Path) -> None:
    """AUROC of every method: a panel for new pairs and one for those looked at, a line of dots a method."""
    methods = [name for name in grid.along("method") if name != OURS] + [OURS]
    with plots.figure(path, width=9.0, height=0.24 * len(methods) + 1.8) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        named = {"nothing was chosen with these": new_pairs(), "looked at": looked_at()}
        for axes, (title, pairs) in zip(panels, named.items(), strict=True):
            for place, pair in enumerate(there(grid, pairs)):
                means = [grid.values((*pair, method), "auroc") for method in methods]
                dots = [(fmean(values), line) for line, values in enumerate(means) if values is not None]
                style = {
                    "color": plots.PALETTE[place % len(plots.PALETTE)],
                    "marker": MARKS[place % len(MARKS)],
                }
                axes.scatter(*zip(*dots, strict=True), s=16, label=pair_name(pair), **style)
            axes.axhline(len(methods) - 1, color=plots.BLUE, linewidth=8, alpha=0.15)
            axes.set(title=title, xlabel="AUROC")
            axes.legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.09))
        panels[0].set_yticks(range(len(methods)), methods, fontsize=7)


def draw_reliability(curves: Curves, path: Path) -> None:
    """Share of right ones against confidence, a panel for each set of labelled test images."""
    tests: Sequence[str] = list(next(iter(curves.values())))
    with plots.figure(path, width=3.6 * len(tests) + 0.6, height=3.6) as figure:
        panels = figure.subplots(1, len(tests), squeeze=False, sharey=True)[0]
        for axes, test in zip(panels, tests, strict=True):
            axes.plot([0, 1], [0, 1], color=plots.INK, linewidth=1, linestyle="--")
            for method, style in _styles(curves):
                _, confidence, share = curves[method][test]
                axes.plot(confidence, share, "o-", markersize=3, label=method, **style)
            axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", title=test)
        panels[0].set_ylabel("share of right ones")
        panels[-1].legend(fontsize=7)


def draw_images(path: Path) -> None:
    """The first letters and textures of seed 0."""
    kinds = {"letters": draw_letters(ACROSS * DOWN)[0], "textures": draw_textures(ACROSS * DOWN)[0]}
    with plots.figure(path, width=8.0, height=2.6) as figure:
        for axes, (name, images) in zip(figure.subplots(len(kinds), 1), kinds.items(), strict=True):
            lines = images[:, 0].reshape(DOWN, ACROSS, *images.shape[2:]).unbind()
            axes.imshow(
                torch.cat([torch.cat(list(line), dim=1) for line in lines]), cmap="gray", vmin=0, vmax=1
            )
            axes.set(xticks=[], yticks=[], ylabel=name)


def _styles(curves: Curves) -> Iterator[tuple[str, dict[str, Any]]]:
    """Methods and how their curve is drawn; ours last, on top."""
    others = [method for method in curves if method != OURS]
    colours = [colour for colour in plots.PALETTE if colour != plots.BLUE]
    for place, method in enumerate(others):
        yield method, {"color": colours[place % len(colours)], "linewidth": 1.1}
    if OURS in curves:
        yield OURS, {"color": plots.BLUE, "linewidth": 2.2}


NOVELTY_CAPTION = (
    "AUROC by the one score declared for each method, mean over seeds, a mark for each pair; trustgp on the "
    "blue band. Left: pairs with which nothing was chosen. Right: those looked at when choices were made."
)
RELIABILITY_CAPTION = (
    "Seed 0. On the dashed line, the share of right ones is what the probability of the predicted class "
    "says; below it the method is too sure."
)
IMAGES_CAPTION = (
    "The first that seed 0 draws: letters from the fonts that come with matplotlib, and textures."
)
