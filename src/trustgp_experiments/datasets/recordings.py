"""How are the real recordings read, with their known faults repaired?

All of them are inverse dynamics of 7-joint arms, (q, dq, ddq) -> torques, except the 1-D `snelson`.
None is part of this package; the folder that holds them is named by ``TRUSTGP_DATA`` or ``root=``.
To test far from the data, take another arm's recording, scaled by the training set's statistics
(`trustgp_experiments.datasets.standardise`).
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .files import Folder, read_npz, verify
from .paper_files import PAPER_NAMES, load_kuka_meier, load_sarcos_inv, load_sarcos_official
from .recording import Recording, first_places, merge_in_time

__all__ = ["NAMES", "Recording", "load", "merge_in_time", "verify"]

_IAS = Folder(
    "ias_inverse_dynamics", "github hanyas/mimo, datasets/Sarcos and datasets/Barrett in its history"
)
_KUKA = Folder("kuka_lwr4_flobaroid", "github kjyv/FloBaRoID, data/KUKA")
_KINOVA = Folder("kinova_gen3", "github wissem01chiha/dynamic-identification, pyDynaMapp/data/kinova")
_SNELSON = Folder("snelson", "github GPflow/GPflow, doc/sphinx/notebooks/theory/data")
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
# Runs that repeat (or closely follow) the motion of another one; the tests measure it.
_SAME_MOTION = {"kuka": {2: 1}, "kuka_sim": {3: 1, 13: 1, 12: 2}}
# Rows until a run of the real arm repeats itself: at 200 Hz, base frequencies of 0.5, 0.5 and 1 rad/s.
_PERIODS = (800 * math.pi, 800 * math.pi, 400 * math.pi)
_KINOVA_RUNS = (
    "identification_data__RecordTrajectory_quadratic",
    "identification_data__RunTrajectory1",
    *(f"jointwise_motion__joint_{joint}_trapez" for joint in range(1, 8)),
    "validation_data__opti_traj_testing1",
    "validation_data__opti_traj_testing2",
)
ABSURD = 100.0  # rad/s^2; in the source, sane references end below 10 and faulty ones begin above 1e6
NAMES = (*_PARTS, *_RUNS, "kinova", *PAPER_NAMES, "snelson")


def load(name: str, root: str | Path | None = None) -> Recording:
    """Read a recording, merged, without duplicate rows, ordered in time, in float64.

    * ``sarcos``, ``sarcos_sim``: the source's train and test parts overlap, so they are merged
      (`merge_in_time`) and its split is dropped. `sarcos` was resampled by its makers with linear
      interpolation: 3 rows in 10 lie exactly on the line between their neighbours, so a random
      split puts the answer next to the question. Prefer `split_blocks`.
    * ``barrett``, ``barrett_sim``: the test part is every fifth row of one recording at 50 Hz, in
      ``recorded_test``; as easy as a random split.
    * ``kuka``: three runs, numbered 1 to 3 in ``groups``. Their motions are periodic, and 1 and 2 repeat
      one motion (``motions``): it is there four times, that of run 3 four times too. Rows of equal
      ``places`` are repeats of one state; a random split tests memory. Prefer `split_repeats`.
    * ``kuka_sim``: 16 runs, numbered from 1, periodic too; rigid-body torques without friction. 12 repeats
      2; 3 and 13 follow 1 closely (``motions``); and 1 is the motion of the real run 3 of ``kuka``.
    * ``kinova``: 11 runs; the accelerations are the controller's reference, none was measured. Rows whose
      reference is not finite or above `ABSURD` are dropped. The torques are those from the motor
      currents: the source's other torques carry no noise at all, so they are computed, not measured.
    * ``sarcos_inv``, ``sarcos_official``, ``kuka1``, ``kuka2``, ``kuka_sim_meier``: the paper's own
      files, see `trustgp_experiments.datasets.paper_files`.
    * ``snelson``: 200 rows, 1 input, 1 output.

    Where a folder holds a file SHA256SUMS, what it lists is checked before it is read.

    Args:
        name: One of `NAMES`.
        root: Folder of the data; the environment variable ``TRUSTGP_DATA`` when None.
    """
    if name in _PARTS:
        return _load_parts(name, root)
    if name in _RUNS:
        return _load_kuka(name, root)
    if name in PAPER_NAMES:
        single = {"sarcos_inv": load_sarcos_inv, "sarcos_official": load_sarcos_official}
        return single[name](root) if name in single else load_kuka_meier(name, root)
    if name == "kinova":
        return _load_kinova(root)
    if name == "snelson":
        data = read_npz(_SNELSON.path("snelson.npz", root))
        x, y = (_tensor(data[key])[:, None] for key in ("train_inputs", "train_outputs"))
        return Recording(x, y, name=name)
    raise ValueError(f"name={name!r} is unknown; choose one of {NAMES}.")


def _load_parts(name: str, root: str | Path | None) -> Recording:
    data = read_npz(_IAS.path(f"{_PARTS[name]}.npz", root))
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


def _load_kuka(name: str, root: str | Path | None) -> Recording:
    keys = ("positions", "velocities", "accelerations", "torques")
    runs = [read_npz(_KUKA.path(f"{run}.npz", root)) for run in _RUNS[name]]
    periods = _PERIODS if name == "kuka" else None
    return _joined(name, [np.concatenate([run[key] for key in keys], axis=1) for run in runs], periods)


def _load_kinova(root: str | Path | None) -> Recording:
    runs = []
    for run in _KINOVA_RUNS:
        data = read_npz(_KINOVA.path(f"{run}.npz", root))
        columns = [data[key].astype(np.float64) for key in ("q", "dq", "ddq_desired", "tau_current")]
        sane = np.abs(columns[2]).max(axis=1) <= ABSURD  # NaN compares False
        runs.append(np.concatenate(columns, axis=1)[sane])
    return _joined("kinova", runs)


def _joined(name: str, runs: list[np.ndarray], periods: Sequence[float] | None = None) -> Recording:
    """Runs, numbered from 1, one after another; a row that was there before is left out."""
    rows = np.concatenate(runs)
    number = np.repeat(np.arange(1, len(runs) + 1), [len(run) for run in runs])
    kept = torch.from_numpy(first_places(rows) == np.arange(len(rows)))
    same = _SAME_MOTION.get(name, {})
    motions = torch.tensor([same.get(run, run) for run in number.tolist()])
    both = _tensor(rows)[kept]
    return Recording(
        both[:, :21].clone(),
        both[:, 21:].clone(),
        name=name,
        groups=torch.from_numpy(number)[kept],
        motions=motions[kept],
        places=None if periods is None else _places(runs, periods, same)[kept],
    )


def _places(runs: list[np.ndarray], periods: Sequence[float], same: dict[int, int]) -> Tensor:
    """The loops of all motions one after another on one axis, in rows, shape [n]."""
    starts, length, places = {}, 0.0, []
    for number, (run, period) in enumerate(zip(runs, periods, strict=True), start=1):
        if (motion := same.get(number, number)) not in starts:
            starts[motion], length = length, length + period
        places.append(starts[motion] + torch.arange(len(run), dtype=torch.float64) % period)
    return torch.cat(places)


def _tensor(rows: np.ndarray) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
