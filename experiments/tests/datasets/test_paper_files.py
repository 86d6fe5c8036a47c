"""The paper's own files, as small ones made here."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

from trustgp_experiments.datasets import load, recorded_split

REAL, SIM = (40, 40, 20, 20, 4, 4, 2), (50, 70, 20, 20, 4, 4, 2)


def made_up(n, seed=0):
    """Distinct rows; the first column is the time."""
    rows = np.random.default_rng(seed).normal(size=(n, 28))
    rows[:, 0] = np.arange(n)
    return rows


def write_sarcos(root, train, test):
    folder = root / "sarcos_official"
    folder.mkdir()
    savemat(folder / "sarcos_inv.mat", {"sarcos_inv": train})
    savemat(folder / "sarcos_inv_test.mat", {"sarcos_inv_test": test})


def write_kuka(root, files):
    for name, rows in files.items():
        path = root / "kuka-data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(path, rows, fmt="%.17g")


def together(recording):
    return torch.cat([recording.inputs, recording.targets], dim=1)


def test_no_test_row_of_sarcos_trains_though_its_file_lies_in_the_training_file(tmp_path):
    rows = made_up(110)
    write_sarcos(tmp_path, rows, rows[5::11])
    recording = load("sarcos_inv", root=tmp_path)
    assert torch.equal(together(recording), torch.from_numpy(rows))
    assert recording.recorded_test.nonzero()[:, 0].tolist() == list(range(5, 110, 11))
    split = recorded_split(recording, validation=0.1)
    assert split.test.tolist() == list(range(5, 110, 11))
    both = torch.cat([split.train, split.validation])
    assert set(both.tolist()).isdisjoint(split.test.tolist())
    assert len(both) == 100


def test_a_test_row_that_is_not_in_the_training_file_gets_its_place_in_time(tmp_path):
    rows = made_up(110)
    lost = np.arange(110) != 49
    write_sarcos(tmp_path, rows[lost], rows[5::11])
    recording = load("sarcos_inv", root=tmp_path)
    assert recording.inputs[:, 0].tolist() == list(range(110))
    assert recording.recorded_test[49]


def test_the_official_test_file_may_be_a_numpy_archive(tmp_path):
    rows = made_up(20)
    (tmp_path / "sarcos_official").mkdir()
    np.savez(tmp_path / "sarcos_official" / "sarcos_inv_test.npz", X=rows[:, :21], Y=rows[:, 21:])
    assert torch.equal(together(load("sarcos_official", root=tmp_path)), torch.from_numpy(rows))


@pytest.mark.parametrize("part", [1, 2])
def test_torques_of_the_real_kuka_come_back_in_newton_metres(tmp_path, part):
    rows = made_up(30)
    folder = f"kuka_real_dataset{part}/kuka{part}"
    write_kuka(tmp_path, {f"{folder}_online.txt": rows[:24], f"{folder}_offline.txt": rows[20:]})
    recording = load(f"kuka{part}", root=tmp_path)
    assert torch.equal(recording.inputs, torch.from_numpy(rows[:, :21]))
    assert torch.equal(recording.targets, torch.from_numpy(rows[:, 21:] * REAL))
    assert recording.recorded_test.nonzero()[:, 0].tolist() == list(range(20, 30))  # the common rows test


def test_the_four_parts_of_the_simulated_kuka_are_one(tmp_path):
    rows = made_up(50)
    parts = {f"kuka_sim_dataset/kuka_sim_train_part{i + 1}.txt": rows[10 * i : 10 * i + 10] for i in range(4)}
    write_kuka(tmp_path, {**parts, "kuka_sim_dataset/kuka_sim_test.txt": rows[40:]})
    recording = load("kuka_sim_meier", root=tmp_path)
    assert torch.equal(recording.inputs, torch.from_numpy(rows[:, :21]))
    assert torch.equal(recording.targets, torch.from_numpy(rows[:, 21:] * SIM))
    assert recording.recorded_test.sum() == 10


def test_torques_that_were_never_divided_are_refused(tmp_path):
    rows = made_up(30)
    rows[:, 21:] *= 60
    folder = "kuka_real_dataset1/kuka1"
    write_kuka(tmp_path, {f"{folder}_online.txt": rows[:20], f"{folder}_offline.txt": rows[20:]})
    with pytest.raises(ValueError, match="in N m already"):
        load("kuka1", root=tmp_path)
