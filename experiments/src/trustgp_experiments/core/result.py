"""What every study shares: its options, and the form of its result on disk and in the report."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from jinja2 import Environment, StrictUndefined
from rich.console import Console
from typing_extensions import Self

import trustgp
from trustgp.data.atomic_file import atomic_file
from trustgp.data.escapes import printable

from .storage import read_numbers, rounded, write_numbers

RESULT = "result.json"
PACKAGES = ("torch", "numpy", "scikit-learn", "laplace-torch", "matplotlib")
COMMIT_VARIABLE = "TRUSTGP_COMMIT"
MAX_DIGITS = 20  # after the decimal point
SOURCE = Path(__file__).parents[1]
LIBRARY = Path(trustgp.__file__).parent
Choice = TypeVar("Choice")


class StudyError(ValueError):
    """Wrong options of a study, or a damaged result; the command line prints it as one line."""

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message))  # it may quote a file


@dataclass(frozen=True)
class Setting:
    """Options of a study."""

    out: Path  # folder of this study's result and figures, created if missing
    seeds: int = 3  # how many; they are 0, 1, 2, ...
    quick: bool = False  # a small run of seconds, to see that it works: its numbers mean nothing
    device: str = "cpu"  # where networks are trained and models fitted: "cpu", "cuda"
    console: Console = field(default_factory=lambda: Console(quiet=True))  # bars only in a terminal
    jobs: int = 1  # processes that share the work, in studies that can share it

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.jobs < 1:
            raise StudyError(f"seeds={self.seeds}, jobs={self.jobs}; at least one is needed of each.")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise StudyError(f"device={self.device!r}, but there is no CUDA device here; use 'cpu'.")
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise StudyError(f"device={self.device!r}; 'cpu' and 'cuda' are allowed.")
        self.out.mkdir(parents=True, exist_ok=True)

    @property
    def place(self) -> dict[str, Any]:
        """Options of `train`: the device, and whether to show progress bars."""
        return {"device": self.device, "progress": not self.console.quiet}

    def sized(self, full: Choice, quick: Choice) -> Choice:
        """Value for this run: `quick` in a quick run, else `full`."""
        return quick if self.quick else full

    def once(self, key: str, work: Callable[[], Any]) -> Any:
        """JSON value of `work()`, cached in this folder: a value that the same code computed before is read.

        A study that was stopped thus resumes. Parts of other code, versions or settings, and files that
        cannot be read, are ignored. The key names the part, such as "sarcos-random-0".
        """
        file = self.part(key, ".json")
        with suppress(FileNotFoundError, ValueError):
            return _parse(file)
        with threads(1):  # the same numbers on any number of cores, with any jobs
            write_json(file, work())
        return _parse(file)  # what a resumed run would see

    def part(self, key: str, ending: str = "") -> Path:
        """File of a part of this study, named by its key and a digest of setting, versions and code."""
        stamp = [key, self.quick, self.device, versions(), source_digest()]
        digest = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:12]
        return self.out / "parts" / f"{key}-{digest}{ending}"


@dataclass(frozen=True)
class Column:
    """Column of a table; the end that is `better` ("low", "high" or None) is printed in bold."""

    name: str
    digits: int = 3
    better: str | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        _require(self, str, "name", "unit")
        printable_digits = type(self.digits) is int and self.digits <= MAX_DIGITS
        if not printable_digits or self.better not in (None, "low", "high"):
            raise StudyError(f"{self}: give up to {MAX_DIGITS} digits; better is 'low', 'high' or None.")

    @classmethod
    def text(cls, name: str) -> Self:
        return cls(name, digits=-1)


@dataclass(frozen=True)
class Table:
    """Table whose rows have one cell per column: text, a number, [mean, spread] or None (a gap)."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    block: str | None = None  # column within whose equal values the best is bold; None: the whole table
    note: str = ""  # below the table

    def __post_init__(self) -> None:
        _require(self, str, "title", "note")
        names = [column.name for column in self.columns]
        if self.block not in (None, *names):
            raise StudyError(f"table {self.title!r}: block={self.block!r} is none of its columns {names}.")
        for number, row in enumerate(self.rows):
            if len(row) != len(names) or not all(map(_is_cell, row)):
                cells = f"{len(names)} cells: text, a number, [mean, spread] or None"
                raise StudyError(f"table {self.title!r}, row {number} is {row!r}; it has {cells}.")


@dataclass(frozen=True)
class Figure:
    """A picture beside the result, and its caption."""

    file: str
    title: str
    caption: str = ""

    def __post_init__(self) -> None:
        _require(self, str, "file", "title", "caption")
        if not self.file or self.file != Path(self.file).name:
            raise StudyError(f"figure {self.file!r}: give the name of a file beside the result, no path.")


@dataclass(frozen=True)
class Result:
    """All that the report shows of a study."""

    study: str  # name on the command line
    title: str  # the question, in one line
    protocol: Sequence[str]  # a paragraph each: which rows, which split, which statistics, how many seeds
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    findings: Sequence[str] = ()  # one sentence each, made from the numbers by code
    numbers: Mapping[str, Any] = field(default_factory=dict)  # everything else, for other programs
    provenance: Mapping[str, Any] = field(default_factory=dict)  # see `provenance`
    rebuilds: bool = False  # whether the study's `summarise` makes tables and findings of the numbers

    def __post_init__(self) -> None:
        _require(self, str, "study", "title")
        _require(self, list | tuple, "protocol", "findings")
        _require(self, Mapping, "numbers", "provenance")

    def write(self, folder: Path) -> Path:
        """Write `result.json` into the folder atomically; tables that can be rebuilt are left out, and their
        numbers go to a compressed file beside it."""
        fields = asdict(self)
        if self.rebuilds:
            folder.mkdir(parents=True, exist_ok=True)
            write_numbers(folder, fields.pop("numbers"))
            fields["tables"] = []
        return write_json(folder / RESULT, fields)


def read_result(file: Path) -> Result:
    """Result read from a file; raise StudyError, which names the file, if it is damaged or not a result."""
    if not file.is_file():
        raise StudyError(f"{file} is not a file.")
    try:
        fields = _parse(file)
        if fields.get("rebuilds"):
            return _rebuilt(file.parent, fields)
        tables = [{**table, "columns": [Column(**c) for c in table["columns"]]} for table in fields["tables"]]
        figures = [Figure(**figure) for figure in fields["figures"]]
        return Result(**{**fields, "tables": [Table(**table) for table in tables], "figures": figures})
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        missing = " is missing" if isinstance(error, KeyError) else ""
        raise StudyError(f"{file} is not the result of a study: {error}{missing}") from error


def _rebuilt(folder: Path, fields: dict[str, Any]) -> Result:
    """Result with the numbers stored beside it and the tables that its study makes of them."""
    study, numbers = fields["study"], read_numbers(folder)
    if not isinstance(study, str) or not study.isidentifier():
        raise ValueError(f"study {study!r} has no tables that could be rebuilt.")
    try:
        module = import_module(f"trustgp_experiments.studies.{study}.study")
    except ImportError as error:
        raise ValueError(f"its tables cannot be rebuilt: {error}") from error
    figures, tables = [Figure(**figure) for figure in fields["figures"]], module.summarise(numbers)[0]
    return Result(**{**fields, "tables": tables, "figures": figures, "numbers": numbers})


def provenance(setting: Setting, study: str, **more: Any) -> dict[str, Any]:
    """Origin of a result, without paths of the machine: command, commit, versions, seeds, device, day."""
    flags = " --quick" if setting.quick else ""
    flags += f" --device {setting.device}" if setting.device != "cpu" else ""
    return {
        "command": f"trustgp study {study} --seeds {setting.seeds}{flags}",
        "commit": commit(),
        "versions": {"python": platform.python_version(), **versions()},
        "seeds": list(range(setting.seeds)),
        "quick": setting.quick,
        "device": torch.cuda.get_device_name(setting.device) if setting.device.startswith("cuda") else "CPU",
        "date": datetime.now(timezone.utc).date().isoformat(),
        **more,
    }


Summarise = Callable[[Any], tuple[Sequence[Table], Sequence[str]]]  # tables and findings, from numbers


def make_result(
    setting: Setting,
    study: str,
    title: str,
    protocol: list[str],
    numbers: Any,
    summarise: Summarise,
    **more: Any,
) -> Result:
    """Result of a study from its numbers, rounded as they are stored; `more` is added to its provenance."""
    numbers, made = rounded(numbers), provenance(setting, study, **more)
    tables, findings = summarise(numbers)
    return Result(study, title, protocol, tables, (), findings, numbers, made, rebuilds=True)


def prose(module: str, heading: str = "Protocol", **values: Any) -> list[str]:
    """Paragraphs below a heading of the `study.md` beside a module, a Jinja template that is rendered with
    the module's names and these values; empty paragraphs are left out."""
    source = Path(sys.modules[module].__file__ or "").with_name("study.md").read_text("utf-8")
    section = source.partition(f"# {heading}\n")[2].partition("\n# ")[0]
    template = Environment(undefined=StrictUndefined).from_string(section)
    text = template.render({**vars(sys.modules[module]), **values})
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def note(module: str, heading: str) -> str:
    """Paragraphs of `prose` joined into one text: the note below a table, or the caption of a figure."""
    return " ".join(prose(module, heading))


def commit() -> str | None:
    """Commit of the source, with "+" if files differ; outside a checkout TRUSTGP_COMMIT, or None."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(SOURCE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # an installed copy may be inside another project's checkout, which does not track our files
        git("ls-files", "--error-unmatch", "__init__.py")
        changed = git("status", "--porcelain", ".", str(LIBRARY))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get(COMMIT_VARIABLE)


@cache
def source_digest() -> str:
    """SHA-256 of the source of the library and of the experiments: names and contents."""
    digest = hashlib.sha256()
    for folder in (LIBRARY, SOURCE):
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder.parent)).encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of trustgp and of the installed packages that figures may depend on."""
    installed = {"trustgp": trustgp.__version__}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set torch's number of threads inside the block; on a busy machine a second one slows small batches."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_json(file: Path, value: Any) -> Path:
    """Write the value as JSON; raise ValueError for NaN and infinity."""
    return write_text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(file: Path, text: str) -> Path:
    """Write the text as UTF-8, atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    return file


def _parse(file: Path) -> Any:
    """Value of a JSON file; raise ValueError for NaN and infinity, which Python would accept."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number.")

    return json.loads(file.read_text("utf-8"), parse_constant=refuse)


def _require(thing: Any, kind: Any, *names: str) -> None:
    for name in names:
        if not isinstance(value := getattr(thing, name), kind):
            what = f"{name}={value!r} of a {type(thing).__name__.lower()}"
            raise StudyError(f"{what} is no {getattr(kind, '__name__', kind)}.")


def _is_cell(cell: Any) -> bool:
    """Whether a cell is text, a gap or numbers; integers must fit a float, though JSON allows larger ones."""
    values = cell if isinstance(cell, list | tuple) and cell else [cell]
    numbers = (isinstance(v, float) or (isinstance(v, int) and abs(v) < 2**1023) for v in values)
    return cell is None or isinstance(cell, str) or all(numbers)
