"""Promise 19: a file that changes while it is read gives one whole model or an `ArtifactError`."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from reliability.helpers import quiet_fit, trained

import trustgp
from trustgp.cli import main
from trustgp.data import tensor_file
from trustgp.data.tensor_file import read, read_file, write
from trustgp.fitting.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """Two models of one network in files of the same length, whose headers differ in the checksum alone."""
    folder = tmp_path_factory.mktemp("twins")
    network, x, y = trained(24, dtype=torch.float32)
    for name, shift in (("one", 0.0), ("other", 1.0)):
        model = quiet_fit(network, (x, y + shift), num_experts=3, witness=None, budget="none")
        model.save(folder / name)
    contents = [(folder / name).read_bytes() for name in ("one", "other")]
    assert len(contents[0]) == len(contents[1])
    assert contents[0] != contents[1]
    return SimpleNamespace(network=network, contents=contents, path=folder / "changing")


def replaced(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    os.replace(beside, path)


def overwritten(path: Path, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.write(content)


def cut(path: Path, content: bytes) -> None:
    os.truncate(path, len(content) // 2)


CHANGES = [replaced, overwritten, cut]


def again(path: Path, network: torch.nn.Module) -> bytes | None:
    """What a load of the file would save; None: it was refused."""
    try:
        model = trustgp.load(path, network)
    except trustgp.ArtifactError:
        return None
    back = path.with_suffix(".back")
    model.save(back)
    return back.read_bytes()


@pytest.fixture
def meanwhile(monkeypatch):
    """Lets something be done when a reader has hashed the last byte, and before it says what it has read."""

    def arrange(change: Callable[[], None]) -> None:
        class Digest:
            def __init__(self, content: bytes = b"") -> None:
                self.inner = hashlib.sha256(content)
                self.update = self.inner.update

            def hexdigest(self) -> str:
                change()
                return self.inner.hexdigest()

        fake = SimpleNamespace(sha256=Digest, file_digest=hashlib.file_digest)
        monkeypatch.setattr(tensor_file, "hashlib", fake)

    return arrange


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_hashed_is_what_is_parsed(twins, meanwhile, change):
    """The file becomes another one between the checksum and the tensors."""
    twins.path.write_bytes(twins.contents[0])
    meanwhile(lambda: change(twins.path, twins.contents[1]))
    model = trustgp.load(twins.path, twins.network)
    assert twins.path.read_bytes() != twins.contents[0]  # the change was made
    model.save(twins.path.with_suffix(".back"))
    assert twins.path.with_suffix(".back").read_bytes() == twins.contents[0]


def test_a_loaded_model_does_not_follow_its_file(twins):
    twins.path.write_bytes(twins.contents[0])
    model = trustgp.load(twins.path, twins.network)
    overwritten(twins.path, twins.contents[1])
    os.truncate(twins.path, 0)
    model.save(twins.path.with_suffix(".back"))
    assert twins.path.with_suffix(".back").read_bytes() == twins.contents[0]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_changes_after_its_header_is_refused_or_one_of_two(twins, monkeypatch, change):
    """Between the header and the payload: an overwritten or cut file is a mixture; a replaced one is not."""
    twins.path.write_bytes(twins.contents[0])
    real = tensor_file._read_header

    def header(file, size, path):
        found, place = real(file, size, path), file.tell()
        file.seek(0, os.SEEK_END)  # forget what is buffered
        change(path, twins.contents[1])
        file.seek(place)
        return found

    monkeypatch.setattr(tensor_file, "_read_header", header)
    told = again(twins.path, twins.network)
    assert told == (twins.contents[0] if change is replaced else None)


def test_loads_beside_a_writer_give_one_whole_model_or_an_error(twins):
    """Fifty of them, while another thread replaces, overwrites and cuts the file as fast as it can."""
    stop = threading.Event()
    twins.path.write_bytes(twins.contents[0])

    def change_for_ever() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            CHANGES[turn % 3](twins.path, twins.contents[turn % 2])

    writer = threading.Thread(target=change_for_ever)
    writer.start()
    try:
        found = [again(twins.path, twins.network) for _ in range(50)]
    finally:
        stop.set()
        writer.join()
    assert set(found) <= {None, *twins.contents}


def test_inspect_shows_what_it_has_hashed(twins, meanwhile, capsys):
    """Of the file that was there, its size too."""
    twins.path.write_bytes(twins.contents[0])
    assert main(["inspect", str(twins.path)]) == 0
    expected = capsys.readouterr().out
    twins.path.write_bytes(twins.contents[0])
    meanwhile(lambda: cut(twins.path, twins.contents[1]))
    assert main(["inspect", str(twins.path)]) == 0
    assert capsys.readouterr().out == expected


def test_tensors_that_are_not_kept_are_hashed_all_the_same(tmp_path):
    table = {"large": torch.arange(3_000_000.0).reshape(3, -1), "small": torch.ones(3)}
    write(tmp_path / "m", kind="k", text={}, tensors=table)
    found = read_file(tmp_path / "m", ("k",), keep=lambda name: name != "large")
    assert found.nbytes == (tmp_path / "m").stat().st_size
    assert found.tensors["large"].is_meta
    assert found.tensors["large"].shape == (3, 1_000_000)
    assert torch.equal(found.tensors["small"], table["small"])
    with open(tmp_path / "m", "r+b") as file:
        file.seek(5_000_000)
        file.write(b"!")
    with pytest.raises(trustgp.ArtifactError, match="checksum"):
        read_file(tmp_path / "m", ("k",), keep=lambda name: name != "large")


def test_a_small_tensor_does_not_hold_its_neighbours(tmp_path):
    """Else each would send the whole file to a worker, and keep it in memory."""
    table = {f"t{i}": torch.full((i,), float(i)) for i in range(1, 50)} | {"large": torch.ones(5000)}
    write(tmp_path / "m", kind="k", text={}, tensors=table)
    tensors = read(tmp_path / "m", kind="k")[1]
    for name, value in table.items():
        assert torch.equal(tensors[name], value)
        assert tensors[name].untyped_storage().nbytes() == value.nbytes


def test_an_expert_of_a_checkpoint_is_read_once(twins, tmp_path, meanwhile):
    """The file becomes that of another expert after it was hashed: the next of the fit are not mixed up."""
    network, x, y = trained(24, dtype=torch.float32)
    options = {"num_experts": 3, "witness": None, "checkpoint": tmp_path / "c"}
    quiet_fit(network, (x, y), **options).save(tmp_path / "whole")
    first = sorted((tmp_path / "c").glob("expert-*"))[0]
    kept = first.read_bytes()
    reads = []
    real = Checkpoint._read

    def changing(self, path, *others):
        reads.append(path)
        if path == first:
            meanwhile(lambda: overwritten(first, bytes(len(kept))))
        return real(self, path, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "_read", changing)
        model = quiet_fit(network, (x, y), **options)
    assert len(reads) == 3
    model.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "whole").read_bytes()


def test_no_reader_maps_a_file_that_others_may_change():
    """Maps are of temporary files without a name."""
    source = Path(trustgp.__file__).parent
    texts = {path.relative_to(source).as_posix(): path.read_text() for path in source.rglob("*.py")}
    mapped = ("safe_open", "load_file", "mmap.mmap", "np.memmap", "mmap_mode", "from_file(")
    found = sorted(name for name, text in texts.items() if any(word in text for word in mapped))
    assert found == ["data/rows.py"]
