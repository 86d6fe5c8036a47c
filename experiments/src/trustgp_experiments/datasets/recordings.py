"""Recordings of arms, and readers of the real ones that drop duplicate rows and repair known faults.

All of them are inverse dynamics of 7-joint arms, (q, dq, ddq) -> torques, except the 1-D `snelson`.
None is part of this package; the folder that holds them is named by ``TRUSTGP_DATA`` or ``root=``.
To test far from the data, take another arm's recording, scaled by the training set's statistics
(`trustgp_experiments.datasets.splits.standardise`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .files import Folder, read_mat, read_npz

Root = str | Path | None
COLUMNS = 28
_IAS = Folder("ias_inverse_dynamics", "github hanyas/mimo, its history: datasets/Sarcos, datasets/Barrett")
_KUKA = Folder("kuka_lwr4_flobaroid", "github kjyv/FloBaRoID, data/KUKA")
_KINOVA = Folder("kinova_gen3", "github wissem01chiha/dynamic-identification, pyDynaMapp/data/kinova")
_SNELSON = Folder("snelson", "github GPflow/GPflow, doc/sphinx/notebooks/theory/data")
_GPML = Folder("sarcos_official", "http://www.gaussianprocess.org/gpml/data/ (sarcos_inv_test.mat)")
_PARTS = {"sarcos": "sarcos_real", "sarcos_sim": "sarcos_sl_sim"}
_PARTS |= {"barrett": "barrett_real", "barrett_sim": "barrett_sl_sim"}
_KINOVA_RUNS = (
    "identification_data__RecordTrajectory_quadratic",
    "identification_data__RunTrajectory1",
    *(f"jointwise_motion__joint_{joint}_trapez" for joint in range(1, 8)),
    "validation_data__opti_traj_testing1",
    "validation_data__opti_traj_testing2",
)
_KUKA_KEYS = ("positions", "velocities", "accelerations", "torques")
_RUNS = {
    "kuka": (_KUKA, [f"HW_{run}" for run in (1, 2, 3)], _KUKA_KEYS),
    "kuka_sim": (_KUKA, [f"SIM_{run}" for run in (*range(1, 16), "opt_1")], _KUKA_KEYS),
    "kinova": (_KINOVA, _KINOVA_RUNS, ("q", "dq", "ddq_desired", "tau_current")),
}
# Runs that repeat (or closely follow) the motion of another one; the tests measure it.
_SAME_MOTION = {"kuka": {2: 1}, "kuka_sim": {3: 1, 13: 1, 12: 2}}
# Rows until a run of the real arm repeats itself: at 200 Hz, base frequencies of 0.5, 0.5 and 1 rad/s.
_PERIODS = (800 * math.pi, 800 * math.pi, 400 * math.pi)
ABSURD = 100.0  # rad/s^2; in the source, sane references end below 10 and faulty ones begin above 1e6


@dataclass(frozen=True)
class Recording:
    """Rows of one arm (or toy), in the order of time where the source has one."""

    inputs: Tensor  # (q, dq, ddq)                         [n, 21]
    targets: Tensor  # torques                             [n, 7]
    name: str
    groups: Tensor | None = None  # run or trajectory of each row  [n] int64
    motions: Tensor | None = None  # as groups, but runs of one motion share a number  [n] int64
    places: Tensor | None = None  # position of a row on its motion; repeats share one  [n] float64


def load(name: str, root: Root = None) -> Recording:
    """Read a recording, merged, without duplicate rows, ordered in time, in float64.

    * ``sarcos``, ``sarcos_sim``: the source's parts overlap, so they are merged (`merge_in_time`) without its
      split. The makers of `sarcos` resampled by linear interpolation: 3 rows in 10 lie exactly between their
      neighbours, so a random split leaks the test targets. Prefer `split_blocks`.
    * ``barrett``, ``barrett_sim``: one recording at 50 Hz; the source's test part is every fifth row.
    * ``kuka``: three runs, numbered 1 to 3 in ``groups``. Their motions are periodic, and 1 and 2 repeat
      one motion (``motions``): it occurs four times, and so does that of run 3. Rows of equal
      ``places`` are repeats of one state; a random split would test memory. Prefer `split_repeats`.
    * ``kuka_sim``: 16 runs, numbered from 1, periodic too; rigid-body torques without friction. 12 repeats
      2; 3 and 13 follow 1 closely (``motions``); and 1 is the motion of the real run 3 of ``kuka``.
    * ``kinova``: 11 runs; the accelerations are the controller's reference, none was measured. Rows whose
      reference is not finite or above `ABSURD` are dropped. The torques are those from the motor
      currents: the source's other torques carry no noise at all, so they are computed, not measured.
    * ``sarcos_official``: GPML's test file alone, in the order of time: a row every 0.11 s.
    * ``snelson``: 200 rows, 1 input, 1 output.
    """
    if name not in _LOADERS:
        raise ValueError(f"name={name!r} is unknown; choose one of {NAMES}.")
    return _LOADERS[name](name, root)


def _load_parts(name: str, root: Root) -> Recording:
    data = read_npz(_IAS.path(f"{_PARTS[name]}.npz", root))
    train, test = (np.concatenate([data[f"{k}_{part}"] for k in "XY"], axis=1) for part in ("train", "test"))
    return _recording(name, merge_in_time(train, test))


def _load_runs(name: str, root: Root) -> Recording:
    """Recording of runs, numbered from 1, one after another, without duplicate rows."""
    folder, files, keys = _RUNS[name]
    runs = []
    for file in files:
        data = read_npz(folder.path(f"{file}.npz", root))
        columns = [data[key].astype(np.float64) for key in keys]
        # a comparison with NaN is False
        sane = np.abs(columns[2]).max(axis=1) <= ABSURD if folder is _KINOVA else slice(None)
        runs.append(np.concatenate(columns, axis=1)[sane])
    rows = np.concatenate(runs)
    number = np.repeat(np.arange(1, len(runs) + 1), [len(run) for run in runs])
    kept, same = _first_places(rows) == np.arange(len(rows)), _SAME_MOTION.get(name, {})
    groups, motions = number[kept], torch.tensor([same.get(run, run) for run in number[kept].tolist()])
    places = _places(runs, same)[torch.from_numpy(kept)] if name == "kuka" else None
    return _recording(name, rows[kept], groups=torch.from_numpy(groups), motions=motions, places=places)


def _load_snelson(name: str, root: Root) -> Recording:
    data = read_npz(_SNELSON.path("snelson.npz", root))
    parts = (data[key] for key in ("train_inputs", "train_outputs"))
    x, y = (torch.tensor(part, dtype=torch.float64)[:, None] for part in parts)
    return Recording(x, y, name=name)


_LOADERS: dict[str, Callable[[str, Root], Recording]] = {
    **dict.fromkeys(_PARTS, _load_parts),
    **dict.fromkeys(_RUNS, _load_runs),
    "sarcos_official": lambda name, root: _recording(name, _without_duplicates(_gpml_test(root))),
    "snelson": _load_snelson,
}
NAMES = tuple(_LOADERS)


def _gpml_test(root: Root) -> np.ndarray:
    """Rows of GPML's test file, from MATLAB's format or a NumPy archive of X and Y."""
    if not _GPML.has("sarcos_inv_test.mat", root) and _GPML.has("sarcos_inv_test.npz", root):
        data = read_npz(_GPML.path("sarcos_inv_test.npz", root))
        return np.concatenate([data[key] for key in "XY"], axis=1)
    return read_mat(_GPML.path("sarcos_inv_test.mat", root), "sarcos_inv_test", COLUMNS)


def _places(runs: list[np.ndarray], same: dict[int, int]) -> Tensor:
    """Places [n] of rows on one axis, in rows, where the loops of all motions follow one another."""
    starts, length, places = {}, 0.0, []
    for number, (run, period) in enumerate(zip(runs, _PERIODS, strict=True), start=1):
        if (motion := same.get(number, number)) not in starts:
            starts[motion], length = length, length + period
        places.append(starts[motion] + torch.arange(len(run), dtype=torch.float64) % period)
    return torch.cat(places)


def _recording(name: str, rows: np.ndarray, **fields: Any) -> Recording:
    """Rows [n, 28], inputs and targets side by side, as a recording in float64."""
    both = torch.tensor(rows, dtype=torch.float64)
    return Recording(both[:, :21].clone(), both[:, 21:].clone(), name=name, **fields)


def _first_places(rows: np.ndarray) -> np.ndarray:
    """Index [n] of the first row that equals each row [n, d]."""
    _, first, group = np.unique(rows + 0.0, axis=0, return_index=True, return_inverse=True)
    return first[group]


def merge_in_time(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Put the rows of two overlapping or interleaved parts back in the order of time, each once.

    Both parts are thinned copies of one recording, each in time order. A row of the test part that is also a
    training row shows where the test part is; a row between two such rows gets the place between theirs,
    linearly. Without common rows the test part is taken to be every (n/m + 1)-th row, beginning with the
    first. Both rules give back a constant time step on the recordings they are used for (see the tests).

    The parts are [n, d] and [m, d], inputs and targets side by side, the distinct rows [k, d].
    """
    rows = np.concatenate([train, test]) + 0.0
    first = _first_places(rows)
    stamps = np.concatenate([np.arange(len(train)), _test_stamps(first[len(train) :], len(train))])
    distinct = np.flatnonzero(first == np.arange(len(rows)))
    return rows[distinct[np.argsort(stamps[distinct], kind="stable")]]


def _without_duplicates(rows: np.ndarray) -> np.ndarray:
    return (rows + 0.0)[_first_places(rows) == np.arange(len(rows))]


def _test_stamps(first: np.ndarray, n: int) -> np.ndarray:
    """Places of the test rows on the axis of training row numbers, shape [m]."""
    number = np.arange(len(first))
    common = np.flatnonzero(first < n)
    if len(common) < 2:
        return number * (n / max(len(first), 1)) - 0.5
    low, high = common[0], common[-1]
    step = (first[high] - first[low]) / (high - low)
    # np.interp is constant beyond its ends
    beyond = np.minimum(number - low, 0) + np.maximum(number - high, 0)
    return np.interp(number, common, first[common]) + step * beyond
