import os

import numpy as np
import pytest
import torch
from scipy.io import savemat

from trustgp_experiments.datasets import load, recordings

needs_data = pytest.mark.skipif("TRUSTGP_DATA" not in os.environ, reason="TRUSTGP_DATA is not set")


def made_up(n, *, columns=28):
    """Distinct rows whose first column is the time."""
    rows = np.random.default_rng(0).normal(size=(n, columns))
    rows[:, 0] = np.arange(n)
    return rows


def write_parts(root, name, train, test):
    folder = root / "ias_inverse_dynamics"
    folder.mkdir(exist_ok=True)
    parts = {"train": train, "test": test}
    arrays = {f"X_{part}": rows[:, :21] for part, rows in parts.items()}
    arrays |= {f"Y_{part}": rows[:, 21:] for part, rows in parts.items()}
    np.savez(folder / f"{name}.npz", **arrays)


def parts_of(rows, absent, tested):
    """Train lacks one of so many rows, from a start; test is every so manieth one."""
    number = np.arange(len(rows))
    return rows[number % absent[0] != absent[1]], rows[number % tested == 0]


# as their makers thinned them
THINNED = {"sarcos": ((6, 3), 3), "barrett": ((5, 0), 5)}


def test_the_parts_of_sarcos_and_barrett_are_merged_without_duplicates(tmp_path):
    rows = made_up(60)
    for name in ("sarcos", "barrett"):
        write_parts(tmp_path, f"{name}_real", *parts_of(rows, *THINNED[name]))
        recording = load(name, root=tmp_path)
        assert torch.equal(recording.inputs, torch.from_numpy(rows[:, :21]))
        assert torch.equal(recording.targets, torch.from_numpy(rows[:, 21:]))


def test_the_runs_of_the_kuka_are_numbered(tmp_path):
    folder = tmp_path / "kuka_lwr4_flobaroid"
    folder.mkdir()
    keys = ("positions", "velocities", "accelerations", "torques")
    for run in (1, 2, 3):
        rows = np.arange(run)[:, None] / 10 + np.zeros((run, 7))
        arrays = {key: 10.0 * run + at + rows for at, key in enumerate(keys)}
        np.savez(folder / f"HW_{run}.npz", **arrays)
    recording = load("kuka", root=tmp_path)
    assert recording.groups.tolist() == [1, 2, 2, 3, 3, 3]
    assert recording.inputs[0].tolist() == [10.0] * 7 + [11.0] * 7 + [12.0] * 7
    assert recording.targets[-1].tolist() == [33.2] * 7
    assert recording.motions.tolist() == [1, 1, 1, 3, 3, 3]
    assert recording.places[:3].tolist() == [0, 0, 1]


def test_absurd_accelerations_of_the_kinova_are_dropped_and_the_runs_numbered(tmp_path):
    """Every run has the same rows, and torques of its own."""
    folder, ones = tmp_path / "kinova_gen3", np.ones((6, 7), dtype=np.float32)
    folder.mkdir()
    ddq = np.repeat(np.array([1.0, np.nan, np.inf, -1e283, -9.0, 101.0])[:, None], 7, axis=1)
    for number, run in enumerate(recordings._KINOVA_RUNS):
        measured = (number + np.arange(6)[:, None] / 10) * ones
        arrays = {"q": ones, "dq": 2 * ones, "tau": 99 * ones, "tau_current": measured, "ddq_desired": ddq}
        np.savez(folder / f"{run}.npz", time=np.arange(6), **arrays)
    recording = load("kinova", root=tmp_path)
    assert recording.groups.tolist() == [run for run in range(1, 12) for _ in range(2)]
    assert recording.inputs[:2, 14].tolist() == [1.0, -9.0]
    assert recording.inputs[:, :14].unique(dim=0).tolist() == [[1.0] * 7 + [2.0] * 7]
    torch.testing.assert_close(recording.targets[:2, 0], torch.tensor([0.0, 0.4], dtype=torch.float64))


def time_steps(recording):
    """The step that explains each move: dt = dq . v / v . v, v the mean of both velocities."""
    q, v = recording.inputs[:, :7], recording.inputs[:, 7:14]
    mean = (v[1:] + v[:-1]) / 2
    return ((q[1:] - q[:-1]) * mean).sum(1) / mean.square().sum(1).clamp_min(1e-12)


ROWS = {"sarcos": 16_706, "sarcos_sim": 15_456, "kuka": 15_081, "kuka_sim": 50_223}


@needs_data
@pytest.mark.parametrize(("name", "rows"), ROWS.items())
def test_every_recording_has_its_rows_as_float64(name, rows):
    recording = load(name)
    assert recording.inputs.shape == (rows, 21)
    assert recording.targets.shape == (rows, 7)
    assert recording.inputs.dtype == recording.targets.dtype == torch.float64
    assert recording.inputs.isfinite().all()
    assert recording.targets.isfinite().all()


@needs_data
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("sarcos", (1 / 480, 1 / 240)),  # a test-only row stands half-way between its neighbours
        ("sarcos_sim", (0.021, 0.042)),  # two rows in thirty are in neither part
        ("barrett", (0.02,)),
        ("barrett_sim", (0.02,)),
    ],
)
def test_merged_recordings_are_in_the_order_of_time(name, steps):
    taken = time_steps(load(name))
    nearest = torch.stack([(taken / step - 1).abs() for step in steps]).amin(0)
    # The rest: rows at rest, joins between motions, and filtered velocities.
    assert (nearest < 0.25).double().mean() > 0.98
    assert (taken > 0).double().mean() > 0.995


@needs_data
def test_rows_of_equal_places_are_one_state_of_the_kuka():
    recording = load("kuka")
    rows, places = recording.inputs / recording.inputs.std(0), recording.places
    apart = (places[:, None] - places[None, ::50]).abs()
    rounds = (recording.groups[:, None] != recording.groups[None, ::50]) & (apart < 0.6)
    distances = torch.cdist(rows, rows[::50])[rounds]
    assert len(distances) > 300
    assert distances.median() < 0.1


@needs_data
def test_kinova_has_its_rows_but_for_the_absurd_ones_and_the_repeated_ones():
    recording = load("kinova")
    assert recording.inputs.shape == (53_180, 21)
    assert recording.inputs[:, 14:].abs().max() < 10  # any limit from here to 1e6 drops the same rows
    assert recording.groups.unique().tolist() == list(range(1, 12))
    assert recording.targets.isfinite().all()


def test_the_official_test_file_of_sarcos_may_be_of_matlab_or_a_numpy_archive(tmp_path):
    rows = made_up(20)
    folder = tmp_path / "sarcos_official"
    folder.mkdir()
    np.savez(folder / "sarcos_inv_test.npz", X=rows[:, :21], Y=rows[:, 21:])
    archive = load("sarcos_official", root=tmp_path)
    (folder / "sarcos_inv_test.npz").unlink()
    savemat(folder / "sarcos_inv_test.mat", {"sarcos_inv_test": rows})
    for recording in (archive, load("sarcos_official", root=tmp_path)):
        both = torch.cat([recording.inputs, recording.targets], dim=1)
        assert torch.equal(both, torch.from_numpy(rows))
