"""How are the files read that the paper itself used, where a user has them?

* SARCOS of GPML (``sarcos_inv.mat``, ``sarcos_inv_test.mat``), in the folder ``sarcos_official``.
* KUKA1, KUKA2 and KUKA SIM of Meier et al. 2014, in the folder ``kuka-data``, as a clone of their
  repository has them: text, a row per line, 21 inputs (q, dq, ddq) and then 7 torques, no header.
"""

from pathlib import Path

import numpy as np
import torch

from .files import Folder, read_mat, read_npz, read_text
from .recording import Recording, merge_in_time, stands_in, without_duplicates

COLUMNS = 28
GPML = Folder(
    "sarcos_official", "http://www.gaussianprocess.org/gpml/data/ (sarcos_inv.mat, sarcos_inv_test.mat)"
)
MEIER = Folder("kuka-data", "https://github.com/fmeier/kuka-data (clone it into that folder)")

_REAL_TORQUES = (40.0, 40.0, 20.0, 20.0, 4.0, 4.0, 2.0)  # N m for 1 in the files, joint by joint
_SIM_TORQUES = (50.0, 70.0, 20.0, 20.0, 4.0, 4.0, 2.0)
_STRONGEST = 1000.0  # N m; several times what any joint of that arm can do
_KUKA_PARTS = {
    "kuka1": (["kuka_real_dataset1/kuka1_online.txt"], "kuka_real_dataset1/kuka1_offline.txt"),
    "kuka2": (["kuka_real_dataset2/kuka2_online.txt"], "kuka_real_dataset2/kuka2_offline.txt"),
    "kuka_sim_meier": (
        [f"kuka_sim_dataset/kuka_sim_train_part{part}.txt" for part in (1, 2, 3, 4)],
        "kuka_sim_dataset/kuka_sim_test.txt",
    ),
}
PAPER_NAMES = ("sarcos_inv", "sarcos_official", *_KUKA_PARTS)


def load_sarcos_inv(root: str | Path | None) -> Recording:
    """GPML's training and test file as one, each row once.

    The test file lies inside the training file: who trains on the one and tests on the other tests memory.
    Here a row of both is a test row only (``recorded_test``), so `recorded_split` trains on no test row.
    The test file is in the order of time, about every eleventh row, so this split is as easy as a random one.
    """
    train = read_mat(GPML.path("sarcos_inv.mat", root), "sarcos_inv", COLUMNS)
    test = _gpml_test(root)
    rows, _ = merge_in_time(train, test)
    return _recording("sarcos_inv", rows, stands_in(rows, test))


def load_sarcos_official(root: str | Path | None) -> Recording:
    """GPML's test file alone, a small data set of its own, in the order of time: a row every 0.11 s."""
    return _recording("sarcos_official", without_duplicates(_gpml_test(root)), None)


def load_kuka_meier(name: str, root: str | Path | None) -> Recording:
    """KUKA1, KUKA2 or KUKA SIM, torques in N m, the source's test rows in ``recorded_test``.

    The files hold torques divided by one number for each joint: (40, 40, 20, 20, 4, 4, 2) N m on the real
    arm, (50, 70, 20, 20, 4, 4, 2) in simulation, the numbers in the paper's own code. They are multiplied
    back here, since another arm's torques, in N m, are to be comparable; the studies then standardise by
    the training rows, as the paper did, where a fixed scale cancels. The training part is the "online"
    file, the test part the "offline" one, again as in the paper; a row of both is a test row only.
    """
    train_files, test_file = _KUKA_PARTS[name]
    train = np.concatenate([read_text(MEIER.path(file, root), COLUMNS) for file in train_files])
    test = read_text(MEIER.path(test_file, root), COLUMNS)
    rows = without_duplicates(np.concatenate([train, test]))
    tested = stands_in(rows, test)
    rows[:, 21:] *= _SIM_TORQUES if name == "kuka_sim_meier" else _REAL_TORQUES
    strongest = np.abs(rows[:, 21:]).max()
    if strongest > _STRONGEST:
        raise ValueError(
            f"the torques of {name} would reach {strongest:.0f} N m; its files seem to be in N m already, "
            "and not divided by a number for each joint as in the source."
        )
    return _recording(name, rows, tested)


def _gpml_test(root: str | Path | None) -> np.ndarray:
    """The test file as MATLAB wrote it, or as a NumPy archive of X and Y."""
    if not GPML.has("sarcos_inv_test.mat", root) and GPML.has("sarcos_inv_test.npz", root):
        data = read_npz(GPML.path("sarcos_inv_test.npz", root))
        return np.concatenate([data["X"], data["Y"]], axis=1)
    return read_mat(GPML.path("sarcos_inv_test.mat", root), "sarcos_inv_test", COLUMNS)


def _recording(name: str, rows: np.ndarray, tested: np.ndarray | None) -> Recording:
    both = torch.tensor(rows, dtype=torch.float64)
    mask = None if tested is None else torch.from_numpy(tested)
    return Recording(both[:, :21].clone(), both[:, 21:].clone(), name=name, recorded_test=mask)
