"""Promise 15: a save that fails leaves the old file as it was, and nothing half-written under its name."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from reliability.helpers import forked, listing

import trustgp
from trustgp.data.atomic_file import atomic_file
from trustgp.data.tensor_file import read, write

OLD = b"the file before"


@pytest.fixture
def place(gram_file, tmp_path):
    """A folder with an old file in it, and a loaded model to be saved over it."""
    path = tmp_path / "model.trustgp"
    path.write_bytes(OLD)
    return trustgp.load(gram_file.path, gram_file.network), path


def untouched(path: Path) -> bool:
    return path.read_bytes() == OLD and listing(path.parent) == [path.name]


FULL = """
import json, resource, sys
import trustgp
from pathlib import Path
from reliability.helpers import listing, mlp, quiet_fit, rows

folder = Path(sys.argv[1])
path = folder / "model.trustgp"
network, data = mlp(2, 8, 2), rows(200)
model = quiet_fit(network, data, num_experts=2)
model.save(path)
old = path.read_bytes()
other = quiet_fit(network, data, num_experts=2, seed=1)
report = []
for limit in (0, 1, 8, 100, 4096, len(old) // 2, len(old) - 1, resource.RLIM_INFINITY):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        other.save(path)
        error = None
    except OSError as caught:
        error = [caught.errno, str(caught)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    trustgp.load(path, network)
    report.append([error, path.read_bytes() == old, listing(folder)])
print(json.dumps(report))
"""
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
REFUSED = """
import json, os, resource, shutil, sys, tempfile
from pathlib import Path
import trustgp
from reliability.helpers import listing, mlp, quiet_fit, rows

folder, network, data = Path(sys.argv[1]), mlp(2, 8, 2), rows(200)

def fit(name):
    model = quiet_fit(network, data, num_experts=4, checkpoint=folder / name, executor=trustgp.Threads(1))
    model.save(folder / f"{name}.trustgp")
    return model

model = fit("whole")
sizes = {path.name: path.stat().st_size for path in (folder / "whole").glob("expert-*")}
resource.setrlimit(resource.RLIMIT_FSIZE, (sorted(sizes.values())[2], resource.RLIM_INFINITY))
report = []
try:
    fit("full")
except OSError as error:
    report.append(str(error))
report.append(listing(folder / "full"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
fit("full")
report.append((folder / "full.trustgp").read_bytes() == (folder / "whole.trustgp").read_bytes())
place = Path(tempfile.mkdtemp())  # which somebody else may enter
model.save(place / "model")
place.chmod(0o555)
folder.chmod(0o555)
if os.geteuid() == 0:  # the superuser may write anywhere: become somebody else
    os.setegid(65534)
    os.seteuid(65534)
for work in (lambda: fit("locked"), lambda: model.save(place / "model")):
    try:
        work()
    except PermissionError as error:
        report.append(str(error))
os.seteuid(os.getuid())
report.append((place / "model").read_bytes() == (folder / "whole.trustgp").read_bytes())
report[-1] &= listing(place) == ["model"]
folder.chmod(0o755)
shutil.rmtree(place)
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders, and the output of the codes of this file that need a process of their own."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("full", "killed", "refused")}
    inner = folders["refused"] / "inner"
    inner.mkdir()
    for place in (folders["refused"], inner):
        place.chmod(0o755)
    codes = {
        "full": (FULL, [folders["full"]]),
        "killed": (KILLED, [folders["killed"], 15]),
        "refused": (REFUSED, [inner]),
    }
    return folders, dict(zip(codes, forked(*codes.values()), strict=True))


def test_a_full_disk_and_a_kill_leave_a_whole_file(runs):
    """In one new process: a limit on the size of files, which nothing but a process of its own can have,
    replaces the full disk; the temporary files that are left show that the kills did hit a save."""
    *failed, last = json.loads(runs[1]["full"])
    for error, same, names in failed:
        assert error[0] == errno.EFBIG
        assert "model.trustgp was not written; the file before it is intact" in error[1]
        assert same
        assert names == ["model.trustgp"]
    assert last == [None, False, ["model.trustgp"]]
    assert int(runs[1]["killed"]) >= 1
    assert listing(runs[0]["killed"]) == ["model.trustgp"]


def test_a_checkpoint_that_cannot_be_written_ends_with_a_message_and_goes_on_later(runs):
    """Of the same process: the largest expert does not fit."""
    inner = runs[0]["refused"] / "inner"
    full, names, same, locked, unwritten, intact = json.loads(runs[1]["refused"])
    experts = [name for name in names if name.startswith("expert-")]
    assert "was not written" in full
    assert f"{len(experts)} solved expert" in full or not experts
    assert f"in {inner / 'full'}; the same call resumes from there." in full
    assert set(names) == {"fit.trustgp", *experts}  # nothing half-written
    assert len(experts) < 4
    assert same
    assert "the folder of the checkpoint" in locked
    assert "Permission denied" in locked
    assert "cannot write in the folder of" in unwritten
    assert "Permission denied" in unwritten
    assert intact


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

    def seen(handle):
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", seen)
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
    found = {path.name for path in source.rglob("*.py") if any(word in path.read_text() for word in own)}
    assert found == {"atomic_file.py"}


@pytest.mark.parametrize("named", [False, True])
def test_a_writer_that_fails_leaves_nothing(tmp_path, named):
    path = tmp_path / "m"
    path.write_bytes(OLD)
    with pytest.raises(ZeroDivisionError), atomic_file(path, named=named) as made:
        made.write_bytes(b"half" * (made.write_bytes(b"half") // 0))
    assert untouched(path)
    with atomic_file(path, named=named) as made:
        made.write_bytes(b"whole")
    assert path.read_bytes() == b"whole"
    assert listing(tmp_path) == ["m"]


def test_tensors_come_back_to_the_bit(tmp_path, monkeypatch):
    """All kinds that are written, of any shape, also views, empty ones and two of the same memory."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    table = {"wide": wide.T, "same": wide, "whole": torch.arange(5)[::2], "none": torch.empty(0, 3)}
    table |= {str(t): wide[0].to(t) for t in (torch.float32, torch.float16, torch.bfloat16, torch.bool)}
    table["scalar"] = wide[0, 0]
    monkeypatch.chdir(tmp_path)
    write(Path("m"), kind="k", text={"a": [1, "ü"]}, tensors=table)
    text, tensors = read(tmp_path / "m", kind="k")
    assert text == {"a": [1, "ü"]}
    assert tensors.keys() == table.keys()
    for name, value in table.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)
