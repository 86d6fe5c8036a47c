"""What a study measured: cases x methods x measures x seeds, in parts that are kept and can be resumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from .errors import StudyError
from .parallel import work_ahead
from .result import Setting
from .statistics import mean_spread

Place = tuple[Any, ...]
"""A label for each axis, in the order of the axes."""
Read = Callable[[Any], Mapping[Place, Mapping[str, Any]]]


@dataclass(frozen=True)
class Grid:
    """Numbers by place and measure, one a seed; and the parts they were read from.

    A study names its axes, says how a part is measured, and how its numbers are read::

        def one_training(setting, trained, seed):            # a function of a module; returns JSON
            return {"methods": {"ours": {"nll": 0.1}, "theirs": {"nll": 0.2}}}

        def by_method(part):                                 # the rest of the place, then the measures
            return {(name,): scores for name, scores in part["methods"].items()}

        grid = Grid.run(setting, one_training, [("sarcos",), ("barrett",)],
                        axes=("trained", "method"), read=by_method)
        grid.along("method")                                 # labels: ["ours", "theirs"]
        grid.mean(("sarcos", "ours"), "nll")                 # over seeds; infinite where a seed's cost is
        grid.parts["sarcos",][0]                             # what seed 0 gave
        grid.missing                                         # what is not there, and why

    A part is done once, with `setting.jobs` processes side by side, and kept in the study's folder. Where a
    study shares work between its parts it makes them itself, through `Setting.once`, and calls `Grid.of`.
    A value may be None (the measure has no meaning there), or "inf" (JSON holds no infinity).

    Args:
        axes: Their names.
        cells: By place and measure, the values of all seeds.
        parts: By case, what each seed gave.
        missing: By case or place, why it is not among the cells.
    """

    axes: tuple[str, ...]
    cells: Mapping[Place, Mapping[str, Sequence[Any]]]
    parts: Mapping[Place, Sequence[Any]] = field(default_factory=dict)
    missing: Mapping[Place, str] = field(default_factory=dict)

    @classmethod
    def run(
        cls,
        setting: Setting,
        part: Callable[..., Any],
        cases: Sequence[Place],
        *,
        axes: Sequence[str],
        read: Read,
        ahead: Sequence[Place] | None = None,
        tolerate: tuple[type[Exception], ...] = (),
    ) -> Grid:
        """Do every part that is not there yet, and read all of them.

        Args:
            setting: Of the study.
            part: A function of a module, called as `part(setting, *case, seed)`; it returns JSON.
            cases: What is measured; `[()]` where seeds are all there is.
            axes: Names of the axes: those of a case first, then those of `read`.
            read: From a part to its numbers, see `of`.
            ahead: The cases in the order in which processes take them, the longest first; None: as they are.
            tolerate: Errors that leave a case out, with its reason in `missing`.
        """
        tasks = [(part, case, seed) for case in ahead or cases for seed in range(setting.seeds)]
        if not tolerate:
            work_ahead(setting, keep_part, tasks)
        parts: dict[Place, list[Any]] = {}
        missing: dict[Place, str] = {}
        for case in cases:
            setting.console.print(f"{' '.join(map(str, case)) or setting.out.name}: {setting.seeds} seeds")
            try:
                parts[case] = [keep_part(setting, part, case, seed) for seed in range(setting.seeds)]
            except tolerate as error:
                missing[case] = f"{type(error).__name__}: {error}"
        return cls.of(axes, parts, read, missing)

    @classmethod
    def of(
        cls,
        axes: Sequence[str],
        parts: Mapping[Place, Sequence[Any]],
        read: Read,
        missing: Mapping[Place, str] | None = None,
    ) -> Grid:
        """Parts turned inside out: by place and measure, one value a seed.

        Args:
            axes: Names of the axes.
            parts: By case, what each seed gave.
            read: From a part to its numbers: by the rest of a place, then by measure.
            missing: Cases that are not there, and why.
        """
        cells: dict[Place, dict[str, list[Any]]] = {}
        gone = dict(missing or {})
        for case, found in parts.items():
            seeds = [read(part) for part in found]
            for rest in dict.fromkeys(chain.from_iterable(seeds)):
                place = (*case, *rest)
                if len(place) != len(axes):
                    raise StudyError(f"place {place} has {len(place)} labels for the axes {tuple(axes)}.")
                without = [str(number) for number, seed in enumerate(seeds) if rest not in seed]
                if without:
                    gone[place] = f"not in seed {', '.join(without)}"
                    continue
                cells[place] = {key: [seed[rest].get(key) for seed in seeds] for key in seeds[0][rest]}
        return cls(tuple(axes), cells, parts, gone)

    def along(self, *axes: str, **fixed: Any) -> list[Any]:
        """Labels on an axis in the order of the study, tuples of them where several axes are named.

        Args:
            axes: Their names.
            fixed: By axis, labels that the places must have.
        """
        at = [self.axes.index(axis) for axis in axes]
        bound = {self.axes.index(axis): label for axis, label in fixed.items()}
        places = (p for p in self.cells if all(p[number] == label for number, label in bound.items()))
        found = dict.fromkeys(tuple(place[number] for number in at) for place in places)
        return [labels[0] for labels in found] if len(axes) == 1 else list(found)

    def only(self, **labels: Collection[Any]) -> Grid:
        """The part of the grid whose places have one of these labels, by axis."""
        at = {self.axes.index(axis): chosen for axis, chosen in labels.items()}
        cells = {p: c for p, c in self.cells.items() if all(p[n] in chosen for n, chosen in at.items())}
        return replace(self, cells=cells)

    def place(self, **labels: Any) -> Place:
        """The labels in the order of the axes; each axis must be named."""
        return tuple(labels[axis] for axis in self.axes)

    def values(self, place: Place, measure: str) -> Sequence[Any] | None:
        """One value a seed; None where the place has no such measure, or it has no meaning there."""
        found = self.cells.get(place, {}).get(measure)
        return None if found is None or None in found else found

    def mean(self, place: Place, measure: str) -> float:
        """Mean over seeds; infinite where a seed's value is."""
        values = self.values(place, measure)
        if values is None:
            raise StudyError(f"{measure!r} was not measured at {place}.")
        return math.inf if is_infinite(values) else math.fsum(values) / len(values)

    def spread(self, place: Place, measure: str) -> list[float]:
        """Mean and standard deviation over seeds, of finite values."""
        return mean_spread(self.values(place, measure) or ())


def keep_part(setting: Setting, part: Callable[..., Any], case: Place, seed: int) -> Any:
    """What a part gives, done once: see `Grid.run`."""
    key = "-".join(map(str, (*case, seed))) if case else f"seed-{seed}"
    return setting.once(key, lambda: part(setting, *case, seed))


def is_infinite(values: Iterable[Any]) -> bool:
    """Whether a seed's value is infinite, which JSON holds as text."""
    return any(isinstance(value, str) for value in values)
