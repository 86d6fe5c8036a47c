"""Promise 15: a save that fails leaves the old file as it was, and nothing half-written under its name."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from reliability.helpers import forked, listing, quiet_fit, trained

import trustgp
from trustgp.data import tensor_file as safefile
from trustgp.data.atomic_file import atomic_file


@pytest.fixture
def place(saved, tmp_path):
    """A folder with an old file in it, and a loaded model to be saved over it."""
    path = tmp_path / "model.trustgp"
    path.write_bytes(b"what stood there before")
    return trustgp.load(saved.path, saved.network), path


def untouched(path: Path) -> bool:
    return path.read_bytes() == b"what stood there before" and listing(path.parent) == [path.name]


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
for limit in (0, 1, 8, 100, 4096, len(old) // 2, len(old) - 1):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        other.save(path)
        said = None
    except OSError as error:
        said = [error.errno, str(error)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    trustgp.load(path, network)
    report.append([limit, said, path.read_bytes() == old, listing(folder)])
other.save(path)
trustgp.load(path, network)
report.append([None, None, path.read_bytes() != old, listing(folder)])
print(json.dumps(report))
"""


class Runs(NamedTuple):
    """Folders, and what was printed by the codes of this file that need a process of their own."""

    folders: dict[str, Path]
    said: dict[str, str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("full", "killed", "refused")}
    inner = folders["refused"] / "inner"
    inner.mkdir()
    for place in (folders["refused"], inner):
        place.chmod(0o755)
    codes = {
        "full": (FULL, [folders["full"]]),
        "read-only": (READ_ONLY, []),
        "killed": (KILLED, [folders["killed"], 15]),
        "refused": (REFUSED, [inner]),
    }
    return Runs(folders, dict(zip(codes, forked(*codes.values()), strict=True)))


def test_a_full_disk_leaves_the_old_file(runs):
    """A limit on the size of files stands in for the disk: the write stops at the same place."""
    *failed, last = json.loads(runs.said["full"])
    for limit, said, same, names in failed:
        assert said is not None, f"a save of more than {limit} bytes went through"
        assert said[0] == errno.EFBIG
        assert "model.trustgp was not written; what stood there before is intact" in said[1]
        assert same
        assert names == ["model.trustgp"]
    assert last == [None, None, True, ["model.trustgp"]]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_of_the_disk_leaves_the_old_file(place, monkeypatch, call, code):
    model, path = place

    def fail(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(safefile.os, call, fail)
    with pytest.raises(OSError, match="was not written; what stood there before is intact") as caught:
        model.save(path)
    assert caught.value.errno == code
    assert untouched(path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interruption_leaves_the_old_file(place, monkeypatch, error):
    model, path = place

    def interrupt(*arguments):
        raise error

    monkeypatch.setattr(safefile.os, "fsync", interrupt)
    with pytest.raises(error):
        model.save(path)
    assert untouched(path)


def test_a_folder_that_does_not_exist(place, tmp_path):
    model, path = place
    with pytest.raises(FileNotFoundError, match="cannot write in the folder of"):
        model.save(tmp_path / "nowhere" / "model.trustgp")
    assert untouched(path)


def test_a_folder_that_is_a_file(place):
    model, path = place
    with pytest.raises(NotADirectoryError, match="cannot write in the folder of"):
        model.save(path / "model.trustgp")
    assert untouched(path)


def test_a_name_that_is_a_folder(place, tmp_path):
    model, path = place
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match=r"folder was not written: .* is a folder; name a file"):
        model.save(tmp_path / "folder")
    assert listing(tmp_path) == ["folder", path.name]


def test_a_file_system_that_cannot_be_written(place):
    """/proc refuses everybody, the superuser too."""
    with pytest.raises(OSError, match="cannot write in the folder of"):
        place[0].save(Path("/proc/model.trustgp"))


READ_ONLY = """
import os, sys, tempfile
from pathlib import Path
from trustgp.data import tensor_file as safefile
import torch
from reliability.helpers import listing

folder = Path(tempfile.mkdtemp())
path = folder / "model.trustgp"
safefile.write(path, kind="k", text={}, tensors={"a": torch.zeros(9)})
old = path.read_bytes()
folder.chmod(0o555)
if os.geteuid() == 0:  # the superuser may write anywhere: become somebody else
    os.setegid(65534)
    os.seteuid(65534)
try:
    safefile.write(path, kind="k", text={}, tensors={"a": torch.ones(9)})
    print("written")
except PermissionError as error:
    print(error)
os.seteuid(os.getuid())
print(path.read_bytes() == old, listing(folder))
folder.chmod(0o755)
path.unlink()
folder.rmdir()
"""


def test_a_read_only_folder(runs):
    said, state = runs.said["read-only"].splitlines()
    assert "cannot write in the folder of" in said
    assert "Permission denied" in said
    assert state == "True ['model.trustgp']"


KILLED = """
import random, sys
from pathlib import Path
import trustgp
from trustgp.data import tensor_file as safefile
import torch
from reliability.helpers import killed_when, listing

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
path = folder / "model.trustgp"
tables = [{f"t{i}": torch.full((60_000,), float(i + k)) for i in range(20)} for k in (0, 1)]
whole = []
for table in tables:
    safefile.write(path, kind="k", text={}, tensors=table)
    whole.append(path.read_bytes())

def save_for_ever():
    while True:
        for table in tables:
            safefile.write(path, kind="k", text={}, tensors=table)

chance, litter = random.Random(0), 0
for _ in range(kills):
    killed_when(save_for_ever, lambda: len(listing(folder)) > 1, chance.uniform(0, 0.05))
    assert path.read_bytes() in whole, "a half-written file"
    safefile.read(path, kind="k")
    for name in listing(folder):
        if name != path.name:
            assert name.startswith(".model.trustgp.") and name.endswith(".part"), name
            (folder / name).unlink()
            litter += 1
print(litter)
"""


def test_a_kill_in_the_middle_of_a_save_leaves_a_whole_file(runs):
    """Fifteen times; the temporary files that are left show that the kills did hit a save."""
    assert int(runs.said["killed"]) >= 3
    assert listing(runs.folders["killed"]) == ["model.trustgp"]


def test_a_saved_file_may_be_read_by_others(saved, tmp_path):
    """As any new file, by the user's own mask: not by its owner alone, as temporary files are."""
    model = trustgp.load(saved.path, saved.network)
    before = os.umask(0o027)
    try:
        model.save(tmp_path / "m")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o000])
def test_a_file_that_is_replaced_keeps_its_mode(place, mode):
    model, path = place
    path.chmod(mode)
    model.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert listing(path.parent) == [path.name]


def test_what_replaces_a_secret_file_is_never_open_to_others(place, monkeypatch):
    """Not even while it is written."""
    model, path = place
    path.chmod(0o600)
    modes, fsync = [], os.fsync

    def seen(handle):
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        fsync(handle)

    def open_(file, *arguments, **options):
        modes.append(stat.S_IMODE(os.stat(file).st_mode))
        return open(file, *arguments, **options)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(safefile, "open", open_, raising=False)
    model.save(path)
    assert modes[:2] == [0o600, 0o600]


@pytest.mark.parametrize("relative", [False, True])
def test_a_link_stays_a_link_and_its_target_is_written(place, tmp_path, relative):
    """The temporary file stands beside the target: the link may be on another disk."""
    model, path = place
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "latest"
    link.symlink_to(Path("..") / path.name if relative else path)
    path.chmod(0o600)
    model.save(link)
    assert link.is_symlink()
    assert path.read_bytes() != b"what stood there before"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (listing(tmp_path), listing(link.parent)) == (["links", path.name], ["latest"])


def test_a_link_that_leads_nowhere_yet_is_followed(place, tmp_path):
    (tmp_path / "latest").symlink_to(tmp_path / "new")
    place[0].save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "new").is_file()


def test_what_is_no_file_is_not_replaced(place, tmp_path):
    """As a superuser one would lose /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "loop"):
        with pytest.raises(OSError, match=f"{name} was not written: .* is no ordinary file"):
            place[0].save(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "loop").is_symlink()


def test_every_writer_is_the_same(tmp_path):
    """Nobody renames or writes by himself."""
    source = Path(trustgp.__file__).parent
    own = ("os.replace(", "os.rename(", ".rename(", "os.fsync(", "NamedTemporaryFile(", "mkstemp(")
    found = {path.name for path in source.rglob("*.py") if any(word in path.read_text() for word in own)}
    assert found == {"atomic_file.py"}


@pytest.mark.parametrize("named", [False, True])
def test_a_writer_that_fails_leaves_nothing(tmp_path, named):
    path = tmp_path / "m"
    path.write_bytes(b"what stood there before")
    with pytest.raises(ZeroDivisionError), atomic_file(path, named=named) as made:
        made.write_bytes(b"half" * (made.write_bytes(b"half") // 0))
    assert untouched(path)
    with atomic_file(path, named=named) as made:
        made.write_bytes(b"whole")
    assert path.read_bytes() == b"whole"
    assert listing(tmp_path) == ["m"]


def test_a_folder_is_written_whole(tmp_path):
    with atomic_file(tmp_path / "bag", named=True) as made:
        made.mkdir()
        (made / "a").write_bytes(b"a")
        assert len(listing(tmp_path)) == 1
        assert listing(tmp_path) != ["bag"]
    assert listing(tmp_path) == ["bag"]
    assert listing(tmp_path / "bag") == ["a"]


def test_a_relative_path_is_saved_in_the_working_folder(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trustgp.load(saved.path, saved.network).save("m.trustgp")
    assert listing(tmp_path) == ["m.trustgp"]
    assert (tmp_path / "m.trustgp").read_bytes() == saved.path.read_bytes()


def test_a_checkpoint_on_a_full_disk_keeps_what_it_has(tmp_path, monkeypatch):
    network, x, y = trained(80)
    options = {"num_experts": 4, "checkpoint": tmp_path / "c", "executor": trustgp.Threads(1)}
    written, real = [], os.fsync

    def fsync(handle):
        if stat.S_ISREG(os.fstat(handle).st_mode):
            written.append(handle)
            if len(written) == 4:  # the note, two experts, and then no more
                raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(safefile.os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left on device"):
        quiet_fit(network, (x, y), **options)
    assert len(listing(tmp_path / "c")) == 3
    monkeypatch.undo()
    quiet_fit(network, (x, y), **options).save(tmp_path / "resumed")
    quiet_fit(network, (x, y), num_experts=4).save(tmp_path / "whole")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


REFUSED = """
import json, os, resource, sys
from pathlib import Path
import trustgp
from reliability.helpers import listing, mlp, quiet_fit, rows

folder, network, data = Path(sys.argv[1]), mlp(2, 8, 2), rows(200)

def fit(name):
    model = quiet_fit(network, data, num_experts=4, checkpoint=folder / name, executor=trustgp.Threads(1))
    model.save(folder / f"{name}.trustgp")

fit("whole")
sizes = {path.name: path.stat().st_size for path in (folder / "whole").glob("expert-*")}
resource.setrlimit(resource.RLIMIT_FSIZE, (sorted(sizes.values())[2], resource.RLIM_INFINITY))
told = []
try:
    fit("full")
except OSError as error:
    told.append(str(error))
told.append(listing(folder / "full"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
fit("full")
told.append((folder / "full.trustgp").read_bytes() == (folder / "whole.trustgp").read_bytes())
folder.chmod(0o555)
if os.geteuid() == 0:  # the superuser may write anywhere: become somebody else
    os.setegid(65534)
    os.seteuid(65534)
try:
    fit("locked")
except PermissionError as error:
    told.append(str(error))
os.seteuid(os.getuid())
folder.chmod(0o755)
print(json.dumps(told))
"""


def test_a_checkpoint_that_cannot_be_written_ends_with_a_message_and_goes_on_later(runs):
    """A limit on the size of files stands in for a full disk: the largest expert does not fit."""
    inner = runs.folders["refused"] / "inner"
    full, names, same, locked = json.loads(runs.said["refused"])
    experts = [name for name in names if name.startswith("expert-")]
    assert "was not written" in full
    assert f"{len(experts)} solved expert" in full or not experts
    assert f"in {inner / 'full'}; the same call goes on from there." in full
    assert set(names) == {"fit.trustgp", *experts}  # nothing half-written
    assert len(experts) < 4
    assert same
    assert "the folder of the checkpoint" in locked
    assert "Permission denied" in locked


def test_tensors_come_back_to_the_bit(tmp_path):
    """All kinds that are written, of any shape, also views and empty ones."""
    generator = torch.Generator().manual_seed(0)
    table = {
        "wide": torch.randn(7, 5, generator=generator, dtype=torch.float64).T,
        "single": torch.randn(3, generator=generator),
        "half": torch.randn(3, generator=generator).half(),
        "brain": torch.randn(3, generator=generator).bfloat16(),
        "whole": torch.arange(5)[::2],
        "truth": torch.tensor([True, False, True]),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "none": torch.empty(0, 3),
    }
    path = tmp_path / "m"
    safefile.write(path, kind="k", text={"a": [1, "ü"]}, tensors=table)
    text, found = safefile.read(path, kind="k")
    assert text == {"a": [1, "ü"]}
    assert found.keys() == table.keys()
    for name, value in table.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    shutil.copy(path, tmp_path / "copy")
    assert safefile.read(tmp_path / "copy", kind="k")[0] == text
