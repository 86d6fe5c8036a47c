"""How are the real recordings read, with their known faults repaired?

All of them are inverse dynamics of 7-joint arms, (q, dq, ddq) -> torques, except the 1-D `snelson`.
None is part of this package; the folder that holds them is named by ``TRUSTGP_DATA`` or ``root=``.
To test far from the data, take another arm's recording, scaled by the training set's statistics
(`trustgp.datasets.standardise`).
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

VARIABLE = "TRUSTGP_DATA"
_IAS = "ias_inverse_dynamics"
_KUKA = "kuka_lwr4_flobaroid"
_SNELSON = "snelson"
_PARTS = {
    "sarcos": "sarcos_real",
    "sarcos_sim": "sarcos_sl_sim",
    "barrett": "barrett_real",
    "barrett_sim": "barrett_sl_sim",
}
_RUNS = {
    "kuka": [f"HW_{run}" for run in (1, 2, 3)],
    "kuka_sim": [f"SIM_{run}" for run in (*range(1, 16), "opt_1")],
}
_ORIGIN = {
    _IAS: "github hanyas/mimo, datasets/Sarcos and datasets/Barrett in its history",
    _KUKA: "github kjyv/FloBaRoID, data/KUKA",
    _SNELSON: "github GPflow/GPflow, doc/sphinx/notebooks/theory/data",
}
NAMES = (*_PARTS, *_RUNS, "snelson")


@dataclass(frozen=True)
class Recording:
    """Rows of one arm (or toy), in the order of time where the source has one."""

    inputs: Tensor  # (q, dq, ddq)                         [n, 21]
    targets: Tensor  # torques                             [n, 7]
    name: str
    groups: Tensor | None = None  # trajectory of each row  [n] int64
    style: str | None = None  # of a simulated motion
    recorded_test: Tensor | None = None  # the source's own test rows  [n] bool


def load(name: str, root: str | Path | None = None) -> Recording:
    """Read a recording, merged, without duplicate rows, ordered in time, in float64.

    * ``sarcos``, ``sarcos_sim``: the source's train and test parts overlap, so they are merged
      (`merge_in_time`) and its split is dropped. `sarcos` was resampled by its makers with linear
      interpolation: 3 rows in 10 lie exactly on the line between their neighbours, so a random
      split puts the answer next to the question. Prefer `split_blocks`.
    * ``barrett``, ``barrett_sim``: the test part is every fifth row of one recording at 50 Hz, in
      ``recorded_test``; as easy as a random split.
    * ``kuka``: three runs, numbered 1 to 3 in ``groups``; 1 and 2 repeat one motion.
    * ``kuka_sim``: 16 runs, numbered from 1; rigid-body torques without friction.
    * ``snelson``: 200 rows, 1 input, 1 output.

    Args:
        name: One of `NAMES`.
        root: Folder of the data; the environment variable ``TRUSTGP_DATA`` when None.
    """
    if name in _PARTS:
        return _load_parts(name, root)
    if name in _RUNS:
        return _load_runs(name, root)
    if name == "snelson":
        data = _read(root, _SNELSON, "snelson.npz")
        x, y = (_tensor(data[key])[:, None] for key in ("train_inputs", "train_outputs"))
        return Recording(x, y, name=name)
    raise ValueError(f"name={name!r} is unknown; choose one of {NAMES}.")


def merge_in_time(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put the rows of two overlapping or interleaved parts back in the order of time, each once.

    Both parts are thinned copies of one recording, each in time order. A row of the test part
    that is also a training row tells where the test part stands; a row between two such rows gets
    the place between theirs, linearly. Without common rows the test part is taken to be every
    (n/m + 1)-th row, beginning with the first. Measured: both rules give back a constant time
    step on the recordings they are used for (see the tests).

    Args:
        train: Training rows, inputs and targets side by side, shape [n, d].
        test: Test rows, shape [m, d].

    Returns:
        The distinct rows [k, d], and which of them are in the test part only [k].
    """
    rows = np.concatenate([train, test]) + 0.0  # -0.0 becomes 0.0: equal rows have equal bytes
    seen: dict[bytes, int] = {}
    first = np.array([seen.setdefault(row.tobytes(), at) for at, row in enumerate(rows)])
    stamps = np.concatenate([np.arange(len(train)), _test_stamps(first[len(train) :], len(train))])
    distinct = np.flatnonzero(first == np.arange(len(rows)))
    order = distinct[np.argsort(stamps[distinct], kind="stable")]
    return rows[order], order >= len(train)


def verify(path: str | Path, sha256: str) -> None:
    """Raise ValueError unless the file has this SHA-256 (hexadecimal)."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256.lower():
        raise ValueError(
            f"{path} has SHA-256 {found}, expected {sha256}: it is damaged or another version; "
            "fetch it again from its source."
        )


def _test_stamps(first: np.ndarray, n: int) -> np.ndarray:
    """Places of the test rows on the axis of training row numbers, shape [m]."""
    number = np.arange(len(first))
    known = np.flatnonzero(first < n)
    if len(known) < 2:
        return number * (n / max(len(first), 1)) - 0.5
    low, high = known[0], known[-1]
    step = (first[high] - first[low]) / (high - low)
    beyond = np.minimum(number - low, 0) + np.maximum(number - high, 0)  # np.interp holds its ends
    return np.interp(number, known, first[known]) + step * beyond


def _load_parts(name: str, root: str | Path | None) -> Recording:
    data = _read(root, _IAS, f"{_PARTS[name]}.npz")
    train, test = (
        np.concatenate([data[f"X_{part}"], data[f"Y_{part}"]], axis=1) for part in ("train", "test")
    )
    rows, test_only = merge_in_time(train, test)
    apart = len(rows) == len(train) + len(test)
    return Recording(
        _tensor(rows[:, :21]),
        _tensor(rows[:, 21:]),
        name=name,
        recorded_test=torch.from_numpy(test_only) if apart else None,
    )


def _load_runs(name: str, root: str | Path | None) -> Recording:
    inputs, targets, groups = [], [], []
    for number, run in enumerate(_RUNS[name], start=1):
        data = _read(root, _KUKA, f"{run}.npz")
        state = [data[key] for key in ("positions", "velocities", "accelerations")]
        inputs.append(_tensor(np.concatenate(state, axis=1)))
        targets.append(_tensor(data["torques"]))
        groups.append(torch.full((len(targets[-1]),), number))
    return Recording(torch.cat(inputs), torch.cat(targets), name=name, groups=torch.cat(groups))


def _read(root: str | Path | None, folder: str, file: str) -> dict[str, np.ndarray]:
    place = os.environ.get(VARIABLE) if root is None else root
    if not place:
        raise FileNotFoundError(
            f"{folder}/{file} is needed and {VARIABLE} is not set; set it to the folder that "
            f"holds {folder}/, or pass root=. The data comes from {_ORIGIN[folder]}."
        )
    path = Path(place) / folder / file
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; set {VARIABLE} (or root=) to the folder that holds "
            f"{folder}/{file}. The data comes from {_ORIGIN[folder]}."
        )
    with np.load(path) as data:
        return {key: data[key] for key in data.files}


def _tensor(rows: np.ndarray) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
