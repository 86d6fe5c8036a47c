"""A table as a pivot of a grid: which axes are its rows, which measures its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .grid import Grid, is_infinite
from .result import Column, Table
from .statistics import mean_spread


@dataclass(frozen=True)
class Measure:
    """A column of numbers of a grid.

    Args:
        key: Of the measure.
        column: As it is printed: name, digits, unit, and which end is better.
        factor: By which every number is multiplied.
        statistic: From the numbers of all seeds to a cell.
        words: Where the values are no numbers: from that of the first seed to text.
        place: By axis, the labels of this column, where not all columns are of one place.
    """

    key: str
    column: Column
    factor: float = 1.0
    statistic: Callable[[Sequence[float]], Any] = mean_spread
    words: Callable[[Any], str | None] | None = None
    place: Mapping[str, Any] = field(default_factory=dict)

    def at(self, name: str | None = None, *, digits: int | None = None, **place: Any) -> Measure:
        """The same measure in a column of its own: under a name, with other digits, of another place."""
        column = replace(self.column, name=self.column.name if name is None else name)
        return replace(self, column=column if digits is None else replace(column, digits=digits), place=place)

    def cell(self, values: Sequence[Any] | None) -> Any:
        """Of a table: an infinite cost as text; None where there is nothing to say."""
        if values is None:
            return None
        if self.words is not None:
            return self.words(values[0])
        if is_infinite(values):
            return "infinite"
        return self.statistic([self.factor * value for value in values])


@dataclass(frozen=True)
class Pivot:
    """A table that is read off a grid.

    A study lists its measures once, and a pivot for each table::

        NLL = Measure("nll", Column("NLL", better="low"))
        COVERAGE = Measure("coverage", Column("95 % coverage", digits=1, unit="%"), factor=100.0)
        METHOD = {"method": Column.text("method")}

        # rows: tested on x method; columns: measures; of one training; the best in bold within a test set
        Pivot("Every measure", {"tested": Column.text("tested on"), **METHOD}, [NLL, COVERAGE],
              at={"trained": "sarcos"}, block="tested on").table(grid)
        # rows: methods; a column for each training
        Pivot("NLL", METHOD, [NLL.at(name, trained=name) for name in grid.along("trained")]).table(grid)

    A cell is mean and spread over seeds, unless the measure has a statistic of its own. A combination of
    labels that has none of the measures is no row; a measure that has no meaning there is a gap.

    Args:
        title, block, note: Of the table.
        rows: Axes that make the rows, the outer first, and the column of their labels.
        measures: The other columns.
        at: By axis, labels that all cells share.
        names: What is printed for a label, where it is not the label itself; by label, or by the labels of
            a row up to it.
    """

    title: str
    rows: Mapping[str, Column]
    measures: Sequence[Measure]
    at: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[Any, Any] = field(default_factory=dict)
    block: str | None = None
    note: str = ""

    def table(self, grid: Grid) -> Table:
        """All rows of the grid."""
        rows = []
        for where in self._places(grid, list(self.rows), dict(self.at)):
            labels = tuple(where[axis] for axis in self.rows)
            places = [grid.place(**where, **measure.place) for measure in self.measures]
            known = [m.key in grid.cells.get(p, {}) for m, p in zip(self.measures, places, strict=True)]
            if any(known):
                values = [grid.values(p, m.key) for m, p in zip(self.measures, places, strict=True)]
                cells = [m.cell(v) for m, v in zip(self.measures, values, strict=True)]
                rows.append([*(self._name(labels[: end + 1]) for end in range(len(labels))), *cells])
        columns = [*self.rows.values(), *(measure.column for measure in self.measures)]
        return Table(self.title, columns, rows, block=self.block, note=self.note)

    def _places(self, grid: Grid, axes: list[str], where: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The labels of each row: of the first axis, and for each of them those of the others."""
        if not axes:
            yield where
            return
        for label in grid.along(axes[0], **where):
            yield from self._places(grid, axes[1:], {**where, axes[0]: label})

    def _name(self, labels: tuple[Any, ...]) -> Any:
        return self.names.get(labels, self.names.get(labels[-1], labels[-1]))
