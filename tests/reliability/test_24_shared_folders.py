"""Promise 24: in a checkpoint's folder nothing foreign is touched, and a second fit is refused by a lock."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from reliability.forgeries import forge
from reliability.helpers import contents, listing, quiet_fit, trained

import trustgp
from trustgp.fitting import checkpoint
from trustgp.fitting import solve as solving
from trustgp.fitting.checkpoint import LOCK, locked

OPTIONS = {"num_experts": 3, "witness": None, "executor": trustgp.Threads(1)}


@pytest.fixture(scope="module")
def data():
    return trained(60, dtype=torch.float32)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The folder of a fit that is done, and what it has saved."""
    folder = tmp_path_factory.mktemp("whole")
    quiet_fit(data[0], data[1:], checkpoint=folder / "c", **OPTIONS).save(folder / "m")
    return folder / "c", (folder / "m").read_bytes()


FOREIGN = [  # the first: a save of somebody else, which is still being written
    ".model.trustgp.0123456789abcdef.part", ".download.part", ".fit.trustgp.part", "notes.txt", "fit.lock",
    ".expert-000-00000.trustgp.0123.part", "expert-notes.trustgp", "expert-0-1.txt",
]  # fmt: skip


def test_foreign_files_stay_as_they_are(data, whole, tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    for name in FOREIGN:
        (folder / name).write_bytes(name.encode())
    (folder / "data").mkdir()
    (folder / "data" / ".x.part").touch()
    own = [f".{name}.0123456789abcdef.part" for name in ("fit.trustgp", "expert-000-00002.trustgp")]
    for name in own:  # what a killed fit was writing
        (folder / name).touch()
    for _ in range(2):  # begun, and taken up again
        quiet_fit(data[0], data[1:], checkpoint=folder, **OPTIONS).save(tmp_path / "m")
        assert listing(folder) == sorted([*FOREIGN, "data", *listing(whole[0])])
        assert all((folder / name).read_bytes() == name.encode() for name in FOREIGN)
        assert listing(folder / "data") == [".x.part"]
        assert (tmp_path / "m").read_bytes() == whole[1]


@pytest.mark.parametrize("name", ["fit.trustgp", "expert-000-00001.trustgp"])
def test_a_foreign_file_with_one_of_our_names_is_not_written_over(data, tmp_path, name):
    (tmp_path / name).write_bytes(b"somebody's")
    with pytest.raises(trustgp.ArtifactError, match=r"Use another folder, or remove .* to start over"):
        quiet_fit(data[0], data[1:], checkpoint=tmp_path, **OPTIONS)
    assert contents(tmp_path) == {name: b"somebody's"}


def test_a_second_fit_in_the_folder_is_refused_and_the_first_goes_on(data, whole, tmp_path, monkeypatch):
    refused, real, folder = [], solving.solve_expert, tmp_path / "c"

    def solve(problem, task):
        if not refused:
            refused.append(None)
            before = contents(folder)
            with pytest.raises(BlockingIOError) as caught:
                quiet_fit(data[0], data[1:], checkpoint=folder, **OPTIONS)
            assert contents(folder) == before
            refused.append(str(caught.value))
        return real(problem, task)

    monkeypatch.setattr(solving, "solve_expert", solve)
    quiet_fit(data[0], data[1:], checkpoint=folder, **OPTIONS).save(tmp_path / "m")
    assert f"another fit uses the checkpoint {folder} (process {os.getpid()} on " in refused[1]
    assert "or use another folder" in refused[1]
    assert (tmp_path / "m").read_bytes() == whole[1]
    assert listing(folder) == listing(whole[0])  # the lock is gone


def test_a_file_for_a_folder_is_refused_before_the_data_are_read(data, tmp_path):
    (tmp_path / "file").touch()
    for path, message in ((tmp_path / "file", "is a file; name"), (tmp_path / "file" / "c", "be created")):
        with pytest.raises(NotADirectoryError, match=message):
            quiet_fit(data[0], iter(()), checkpoint=path, **OPTIONS)


def test_the_lock_file_of_a_killed_process_locks_nothing(tmp_path):
    """The system releases its lock; promise 12 kills whole fits."""
    (tmp_path / LOCK).write_text("process 1 on nowhere")
    me = f"process {os.getpid()} on"
    with locked(tmp_path), pytest.raises(BlockingIOError, match=me), locked(tmp_path):
        pass
    assert listing(tmp_path) == []


def test_a_lock_file_that_was_just_removed_locks_nothing(tmp_path, monkeypatch):
    """Its owner ends between the opening and the locking: the next must lock the file that others see."""
    real, removed = checkpoint.fcntl.flock, []

    def flock(file, how):
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        real(file, how)

    monkeypatch.setattr(checkpoint.fcntl, "flock", flock)
    with locked(tmp_path):
        assert listing(tmp_path) == [LOCK]
        with pytest.raises(BlockingIOError), locked(tmp_path):
            pass


def test_a_system_without_locks_says_so_and_goes_on(data, whole, tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.fcntl, "flock", refuse)
        with pytest.warns(UserWarning, match=r"cannot be locked \(Function not implemented\)"):
            quiet_fit(data[0], data[1:], checkpoint=tmp_path / "c", **OPTIONS).save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == whole[1]
    monkeypatch.setattr(checkpoint, "fcntl", None)  # as on Windows
    with pytest.warns(UserWarning, match=r"cannot be locked \(this system has no flock\)"), locked(tmp_path):
        pass


@pytest.mark.parametrize("case", ["own", "borrowed", "fewer"])
def test_an_expert_with_other_rows_is_solved_again(data, whole, tmp_path, case):
    """Its fingerprint and its checksum are right, as where another machine has divided the rows a little
    differently: taken as it is, some rows would have two experts, and others none."""
    folder = Path(shutil.copytree(whole[0], tmp_path / "c"))
    file = folder / "expert-000-00000.trustgp"

    def change(tensors):
        rows, own = tensors["expert.rows"], int(tensors["expert.own"])
        assert 0 < own < len(rows)
        if case == "own":
            rows[0] = next(row for row in range(60) if row not in rows.tolist())
        elif case == "borrowed":
            rows[-1] = rows[0]  # which nobody lends it
        else:
            tensors["expert.own"] -= 1

    file.write_bytes(forge(file.read_bytes(), tensors=change))
    quiet_fit(data[0], data[1:], checkpoint=folder, **OPTIONS).save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == whole[1]
