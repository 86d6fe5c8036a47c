"""What every study shares: how it is asked for, and the form its result has on disk and in the report.

A study is a function `run(setting) -> Result`, and one line in `core/registry.py`.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console

from .atomic_files import write_json
from .errors import StudyError
from .provenance import commit, source_digest, versions
from .single_thread import alone

RESULT = "result.json"


@dataclass(frozen=True)
class Setting:
    """How a study is asked for.

    Args:
        out: Folder of this study's result and figures, made if it is not there.
        seeds: How many; they are 0, 1, 2, ...
        quick: A small part that runs in seconds, to see that it works. Its figures mean nothing.
        device: Where networks are trained and models fitted: "cpu", "cuda".
        console: Where to print; bars are shown in a terminal only.
        jobs: Processes that share the work, in studies that can share it.
        options: Of this study alone, by name.
    """

    out: Path
    seeds: int = 3
    quick: bool = False
    device: str = "cpu"
    console: Console = field(default_factory=lambda: Console(quiet=True))
    jobs: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.jobs < 1:
            raise StudyError(f"seeds={self.seeds}, jobs={self.jobs}; at least one is needed of each.")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise StudyError(f"device={self.device!r}, but there is no CUDA device here; use 'cpu'.")
        self.out.mkdir(parents=True, exist_ok=True)

    @property
    def place(self) -> dict[str, Any]:
        """Where to train, and whether to show bars: options of `train`."""
        return {"device": self.device, "progress": not self.console.quiet}

    def once(self, key: str, work: Callable[[], Any]) -> Any:
        """The JSON value of `work()`; what the same code did before in this folder is read, not done again.

        A study that was stopped goes on where it was. What other code, versions or settings left behind
        is not taken, nor is a file that cannot be read.

        Args:
            key: Names this part of the study, for example "sarcos-random-0".
            work: Returns something that JSON can hold.
        """
        stamp = [key, self.quick, self.device, sorted(self.options.items()), versions(), source_digest()]
        name = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:12]
        file = self.out / "parts" / f"{key}-{name}.json"
        with suppress(FileNotFoundError, ValueError):
            return _parse(file)
        write_json(file, alone(work))  # one thread: the same numbers on any number of cores, with any jobs
        return _parse(file)  # what a resumed run would see


@dataclass(frozen=True)
class Column:
    """Of a table: `better` ("low", "high" or None) says which end is printed in bold."""

    name: str
    digits: int = 3
    better: str | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        _require_text(self, "name", "unit")
        if not isinstance(self.digits, int):
            raise StudyError(f"column {self.name!r}: digits={self.digits!r} is not a whole number.")
        if self.better not in (None, "low", "high"):
            raise StudyError(f"column {self.name!r}: better={self.better!r}; give 'low', 'high' or None.")

    @classmethod
    def text(cls, name: str) -> Column:
        """A column of words."""
        return cls(name, digits=-1)


@dataclass(frozen=True)
class Table:
    """Rows of text, numbers or None (a gap), all as long as `columns`.

    Args:
        title: One line.
        columns: In order; the first is usually text. A column of text has `digits=-1`.
        rows: Of cells. A number may be [mean, spread].
        block: Name of the column within whose equal values the best is looked for; None: the whole table.
        note: In plain words, below the table.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    block: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        _require_text(self, "title", "note")
        names = [column.name for column in self.columns]
        if self.block is not None and self.block not in names:
            raise StudyError(f"table {self.title!r}: block={self.block!r} is none of its columns {names}.")
        for number, row in enumerate(self.rows):
            if len(row) != len(names):
                raise StudyError(
                    f"table {self.title!r}: row {number} has {len(row)} cells, not {len(names)}."
                )
            for cell in row:
                if not _is_cell(cell):
                    raise StudyError(
                        f"table {self.title!r}, row {number}: {cell!r} is not a cell; "
                        "give text, a number, [mean, spread] or None."
                    )


@dataclass(frozen=True)
class Figure:
    """A picture beside the result, and the words under it."""

    file: str
    title: str
    caption: str = ""

    def __post_init__(self) -> None:
        _require_text(self, "file", "title", "caption")
        if not self.file or self.file != Path(self.file).name:
            raise StudyError(f"figure {self.file!r}: give the name of a file beside the result, no path.")


@dataclass(frozen=True)
class Result:
    """What a study found: all that the report shows.

    Args:
        study: Its name on the command line.
        title: What is asked, in one line.
        protocol: In plain words, a paragraph each: which rows, which split, which statistics, how many seeds.
        tables, figures: In the order they are shown.
        findings: One sentence each, made from the numbers by the study's code.
        numbers: Everything else, for other programs.
        provenance: See `provenance`.
    """

    study: str
    title: str
    protocol: Sequence[str]
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    findings: Sequence[str] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_text(self, "study", "title")
        for name in ("protocol", "findings"):
            lines = getattr(self, name)
            if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
                raise StudyError(f"{name}={lines!r} of study {self.study!r} is not a list of texts.")
        for name in ("numbers", "provenance"):
            if not isinstance(getattr(self, name), Mapping):
                raise StudyError(f"{name}={getattr(self, name)!r} of study {self.study!r} is not a table.")

    def write(self, folder: Path) -> Path:
        """`result.json` in the folder, whole or not at all."""
        return write_json(folder / RESULT, asdict(self))


def read_result(file: Path) -> Result:
    """A result as it was written; a damaged or foreign file is a StudyError that names it."""
    try:
        found = _parse(file)
        tables = [
            Table(**{**table, "columns": [Column(**c) for c in table["columns"]]})
            for table in found["tables"]
        ]
        figures = [Figure(**figure) for figure in found["figures"]]
        return Result(**{**found, "tables": tables, "figures": figures})
    except KeyError as error:
        raise StudyError(f"{file} is not the result of a study: {error} is missing.") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StudyError(f"{file} is not the result of a study: {error}") from error


def provenance(setting: Setting, study: str, **more: Any) -> dict[str, Any]:
    """Where a result comes from: command, commit, versions, seeds, device, day. No path of a machine.

    Args:
        setting: As the study was asked.
        study: Its name.
        more: Of the study's own: splits, rows, recipe.
    """
    flags = [f"--seeds {setting.seeds}"]
    flags += ["--quick"] if setting.quick else []
    flags += [f"--device {setting.device}"] if setting.device != "cpu" else []
    return {
        "command": " ".join(["trustgp study", study, *flags]),
        "commit": commit(),
        "versions": {"python": platform.python_version(), **versions()},
        "seeds": list(range(setting.seeds)),
        "quick": setting.quick,
        "device": torch.cuda.get_device_name(setting.device) if setting.device.startswith("cuda") else "CPU",
        "date": datetime.now(UTC).date().isoformat(),
        **more,
    }


def _parse(file: Path) -> Any:
    """The file as JSON, without the NaN and infinity that Python would take."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number.")

    return json.loads(file.read_text("utf-8"), parse_constant=refuse)


def _require_text(thing: Any, *names: str) -> None:
    for name in names:
        if not isinstance(value := getattr(thing, name), str):
            raise StudyError(f"{name}={value!r} of a {type(thing).__name__.lower()} is not text.")


def _is_cell(cell: Any) -> bool:
    if isinstance(cell, list | tuple):
        return bool(cell) and all(isinstance(value, int | float) for value in cell)
    return cell is None or isinstance(cell, str | int | float)
