"""Jumps of the error bar on straight lines between rows: the measuring of the continuity study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from trustgp.executors.progress import reporting
from trustgp.experts.gate import nearest_two
from trustgp.model import UncertaintyModel

from ...core.borders import Borders, both_sides, find_borders, jump_factors

GRID = 64  # cells of the grid on a line
LINES_AT_ONCE = 20
FINE = 400  # points of a line in the figure
QUANTILES = 200  # of the jumps, kept for the figure


def line_ends(points: Tensor, lines: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Both ends of at most so many random lines between points [n, d], each used at most once."""
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    count = min(lines, len(points) // 2)
    return points[order[:count]], points[order[count : 2 * count]]


def borders_on_lines(model: UncertaintyModel, starts: Tensor, ends: Tensor, *, progress: bool) -> Borders:
    """Borders between experts on all lines [l, d], a few lines at a time."""
    parts = list(torch.arange(len(starts)).split(LINES_AT_ONCE))
    found = []
    with reporting(enabled=progress) as report:
        for part in report.track(parts, stage="looking for borders", total=len(parts)):
            one = find_borders(lambda x: model.predict(x).expert, starts[part], ends[part], cells=GRID)
            found.append(Borders(part[one.line], one.place, one.left, one.right))
    whole = Borders(*(torch.cat([getattr(one, field.name) for one in found]) for field in fields(Borders)))
    if len(whole) == 0:
        raise ValueError("no line crosses a border between experts; take more lines or more experts.")
    return whole


def cell_borders(model: UncertaintyModel, starts: Tensor, ends: Tensor) -> Borders | None:
    """Borders between the cells of the witness on the lines [l, d]; None where there is none to cross."""
    witness = model.witness
    if witness is None:
        return None

    def cell_of(points: Tensor) -> Tensor:
        return nearest_two(witness.scaled(points), witness.centroids)[0]

    found = find_borders(cell_of, starts, ends, cells=GRID)
    return found if len(found) else None


def random_places(starts: Tensor, ends: Tensor, count: int, *, seed: int) -> Borders:
    """Places anywhere on the lines, as a control: what the measure finds where there is no border."""
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
    found = flat.mean(), flat.median(), flat.quantile(0.95), flat.max()
    return dict(zip(("mean", "median", "upper", "largest"), map(float, found), strict=True))


def quantiles(jumps: Tensor) -> list[float]:
    """The jumps at evenly spaced ranks, ascending."""
    ranks = torch.linspace(0, 1, QUANTILES + 1, dtype=torch.float64)
    return jumps.flatten().quantile(ranks).tolist()


def example_lines(
    models: Mapping[str, UncertaintyModel], starts: Tensor, ends: Tensor, borders: Borders, count: int
) -> list[dict[str, Any]]:
    """The std of the first torque, for the figure, on the first lines [l, d] with two borders or more.

    Those with most, where they are too few.
    """
    crossed = torch.bincount(borders.line, minlength=len(starts))
    chosen = crossed.clamp(max=2).argsort(descending=True, stable=True)[:count]
    place = torch.linspace(0, 1, FINE + 1)[:, None]
    found = []
    for line in chosen.tolist():
        points = starts[line] + place * (ends[line] - starts[line])
        said = {name: model.predict(points).std[:, 0].double().cpu() for name, model in models.items()}
        own = borders.place[borders.line == line].tolist()
        std = {name: values.tolist() for name, values in said.items()}
        found.append({"place": place.flatten().tolist(), "std": std, "borders": own})
    return found
