"""Regression tables: twelve of UCI with their public splits, two robots' logs, and two generated ones.

A new table needs a function that reads it and a line in `TABLES`. UCI files are below `TRUSTGP_DATA`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .files import Folder
from .recordings import Recording, load
from .splits import Split, split_random, split_unseen

TEST, VALIDATION = 0.1, 0.1  # shares of a random split
KINOVA_STRIDE = 20  # neighbours in time hardly differ
UCI = Folder("uci", "github.com/treforevans/uci_datasets (NAME.data.csv.gz, NAME.test_mask.csv.gz)")


@dataclass(frozen=True)
class TableRows:
    """Unscaled rows of a table, float64, and their kind of split."""

    inputs: Tensor  # [n, d]
    targets: Tensor  # [n, C]
    recording: Recording | None = None  # of a robot's log, for `split_unseen`
    tested: Tensor | None = None  # public splits: test rows of each, bool  [n, splits]

    def split(self, seed: int) -> Split:
        """Split into test, validation and training rows: a public one, by runs or blocks, or at random."""
        if self.recording is not None:
            return split_unseen(self.recording, seed=seed)
        if self.tested is None:
            return split_random(len(self.inputs), test=TEST, validation=VALIDATION, seed=seed)
        test = self.tested[:, seed % self.tested.shape[1]]
        others = (~test).nonzero()[:, 0]
        inner = split_random(len(others), test=0.0, validation=VALIDATION, seed=seed)
        return Split(others[inner.train], others[inner.validation], test.nonzero()[:, 0])


@dataclass(frozen=True)
class _Table:
    """Reader, origin and description of a table."""

    read: Callable[[], TableRows]
    origin: str  # "UCI", "recordings" or "generated"
    about: str  # what is predicted, in a few words


def load_table(name: str) -> TableRows:
    """Rows of one of `TABLES`; raise FileNotFoundError, with instructions, if its file is missing."""
    if name not in TABLES:
        raise ValueError(f"table {name!r} is unknown; choose one of {', '.join(TABLES)}.")
    rows = TABLES[name].read()
    if not bool(torch.isfinite(rows.inputs).all() & torch.isfinite(rows.targets).all()):
        raise ValueError(f"table {name!r} holds values that are not finite; is its file damaged?")
    return rows


def _uci(name: str) -> TableRows:
    """Rows of a UCI table, whose last column is the target, with its public splits."""
    table, mask = (np.loadtxt(UCI.path(f"{name}.{part}.csv.gz", None), delimiter=",", ndmin=2)
                   for part in ("data", "test_mask"))  # fmt: skip
    if len(table) != len(mask):
        raise ValueError(f"table {name!r} has {len(table)} rows and splits of {len(mask)}; fetch it again.")
    rows = torch.from_numpy(table)
    return TableRows(rows[:, :-1], rows[:, -1:], tested=torch.from_numpy(mask) > 0)


def _recorded(recording: Recording, stride: int = 1) -> TableRows:
    """Every `stride`-th row of a recording, float64, split by its runs."""
    inputs, targets = (part[::stride].double() for part in (recording.inputs, recording.targets))
    parts = {key: getattr(recording, key) for key in ("groups", "motions", "places")}
    thin = {key: None if part is None else part[::stride] for key, part in parts.items()}
    return TableRows(inputs, targets, Recording(inputs, targets, recording.name, **thin))


def smooth_rows(rows: int = 1500, *, tails: bool) -> TableRows:
    r"""Rows of a smooth function of 5 inputs in [-1, 1], with noise std :math:`0.05 + 0.4 (1 + x_1)^2 / 4`.

    With `tails`, the noise is Student's t with 3 degrees of freedom, of scale 0.1.
    """
    generator = np.random.default_rng(0)
    x = generator.uniform(-1.0, 1.0, (rows, 5))
    y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + np.exp(-4 * x[:, 3] ** 2)
    if tails:
        y += 0.1 * generator.standard_t(3, rows)
    else:
        y += (0.05 + 0.1 * (1.0 + x[:, 0]) ** 2) * generator.standard_normal(rows)
    return TableRows(torch.from_numpy(x), torch.from_numpy(y)[:, None])


_UCI_TABLES = {
    "servo": "rise time of a servo",
    "autompg": "miles per gallon",
    "stock": "returns of a stock exchange",
    "airfoil": "noise of an airfoil",
    "skillcraft": "rank of a player",
    "sml": "temperature of a house",
    "parkinsons": "a score of symptoms from voices",
    "pumadyn32nm": "acceleration of a simulated arm",
    "pol": "telecommunication",
    "elevators": "control of an aircraft",
    "bike": "bicycles that are rented",
    "kin40k": "position of a simulated arm",
}
TABLES = {
    **{name: _Table(partial(_uci, name), "UCI", about) for name, about in _UCI_TABLES.items()},
    "growing noise": _Table(partial(smooth_rows, tails=False), "generated", "noise that grows with an input"),
    "heavy tails": _Table(partial(smooth_rows, tails=True), "generated", "noise with heavy tails"),
    "sarcos test": _Table(lambda: _recorded(load("sarcos_official")), "recordings", "seven torques, blocks"),
    "kinova": _Table(lambda: _recorded(load("kinova"), KINOVA_STRIDE), "recordings", "torques, whole runs"),
}
"""Tables by name, from small to large within an origin."""
