"""Jumps of the error bar on straight lines between rows: the measuring of the continuity study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trustgp.executors.progress import reporting
from trustgp.experts.gate import nearest_two
from trustgp.likelihoods.prediction import Prediction
from trustgp.model import UncertaintyModel

from ...core.borders import Borders, both_sides, find_borders, jump_factors

GRID = 64  # cells of the grid on a line
LINES_AT_ONCE = 20
FINE = 400  # points of a line in the figure
QUANTILES = 200  # of the jumps, kept for the figure


def line_ends(points: Tensor, lines: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Both ends of random lines between rows, each row used at most once, shape [lines, d] each.

    Args:
        points: Rows to draw from, shape [n, d].
        lines: At most; half as many as there are rows otherwise.
        seed: Of the choice.
    """
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    count = min(lines, len(points) // 2)
    return points[order[:count]], points[order[count : 2 * count]]


def borders_on_lines(model: UncertaintyModel, starts: Tensor, ends: Tensor, *, progress: bool) -> Borders:
    """Borders between experts on all lines, a few lines at a time.

    Args:
        model: Whose experts.
        starts, ends: Of the lines, shape [l, d].
        progress: Whether to show a bar in a terminal.
    """
    parts = list(torch.arange(len(starts)).split(LINES_AT_ONCE))
    found = []
    with reporting(enabled=progress) as report:
        for part in report.track(parts, stage="looking for borders", total=len(parts)):
            one = find_borders(lambda x: model.predict(x).expert, starts[part], ends[part], cells=GRID)
            found.append(Borders(part[one.line], one.place, one.left, one.right))
    line, place, left, right = (
        torch.cat([getattr(one, name) for one in found]) for name in ("line", "place", "left", "right")
    )
    if len(line) == 0:
        raise ValueError("no line crosses a border between experts; take more lines or more experts.")
    return Borders(line, place, left, right)


def cell_borders(model: UncertaintyModel, starts: Tensor, ends: Tensor) -> Borders | None:
    """Borders between the cells of the witness; None where there is none to cross.

    Args:
        model: Whose witness.
        starts, ends: Of the lines, shape [l, d].
    """
    witness = model.witness
    if witness is None:
        return None

    def cell_of(points: Tensor) -> Tensor:
        return nearest_two(witness.scaled(points), witness.centroids)[0]

    found = find_borders(cell_of, starts, ends, cells=GRID)
    return found if len(found) else None


def random_places(starts: Tensor, ends: Tensor, count: int, *, seed: int) -> Borders:
    """Places anywhere on the lines, as a control: what the measure finds where there is no border.

    Args:
        starts, ends: Of the lines, shape [l, d].
        count: How many.
        seed: Of the choice.
    """
    generator = torch.Generator().manual_seed(seed)
    line = torch.randint(len(starts), (count,), generator=generator)
    place = torch.rand(count, generator=generator, dtype=torch.float64)
    return both_sides(starts, ends, line, place)


def jumps_of(model: UncertaintyModel, borders: Borders) -> dict[str, Tensor]:
    """Factors by which the error bar and its epistemic part differ on two sides, shape [b, C] each."""
    left, right = model.predict(borders.left), model.predict(borders.right)
    return {
        "std": jump_factors(left.std, right.std).double().cpu(),
        "epistemic": jump_factors(left.epistemic.sqrt(), right.epistemic.sqrt()).double().cpu(),
    }


def summary(jumps: Tensor) -> dict[str, float]:
    """Mean, median, 95th percentile and largest of some jumps."""
    flat = jumps.flatten()
    return {
        "mean": float(flat.mean()),
        "median": float(flat.median()),
        "upper": float(flat.quantile(0.95)),
        "largest": float(flat.max()),
    }


def quantiles(jumps: Tensor) -> list[float]:
    """The jumps at evenly spaced ranks, ascending."""
    ranks = torch.linspace(0, 1, QUANTILES + 1, dtype=torch.float64)
    return jumps.flatten().quantile(ranks).tolist()


def example_lines(
    models: Mapping[str, UncertaintyModel], starts: Tensor, ends: Tensor, borders: Borders, count: int
) -> list[dict[str, Any]]:
    """The first lines with two borders or more (those with most, where they are too few), for the figure.

    Args:
        models: By variant.
        starts, ends: Of the lines, shape [l, d].
        borders: On these lines.
        count: How many lines.
    """
    crossed = torch.bincount(borders.line, minlength=len(starts))
    chosen = crossed.clamp(max=2).argsort(descending=True, stable=True)[:count]
    place = torch.linspace(0, 1, FINE + 1)[:, None]
    found = []
    for line in chosen.tolist():
        points = starts[line] + place * (ends[line] - starts[line])
        deviations = {name: _first_torque(model.predict(points)) for name, model in models.items()}
        own = borders.place[borders.line == line].tolist()
        found.append({"place": place.flatten().tolist(), "std": deviations, "borders": own})
    return found


def _first_torque(prediction: Prediction) -> list[float]:
    return prediction.std[:, 0].double().cpu().tolist()
