"""Promise 15: a save that fails leaves the old file as it was, and nothing half-written under its name."""

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest
from reliability.helpers import listing, mlp, python, quiet_fit, rows

import trustgp
from trustgp.data.atomic_file import atomic_file

OLD = b"the file before"


@pytest.fixture
def place(gram_file, tmp_path):
    """A folder with an old file in it, and a loaded model to be saved over it."""
    path = tmp_path / "model.trustgp"
    path.write_bytes(OLD)
    return trustgp.load(gram_file.path, gram_file.network), path


def untouched(path: Path) -> bool:
    return path.read_bytes() == OLD and listing(path.parent) == [path.name]


KILLED = """
import random, sys
from pathlib import Path
import trustgp
from trustgp.data.tensor_file import read, write
import torch
from reliability.helpers import killed_when, listing

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
path = folder / "model.trustgp"
tables = [{f"t{i}": torch.full((60_000,), float(i + k)) for i in range(20)} for k in (0, 1)]
whole = []
for table in tables:
    write(path, kind="k", text={}, tensors=table)
    whole.append(path.read_bytes())

def save_for_ever():
    while True:
        for table in tables:
            write(path, kind="k", text={}, tensors=table)

chance, litter = random.Random(0), 0
for _ in range(kills):
    killed_when(save_for_ever, lambda: len(listing(folder)) > 1, chance.uniform(0, 0.01))
    assert path.read_bytes() in whole, "a half-written file"
    read(path, kind="k")
    for name in listing(folder):
        if name != path.name:
            assert name.startswith(".model.trustgp.") and name.endswith(".part"), name
            (folder / name).unlink()
            litter += 1
print(litter)
"""


def test_a_kill_leaves_a_whole_file(tmp_path):
    """The temporary files that are left show that the kills did hit a save."""
    assert int(python(KILLED, tmp_path, 15)) >= 1
    assert listing(tmp_path) == ["model.trustgp"]


@contextmanager
def files_of_at_most(size: int):
    """In place of a full disk."""
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_full_disk_leaves_the_old_file(place, gram_file):
    model, path = place
    size = len(gram_file.content)
    for limit in (0, 1, 8, 100, 4096, size // 2, size - 1):
        with files_of_at_most(limit), pytest.raises(OSError, match="the file before it is intact") as caught:
            model.save(path)
        assert caught.value.errno == errno.EFBIG
        assert untouched(path)
    with files_of_at_most(size):
        model.save(path)
    assert path.read_bytes() == gram_file.content


def test_a_checkpoint_that_cannot_be_written_ends_with_a_message_and_resumes_later(tmp_path):
    """The largest expert does not fit."""
    network, data = mlp(2, 8, 2), rows(200)

    def fit(name: str) -> bytes:
        options = {"num_experts": 4, "checkpoint": tmp_path / name, "executor": trustgp.Threads(1)}
        quiet_fit(network, data, **options).save(tmp_path / f"{name}.trustgp")
        return (tmp_path / f"{name}.trustgp").read_bytes()

    whole = fit("whole")
    sizes = sorted(path.stat().st_size for path in (tmp_path / "whole").glob("expert-*"))
    with files_of_at_most(sizes[2]), pytest.raises(OSError, match="was not written") as caught:
        fit("full")
    experts = [name for name in listing(tmp_path / "full") if name.startswith("expert-")]
    assert listing(tmp_path / "full") == [*experts, "fit.trustgp"]  # nothing half-written
    assert len(experts) < 4
    assert f"{len(experts)} solved expert" in str(caught.value) or not experts
    assert f"in {tmp_path / 'full'}; the same call resumes from there." in str(caught.value)
    assert fit("full") == whole


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_of_the_disk_or_an_interruption_leaves_the_old_file(place, monkeypatch, call):
    model, path = place
    codes = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
    for error in (*(OSError(code, "a fault") for code in codes), KeyboardInterrupt(), MemoryError()):

        def fail(*arguments, error=error):
            raise error

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(type(error)) as caught:
            model.save(path)
        if isinstance(error, OSError):
            assert caught.value.errno == error.errno
            assert "was not written; the file before it is intact: a fault" in str(caught.value)
        assert untouched(path)


def test_a_rename_is_brought_to_the_disk(place, monkeypatch):
    """By fsync of the file before it, and of the folder after it: without, a power failure may undo it."""
    (model, path), done, fsync, replace = place, [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.fstat(file).st_ino), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append(str(paths[1])), replace(*paths)))
    model.save(path)
    assert done == [path.stat().st_ino, str(path), path.parent.stat().st_ino]


def test_places_that_cannot_be_written_are_named(place, tmp_path):
    """/proc refuses everybody, the superuser too; of a pipe the superuser would lose /dev/null."""
    model, path = place
    places = [
        (tmp_path / "nowhere" / "m", FileNotFoundError, "cannot write in the folder of"),
        (path / "m", NotADirectoryError, "cannot write in the folder of"),
        (Path("/proc/model.trustgp"), OSError, "cannot write in the folder of"),
        (tmp_path / "folder", IsADirectoryError, "folder was not written: .* is a folder; name a file"),
        (tmp_path / "pipe", OSError, "pipe was not written: .* is not an ordinary file"),
        (tmp_path / "loop", OSError, "loop was not written: .* is not an ordinary file"),
    ]
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for target, error, message in places:
        with pytest.raises(error, match=message):
            model.save(target)
    assert path.read_bytes() == OLD
    assert listing(tmp_path) == ["folder", "loop", path.name, "pipe"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_new_file_has_the_mode_of_the_users_mask_and_a_replaced_one_its_own(place, tmp_path, monkeypatch):
    """Not even while it is written is what replaces a secret file open to others."""
    model, path = place
    for mask in (0o022, 0o077, 0o000):
        before = os.umask(mask)
        model.save(tmp_path / "new")
        os.umask(before)
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask
        (tmp_path / "new").unlink()
    modes, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (modes.append(os.fstat(file).st_mode & 0o777), fsync(file)))
    for mode in (0o600, 0o640, 0o444, 0o000):
        path.chmod(mode)
        with atomic_file(path) as temporary:
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        assert modes[-2] == stat.S_IMODE(path.stat().st_mode) == mode  # the last is the folder's
    assert listing(tmp_path) == [path.name]


def test_a_link_stays_a_link_and_its_target_is_written(place, tmp_path):
    """The temporary file is beside the target: the link may be on another disk."""
    model, path = place
    (tmp_path / "links").mkdir()
    targets = {"relative": Path("..") / path.name, "absolute": path, "new": tmp_path / "new"}
    for name, target in targets.items():
        link = tmp_path / "links" / name
        link.symlink_to(target)
        path.write_bytes(OLD)
        model.save(link)
        assert link.is_symlink()
        assert link.read_bytes() != OLD
        assert listing(link.parent) == [name]
        link.unlink()
    assert listing(tmp_path) == ["links", path.name, "new"]


def test_every_writer_is_the_same():
    """Nobody renames or writes on their own."""
    source = Path(trustgp.__file__).parent
    own = ("os.replace(", "os.rename(", ".rename(", "os.fsync(", "NamedTemporaryFile(", "mkstemp(")
    writers = {path.name for path in source.rglob("*.py") if any(word in path.read_text() for word in own)}
    assert writers == {"atomic_file.py"}


def test_a_writer_of_a_named_file_that_fails_leaves_nothing(tmp_path):
    """As packages and bags are written; of others see above."""
    path = tmp_path / "m"
    path.write_bytes(OLD)
    with pytest.raises(ZeroDivisionError), atomic_file(path, named=True) as made:
        made.write_bytes(b"half" * (made.write_bytes(b"half") // 0))
    assert untouched(path)
