"""Measurements of a study by axis (trained on, tested on, method); parts are cached and run in parallel."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import chain
from multiprocessing import get_context
from typing import Any

from typing_extensions import Self

from trustgp.executors.progress import reporting

from .claim import mean_spread
from .result import Setting, StudyError

Place = tuple[Any, ...]
"""A label for each axis, in the order of the axes."""
Part = Callable[..., Any]
Read = Callable[[Any], Mapping[Place, Mapping[str, Any]]]


@dataclass(frozen=True)
class Grid:
    """Numbers by place and measure, one per seed, and the parts they were read from: see docs/studies.md.

    A value may be None (the measure has no meaning there), or "inf" (JSON has no infinity). A place that a
    seed lacks, since a method could not be fitted, is left out.
    """

    axes: tuple[str, ...]
    cells: Mapping[Place, Mapping[str, Sequence[Any]]]  # by place and measure, the values of all seeds
    parts: Mapping[Place, Sequence[Any]] = field(default_factory=dict)  # by case, the part of each seed

    @classmethod
    def run(
        cls, setting: Setting, part: Part, cases: Sequence[Place], *, axes: Sequence[str], read: Read
    ) -> Self:
        """Compute every part that is not cached, as `part(setting, *case, seed)`, and read all: see `of`.

        `cases` is `[()]` if only the seed varies. The axes are those of a case, then those of `read`.
        Processes begin with the last case, which takes longest in most studies.
        """
        tasks = [(part, case, seed) for case in reversed(cases) for seed in range(setting.seeds)]
        run_parallel(setting, keep_part, tasks)
        parts: dict[Place, list[Any]] = {}
        for case in cases:
            setting.console.print(f"{' '.join(map(str, case)) or setting.out.name}: {setting.seeds} seeds")
            parts[case] = [keep_part(setting, part, case, seed) for seed in range(setting.seeds)]
        return cls.of(axes, parts, read)

    @classmethod
    def of(cls, axes: Sequence[str], parts: Mapping[Place, Sequence[Any]], read: Read) -> Self:
        """Grid of parts by case and seed; `read` returns the values of a part by labels and measure."""
        cells: dict[Place, dict[str, list[Any]]] = {}
        for case, seeds in parts.items():
            numbers = [read(part) for part in seeds]
            for labels in dict.fromkeys(chain.from_iterable(numbers)):
                place = (*case, *labels)
                if len(place) != len(axes):
                    raise StudyError(f"place {place} has {len(place)} labels for the axes {tuple(axes)}.")
                if all(labels in seed for seed in numbers):
                    keys = numbers[0][labels]
                    cells[place] = {key: [seed[labels].get(key) for seed in numbers] for key in keys}
        return cls(tuple(axes), cells, parts)

    @classmethod
    def of_runs(cls, axes: Sequence[str], runs: Sequence[Mapping[str, Any]], read: Read) -> Self:
        """Grid rebuilt from the output of `runs`."""
        parts = {tuple(run[axis] for axis in axes if axis in run): run["seeds"] for run in runs}
        return cls.of(axes, parts, read)

    def runs(self) -> list[dict[str, Any]]:
        """Parts of every case with its labels by axis, for the numbers of a result."""
        named = {case: dict(zip(self.axes, case, strict=False)) for case in self.parts}
        return [{**named[case], "seeds": seeds} for case, seeds in self.parts.items()]

    def along(self, *axes: str, **fixed: Any) -> list[Any]:
        """Labels on an axis, tuples of labels on several, in the study's order, where others are `fixed`."""
        at, places = [self.axes.index(axis) for axis in axes], self.only(**{k: [v] for k, v in fixed.items()})
        labels = dict.fromkeys(tuple(place[number] for number in at) for place in places.cells)
        return [label for (label,) in labels] if len(axes) == 1 else list(labels)

    def only(self, **labels: Collection[Any]) -> Self:
        """Grid of the places whose label on each given axis is one of these."""
        at = {self.axes.index(axis): chosen for axis, chosen in labels.items()}
        cells = {p: c for p, c in self.cells.items() if all(p[n] in chosen for n, chosen in at.items())}
        return replace(self, cells=cells)

    def values(self, place: Place, measure: str) -> Sequence[Any] | None:
        """Values of a measure, one per seed; None where the place lacks it, or it has no meaning there."""
        values = self.cells.get(place, {}).get(measure)
        return None if values is None or None in values else values

    def mean(self, place: Place, measure: str) -> float:
        """Mean over seeds; infinite if the value of any seed is."""
        values = self.values(place, measure)
        if values is None:
            raise StudyError(f"{measure!r} was not measured at {place}.")
        return math.inf if is_infinite(values) else math.fsum(values) / len(values)

    def spread(self, place: Place, measure: str) -> list[float]:
        """Mean and standard deviation over seeds, of finite values."""
        return mean_spread(self.values(place, measure) or ())


def keep_part(setting: Setting, part: Part, case: Place, seed: int) -> Any:
    """Part of a study, computed once and then read from the cache: see `Grid.run`."""
    key = "-".join(map(str, (*case, seed))) if case else f"seed-{seed}"
    return setting.once(key, lambda: part(setting, *case, seed))


def is_infinite(values: Iterable[Any]) -> bool:
    """Whether the value of any seed is infinite, which JSON stores as text."""
    return any(isinstance(value, str) for value in values)


def run_parallel(setting: Setting, part: Part, tasks: Sequence[tuple]) -> None:
    """Compute parts of a study in `setting.jobs` processes; `Setting.once` caches them in its folder.

    A part is a module-level function, called as `part(setting, *task)`. A part that fails does not stop the
    others. With one job nothing is done: the study then computes each part when it needs it.
    """
    jobs = min(setting.jobs, len(tasks))
    if jobs <= 1:
        return
    plain = {name: getattr(setting, name) for name in ("out", "seeds", "quick", "device")}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_run, part, plain, task) for task in tasks]
        with reporting(enabled=not setting.console.quiet) as report:
            finished = report.track(as_completed(futures), stage=setting.out.name, total=len(futures))
            errors = [error for future in finished if (error := future.exception()) is not None]
    if errors:  # after the others: their parts are kept
        raise errors[0]


def _run(part: Part, plain: dict[str, Any], task: tuple) -> None:
    part(Setting(**plain), *task)
