"""What studies share: parts that are kept, results on disk, and their origin."""

import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import trustgp
from trustgp_experiments.core import result as base
from trustgp_experiments.core.benchmark import print_figures
from trustgp_experiments.core.result import Column, Setting, StudyError, Table, read_result
from trustgp_experiments.core.storage import NUMBERS
from trustgp_experiments.studies import STUDIES, run_study


def a_result() -> base.Result:
    columns = [Column("method", -1), Column("sarcos", 2, "low", "nat")]
    table = Table("NLL", columns, [["ours", [-1.5, 0.1]], ["theirs", None]], note="A note.")
    said = ["Two rows."], [table], [base.Figure("bands.png", "Bands")], ["It is."]
    return base.Result("toy", "Is it so?", *said, {"deep": {"list": [1, 2.5, None]}}, {"quick": False})


class Counted:
    """Work that counts how often it is done."""

    def __init__(self, value):
        self.value, self.calls = value, 0

    def __call__(self):
        self.calls += 1
        return self.value


def test_a_part_is_done_once_and_reads_as_json_from_the_start(tmp_path):
    work = Counted({1: (2, 3)})
    first = Setting(tmp_path, seeds=1).once("sarcos-0", work)
    assert Setting(tmp_path, seeds=3).once("sarcos-0", work) == first == {"1": [2, 3]}
    assert work.calls == 1


@pytest.mark.parametrize("change", [{"quick": True}, {"key": "b"}, {"code": "other"}, {"versions": {}}])
def test_a_part_is_done_again_when_something_it_depends_on_differs(tmp_path, monkeypatch, change):
    work = Counted(1)
    Setting(tmp_path).once("a", work)
    key = change.pop("key", "a")
    for name, function in (("code", "source_digest"), ("versions", "versions")):
        if name in change:
            value = change.pop(name)
            monkeypatch.setattr(base, function, lambda value=value: value)
    Setting(tmp_path, **change).once(key, work)
    assert work.calls == 2


def test_a_part_that_cannot_be_read_is_done_again(tmp_path):
    work = Counted(5)
    Setting(tmp_path).once("a", work)
    (file,) = (tmp_path / "parts").iterdir()
    for number, damage in enumerate((b"", b'{"nll": [1', b"NaN", b"\xff\xfe"), start=2):
        file.write_bytes(damage)
        assert Setting(tmp_path).once("a", work) == 5
        assert work.calls == number, damage


def test_a_part_that_fails_leaves_nothing_and_raises_its_error_without_context(tmp_path):
    def work():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory") as raised:
        Setting(tmp_path).once("a", work)
    assert raised.value.__context__ is None
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize(
    ("options", "pattern"),
    [({"seeds": 0}, "seeds=0"), ({"jobs": -1}, "jobs=-1"), ({"device": "cuda"}, "no CUDA device"),
     ({"device": "tpu"}, "'cpu' and 'cuda' are allowed")],
)  # fmt: skip
def test_wrong_options_are_refused_before_anything_is_made(tmp_path, monkeypatch, options, pattern):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(StudyError, match=pattern):
        Setting(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_an_unknown_study_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match=", ".join(STUDIES)):
        run_study("astrology", tmp_path)


def test_a_result_is_read_as_it_was_written_always_in_the_same_bytes(tmp_path):
    one, two = (a_result().write(tmp_path / name) for name in "ab")
    assert read_result(one) == a_result()
    assert one.read_bytes() == two.read_bytes()


def test_numbers_beside_a_result_are_rounded_and_its_tables_are_made_of_them(tmp_path, monkeypatch):
    module = SimpleNamespace(
        summarise=lambda numbers: ([Table("T", [Column("n")], [[numbers["n"]]])], ["It is."])
    )
    monkeypatch.setitem(sys.modules, "trustgp_experiments.studies.made_up.study", module)
    setting = Setting(tmp_path)
    numbers = {"n": 1.23456, "m": (1e-9 / 3,)}
    made = base.make_result(setting, "made_up", "Is it so?", [], numbers, module.summarise)
    files = [made.write(tmp_path / name).with_name(NUMBERS) for name in "ab"]
    assert made.numbers == {"n": 1.235, "m": [3.333e-10]}
    assert files[0].read_bytes() == files[1].read_bytes()
    assert read_result(tmp_path / "a" / "result.json").tables[0].rows == [[1.235]]
    assert json.loads((tmp_path / "a" / "result.json").read_text())["tables"] == []
    for damage in (b"", files[0].read_bytes()[:-5], b"no gzip", gzip.compress(b"{")):
        files[0].write_bytes(damage)
        with pytest.raises(StudyError, match=r"result\.json is not the result of a study"):
            read_result(tmp_path / "a" / "result.json")


FOREIGN = (
    *("", "{", "[]", "null", "7", "{}", "[" * 100_000, '{"tables": [], "figures": []}'),
    *('{"tables": [{"columns": []}], "figures": []}', '{"tables": {}, "figures": 3}'),
)
WRONG = [
    (["title"], 3),
    (["study"], None),
    (["protocol"], "one text"),
    (["provenance"], []),
    (["extra"], 1),
    (["tables", 0, "block"], "no such column"),
    (["tables", 0, "rows", 0], ["too", "many", "cells"]),
    (["tables", 0, "rows", 0, 1], {"mean": 1}),
    (["tables", 0, "rows", 0, 1], [None, 1]),
    (["tables", 0, "rows", 0, 1], []),
    (["tables", 0, "rows", 0, 1], float("nan")),
    (["tables", 0, "columns", 1, "better"], "wide"),
    (["tables", 0, "columns", 1, "digits"], "two"),
    (["tables", 0, "note"], None),
    (["figures", 0, "file"], "../../secret.png"),
    (["figures", 0, "file"], "/etc/passwd"),
    (["figures", 0, "file"], ""),
]


def test_damaged_and_foreign_files_and_wrong_fields_are_refused_by_name(tmp_path):
    file = a_result().write(tmp_path)
    whole = file.read_text()
    texts = [*FOREIGN, *(whole[:end] for end in range(0, len(whole) - 2, 7))]
    for path, value in WRONG:
        fields = inner = json.loads(whole)
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        texts.append(json.dumps(fields))
    for text in texts:
        file.write_text(text)
        with pytest.raises(StudyError, match=r"result\.json is not the result of a study"):
            read_result(file)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            base.write_json(tmp_path / "a.json", {"nll": number})
    file = base.write_text(tmp_path / "page.html", "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        base.write_text(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_the_provenance_has_the_command_and_no_path_or_name_of_the_machine(tmp_path):
    origin = base.provenance(Setting(tmp_path, seeds=2, quick=True), "toy", splits={"random": 0.8})
    expected = {"command": "trustgp study toy --seeds 2 --quick", "seeds": [0, 1], "quick": True}
    expected |= {"device": "CPU", "splits": {"random": 0.8}}
    assert expected.items() <= origin.items()
    versions = {"trustgp": trustgp.__version__, "python": platform.python_version()}
    assert versions.items() <= origin["versions"].items()
    text = json.dumps(origin)
    assert json.loads(text) == origin
    assert "/" not in text
    assert "\\" not in text
    assert f'"{platform.node()}"' not in text


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout with a package, in place of ours."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here.")
    package = tmp_path / "src"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git(tmp_path, "init")
    monkeypatch.setattr(base, "SOURCE", package)
    monkeypatch.setattr(base, "LIBRARY", package)
    monkeypatch.delenv("TRUSTGP_COMMIT", raising=False)
    return tmp_path


def test_the_commit_ends_in_a_plus_where_the_source_differs_from_it(checkout):
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "one")
    clean = base.commit()
    assert clean is not None
    assert len(clean) == 40
    (checkout / "notes.txt").write_text("outside the package")
    assert base.commit() == clean
    (checkout / "src" / "new.py").write_text("")
    assert base.commit() == f"{clean}+"


def test_outside_a_checkout_of_ours_the_variable_is_the_commit(checkout, monkeypatch):
    (checkout / ".gitignore").write_text("src\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "theirs")
    assert base.commit() is None
    monkeypatch.setenv("TRUSTGP_COMMIT", "0123456789ab")
    assert base.commit() == "0123456789ab"
    monkeypatch.setenv("PATH", "")  # no git either
    assert base.commit() == "0123456789ab"


def test_a_benchmark_ends_with_its_figures_and_the_commit_of_its_code(checkout, monkeypatch, capsys):
    (checkout / ".gitignore").write_text("src\n")
    for given, expected in ((None, None), ("0123456789ab", "0123456789ab")):
        if given:
            monkeypatch.setenv("TRUSTGP_COMMIT", given)
        print_figures(figures=[1.5])
        assert json.loads(capsys.readouterr().out) == {"figures": [1.5], "commit": expected}
    monkeypatch.delenv("TRUSTGP_COMMIT")
    (checkout / ".gitignore").unlink()
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "ours")
    print_figures()
    assert json.loads(capsys.readouterr().out) == {"commit": base.commit()}


def test_the_digest_changes_with_the_source(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "SOURCE", tmp_path)
    digests = set()
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", ""), ("c.py", "")):
        (tmp_path / name).write_text(text)
        digests.add(base.source_digest.__wrapped__())
    assert len(digests) == 4
