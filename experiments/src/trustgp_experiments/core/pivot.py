"""A table as a pivot of a grid: which axes are its rows, which measures its columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from typing_extensions import Self

from .claim import mean_spread
from .grid import Grid, Place, is_infinite
from .result import Column, Table


@dataclass(frozen=True)
class Measure:
    """A column of numbers of a grid."""

    key: str
    column: Column  # as it is printed: name, digits, unit, and which end is better
    factor: float = 1.0  # by which every number is multiplied
    statistic: Callable[[Sequence[float]], Any] = mean_spread  # from the numbers of all seeds to a cell
    words: Callable[[Any], str | None] | None = None  # for values that are no numbers: from the first to text
    place: Mapping[str, Any] = field(default_factory=dict)  # by axis, labels of this column alone

    def at(self, name: str | None = None, *, digits: int | None = None, **place: Any) -> Self:
        """Copy of the measure for another column, with its own name, digits and place."""
        column = replace(self.column, name=self.column.name if name is None else name)
        return replace(self, column=column if digits is None else replace(column, digits=digits), place=place)

    def cell(self, values: Sequence[Any] | None) -> Any:
        """Cell of a table: an infinite cost as text, None for a gap."""
        if values is None:
            return None
        if self.words is not None:
            return self.words(values[0])
        return "infinite" if is_infinite(values) else self.statistic([self.factor * v for v in values])


@dataclass(frozen=True)
class Pivot:
    """A table that is read off a grid.

    A cell is the mean and spread over seeds, unless the measure has a statistic of its own. A combination of
    labels without any of the measures gives no row; a measure that has no meaning there gives a gap.
    """

    title: str
    rows: Mapping[str, Column]  # axes that make the rows, the outer first, and the column of their labels
    measures: Sequence[Measure]  # the other columns
    at: Mapping[str, Any] = field(default_factory=dict)  # by axis, labels that all cells share
    # what is printed for a label that is not the label itself; by label, or by those of a row up to it
    names: Mapping[Any, Any] = field(default_factory=dict)
    block: str | None = None
    note: str = ""

    def table(self, grid: Grid) -> Table:
        """Table of all rows of the grid, ordered by the labels of the first axis, then of the next."""
        places, rows = [dict(self.at)], []
        for axis in self.rows:
            places = [{**at, axis: label} for at in places for label in grid.along(axis, **at)]
        for at in places:
            labels = tuple(at[axis] for axis in self.rows)
            cells = [(m, tuple({**at, **m.place}[axis] for axis in grid.axes)) for m in self.measures]
            if any(measure.key in grid.cells.get(place, {}) for measure, place in cells):
                names = [self.names.get(labels[:n], self.names.get(x, x)) for n, x in enumerate(labels, 1)]
                rows.append([*names, *(m.cell(grid.values(place, m.key)) for m, place in cells)])
        columns = [*self.rows.values(), *(measure.column for measure in self.measures)]
        return Table(self.title, columns, rows, block=self.block, note=self.note)


def flat_measure(
    key: str, name: str, digits: int = 3, better: str | None = None, unit: str = "", factor: float = 1.0
) -> Measure:
    """Measure for numbers that were measured once or averaged before: one per cell, without a spread."""
    return Measure(key, Column(name, digits, better, unit), factor, statistic=fmean)


def flat_table(pivot: Pivot, cells: Mapping[Place, Mapping[str, Any]]) -> Table:
    """Table of a pivot whose measures have one number per cell, from cells by the labels of its rows."""
    return pivot.table(Grid.of(tuple(pivot.rows), {(): [cells]}, dict))
