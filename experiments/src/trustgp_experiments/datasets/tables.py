"""Regression tables that can be had offline: of other packages, of the recordings' folder, and generated.

A further table is a function that reads it and its line in `TABLES`. Files come with scikit-learn (needed
anyway), statsmodels and vega_datasets (`pip install "trustgp[tables]"`), which need not be imported for it.
"""

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .recordings import Recording, load
from .splits import Split, split_random, split_unseen

TEST, VALIDATION = 0.1, 0.1  # shares of a random split
KINOVA_STRIDE = 20  # neighbours in time hardly differ


@dataclass(frozen=True)
class TableRows:
    """Rows of a table as they are, float64, and whether they hold runs that are split as wholes."""

    inputs: Tensor  # [n, d]
    targets: Tensor  # [n, C]
    recording: Recording | None = None  # of a robot's log: it is split by what no row answers from memory

    def split(self, seed: int) -> Split:
        """Test, validation and training rows; at random where a row is independent of the others."""
        if self.recording is None:
            return split_random(len(self.inputs), test=TEST, validation=VALIDATION, seed=seed)
        return split_unseen(self.recording, seed=seed)


@dataclass(frozen=True)
class _Table:
    """Where a table comes from."""

    read: Callable[[], TableRows]
    origin: str  # "scikit-learn", "statsmodels", "vega_datasets", "recordings" or "generated"
    about: str  # what is predicted from what, in a few words


def load_table(name: str) -> TableRows:
    """The rows of one of `TABLES`; FileNotFoundError, with what to do, where its file is not here."""
    if name not in TABLES:
        raise ValueError(f"table {name!r} is unknown; choose one of {', '.join(TABLES)}.")
    rows = TABLES[name].read()
    if not bool(torch.isfinite(rows.inputs).all() & torch.isfinite(rows.targets).all()):
        raise ValueError(f"table {name!r} holds values that are not finite; is its file damaged?")
    return rows


def package_file(package: str, file: str) -> Path:
    """A data file inside an installed package, found without importing it."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / file).is_file():
            return path
    raise FileNotFoundError(f'{package}/{file} is not installed: pip install "trustgp[tables]"')


def encode(columns: Sequence[Sequence[str]]) -> np.ndarray:
    """Columns of text as numbers [n, d]: a column of numbers as it is, any other as one 0 or 1 a value."""
    parts = []
    for column in columns:
        try:
            parts.append(np.array([[float(value)] for value in column]))
        except ValueError:
            kinds = sorted(set(column))
            parts.append(np.array([[float(value == kind) for kind in kinds] for value in column]))
    return np.concatenate(parts, axis=1)


def _from_records(records: Sequence[dict[str, str]], target: str, inputs: Sequence[str] = ()) -> TableRows:
    """Records without a gap, as numbers; inputs are all columns but the target, unless they are named."""
    names = list(inputs) or [name for name in records[0] if name != target]
    whole = [record for record in records if all(record[name] for name in (target, *names))]
    x = encode([[record[name] for record in whole] for name in names])
    return _rows(x, encode([[record[target] for record in whole]]))


def _rows(inputs: np.ndarray, targets: np.ndarray) -> TableRows:
    """Arrays as rows; a single target may be [n]."""
    x, y = (torch.from_numpy(np.asarray(part, dtype=np.float64)) for part in (inputs, targets))
    return TableRows(x, y.reshape(len(y), -1))


def _read_csv(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return [
            {str(name).strip("'\" "): str(value).strip() for name, value in record.items()}
            for record in csv.DictReader(file, delimiter=delimiter, skipinitialspace=True)
        ]


def _statsmodels(name: str, target: str, delimiter: str = ",") -> TableRows:
    path = package_file("statsmodels", f"datasets/{name}/{name}.csv")
    return _from_records(_read_csv(path, delimiter), target)


def _sklearn(make: str, **options: Any) -> TableRows:
    from sklearn import datasets

    return _rows(*getattr(datasets, make)(**options))


def _friedman(number: int, rows: int, noise: float) -> TableRows:
    return _sklearn(f"make_friedman{number}", n_samples=rows, noise=noise, random_state=0)


def _wine() -> TableRows:
    analyses = _sklearn("load_wine", return_X_y=True).inputs
    return TableRows(analyses[:, 1:], analyses[:, :1])


def _schools() -> TableRows:
    records = _read_csv(package_file("statsmodels", "datasets/star98/star98.csv"))
    for record in records:
        record["share"] = str(float(record["PR50M"]) / float(record["MATHTOT"]))
    return _from_records(records, "share", [name for name in records[0] if name not in ("share", "PR50M")])


def _co2() -> TableRows:
    records = _read_csv(package_file("statsmodels", "datasets/co2/co2.csv"))
    whole = [record for record in records if record["co2"]]
    days = [datetime.strptime(record["date"], "%Y%m%d") for record in whole]
    return _rows(np.array([_season(day) for day in days]), np.array([float(r["co2"]) for r in whole]))


def _cars() -> TableRows:
    cars = json.loads(package_file("vega_datasets", "_data/cars.json").read_text(encoding="utf-8"))
    whole = [record for record in cars if None not in record.values()]
    records = [{k: str(v)[: 4 if k == "Year" else None] for k, v in record.items()} for record in whole]
    names = ["Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration", "Year", "Origin"]
    return _from_records(records, "Miles_per_Gallon", names)


def _weather() -> TableRows:
    records = _read_csv(package_file("vega_datasets", "_data/seattle-weather.csv"))
    days = [datetime.strptime(record["date"], "%Y/%m/%d") for record in records]
    names = ("precipitation", "temp_min", "wind", "temp_max")
    measured = encode([[record[name] for record in records] for name in names])
    season = np.array([_season(day)[1:] for day in days])
    return _rows(np.concatenate([measured[:, :3], season], axis=1), measured[:, 3])


def _season(day: datetime) -> list[float]:
    """The year, and where in it, on a circle."""
    angle = 2 * math.pi * (day.timetuple().tm_yday - 1) / 365.25
    return [day.year + angle / (2 * math.pi), math.sin(angle), math.cos(angle)]


def _recorded(recording: Recording, stride: int = 1, *, split: bool = True) -> TableRows:
    """Every so many rows of a recording, float64; `split`: by its runs."""
    inputs, targets = (part[::stride].double() for part in (recording.inputs, recording.targets))
    parts = {key: getattr(recording, key) for key in ("groups", "motions", "places")}
    thin = {key: None if part is None else part[::stride] for key, part in parts.items()}
    return TableRows(inputs, targets, Recording(inputs, targets, recording.name, **thin) if split else None)


def smooth_rows(rows: int = 1500, *, tails: bool) -> TableRows:
    r"""Five inputs in [-1, 1]; noise of std :math:`0.05 + 0.4 (1 + x_1)^2 / 4` on a smooth function.

    With tails, the noise is Student's t with 3 degrees of freedom, of scale 0.1.
    """
    generator = np.random.default_rng(0)
    x = generator.uniform(-1.0, 1.0, (rows, 5))
    clean = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + np.exp(-4 * x[:, 3] ** 2)
    if tails:
        return _rows(x, clean + 0.1 * generator.standard_t(3, rows))
    return _rows(x, clean + (0.05 + 0.1 * (1.0 + x[:, 0]) ** 2) * generator.standard_normal(rows))


_diabetes = partial(_sklearn, "load_diabetes", return_X_y=True)
_election = partial(_statsmodels, "anes96", "age", delimiter="\t")
TABLES = {
    "snelson": _Table(lambda: _recorded(load("snelson"), split=False), "recordings", "a 1-D curve"),
    "diabetes": _Table(_diabetes, "scikit-learn", "progression of a disease from ten findings"),
    "wine": _Table(_wine, "scikit-learn", "alcohol from twelve other analyses"),
    "engel": _Table(partial(_statsmodels, "engel", "foodexp"), "statsmodels", "food from income"),
    "grunfeld": _Table(partial(_statsmodels, "grunfeld", "invest"), "statsmodels", "investment of firms"),
    "schools": _Table(_schools, "statsmodels", "share that passed (star98)"),
    "election": _Table(_election, "statsmodels", "age from opinions (anes96)"),
    "co2": _Table(_co2, "statsmodels", "carbon dioxide from the date"),
    "cars": _Table(_cars, "vega_datasets", "miles per gallon"),
    "weather": _Table(_weather, "vega_datasets", "a day's warmest hour in Seattle"),
    "friedman1": _Table(partial(_friedman, 1, 1000, 1.0), "generated", "Friedman's first function"),
    "friedman2": _Table(partial(_friedman, 2, 5000, 100.0), "generated", "Friedman's second function"),
    "growing noise": _Table(partial(smooth_rows, tails=False), "generated", "noise that grows with an input"),
    "heavy tails": _Table(partial(smooth_rows, tails=True), "generated", "noise with heavy tails"),
    "sarcos test": _Table(lambda: _recorded(load("sarcos_official")), "recordings", "seven torques, blocks"),
    "kinova": _Table(lambda: _recorded(load("kinova"), KINOVA_STRIDE), "recordings", "torques, whole runs"),
}
"""By name, from small to large within an origin."""
