"""Promise 19: a file that changes while it is read gives one whole model or an `ArtifactError`."""

import hashlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from draws import normal
from reliability.helpers import quiet_fit, trained

import trustgp
from trustgp.cli import main
from trustgp.data import tensor_file
from trustgp.data.tensor_file import read, write


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """Two models of one network in files of the same length, whose headers differ in the checksum alone."""
    folder = tmp_path_factory.mktemp("twins")
    network, x, y = trained(24, dtype=torch.float32)
    for name, shift in (("one", 0.0), ("other", 1.0)):
        quiet_fit(network, (x, y + shift), num_experts=3, witness=None, budget="none").save(folder / name)
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


def load_and_save(path: Path, network: torch.nn.Module) -> bytes | None:
    """What a load of the file would save; None: it was refused."""
    try:
        model = trustgp.load(path, network)
    except trustgp.ArtifactError:
        return None
    model.save(path.with_suffix(".back"))
    return path.with_suffix(".back").read_bytes()


@pytest.fixture
def after_hashing(monkeypatch):
    """Calls a function when a reader has hashed the last byte, and before it parses."""

    def arrange(change: Callable[[], None]) -> None:
        class Digest:
            def __init__(self, content: bytes = b"") -> None:
                self.inner = hashlib.sha256(content)
                self.update = self.inner.update

            def hexdigest(self) -> str:
                change()
                return self.inner.hexdigest()

        monkeypatch.setattr(tensor_file, "hashlib", SimpleNamespace(sha256=Digest))

    return arrange


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_hashed_is_what_is_parsed(twins, after_hashing, monkeypatch, capsys, change):
    """The file becomes another one between the checksum and the tensors; `inspect` sees the one it hashed."""
    twins.path.write_bytes(twins.contents[0])
    assert main(["inspect", str(twins.path)]) == 0
    shown = capsys.readouterr().out
    after_hashing(lambda: change(twins.path, twins.contents[1]))
    model = trustgp.load(twins.path, twins.network)
    assert twins.path.read_bytes() != twins.contents[0]  # the change was made
    twins.path.write_bytes(twins.contents[0])
    assert main(["inspect", str(twins.path)]) == 0
    assert capsys.readouterr().out == shown
    monkeypatch.undo()
    model.save(twins.path.with_suffix(".back"))
    assert twins.path.with_suffix(".back").read_bytes() == twins.contents[0]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_after_its_header_is_refused_or_one_of_two(twins, monkeypatch, change):
    """Between the header and the payload: an overwritten or cut file is a mixture; a replaced one is not."""
    twins.path.write_bytes(twins.contents[0])
    real = tensor_file._check_kind

    def changing(*arguments):
        change(twins.path, twins.contents[1])
        return real(*arguments)

    monkeypatch.setattr(tensor_file, "_check_kind", changing)
    monkeypatch.setattr(tensor_file, "open", partial(open, buffering=0), raising=False)
    loaded = load_and_save(twins.path, twins.network)
    assert loaded == (twins.contents[0] if change is replaced else None)


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
        loaded = {load_and_save(twins.path, twins.network) for _ in range(50)}
    finally:
        stop.set()
        writer.join()
    assert loaded <= {None, *twins.contents}


def test_tensors_come_back_to_the_bit_and_do_not_hold_their_neighbours(tmp_path, monkeypatch):
    """Else each would send the whole file to a worker. Views, empty ones, and two of the same memory, too."""
    wide = normal(7, 5)
    table = {"wide": wide.T, "same": wide, "whole": torch.arange(5)[::2], "none": torch.empty(0, 3)}
    table |= {str(t): wide[0].to(t) for t in (torch.float32, torch.float16, torch.bfloat16, torch.bool)}
    table |= {"scalar": wide[0, 0], "large": torch.ones(5000)}
    monkeypatch.chdir(tmp_path)
    write(Path("m"), kind="k", text={"a": [1, "ü"]}, tensors=table)
    text, tensors = read(tmp_path / "m", kind="k")
    assert text == {"a": [1, "ü"]}
    assert tensors.keys() == table.keys()
    for name, value in table.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)
        assert tensors[name].untyped_storage().nbytes() == value.nbytes


def test_no_reader_maps_a_file_that_others_may_change():
    """Maps are of temporary files without a name."""
    source = Path(trustgp.__file__).parent
    texts = {path.relative_to(source).as_posix(): path.read_text() for path in source.rglob("*.py")}
    mapped = ("safe_open", "load_file", "mmap.mmap", "np.memmap", "mmap_mode", "from_file(")
    mapping = sorted(name for name, text in texts.items() if any(word in text for word in mapped))
    assert mapping == ["data/rows.py"]
