"""What studies share: parts that are kept, results on disk, and where they come from."""

import json
import os
import platform
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

import trustgp
from trustgp_experiments.core import result as base
from trustgp_experiments.core.result import (
    Column,
    Figure,
    Result,
    Setting,
    StudyError,
    Table,
    provenance,
    read_result,
    write_json,
    write_text,
)
from trustgp_experiments.studies import STUDIES, run_study


def a_result(**changes) -> Result:
    table = Table(
        "NLL",
        [Column("method", -1), Column("sarcos", 2, "low", "nat")],
        [["ours", [-1.5, 0.1]], ["theirs", None]],
        note="A note.",
    )
    fields = {
        "study": "toy",
        "title": "Is it so?",
        "protocol": ["Two rows."],
        "tables": [table],
        "figures": [Figure("bands.png", "Bands")],
        "findings": ["It is."],
        "numbers": {"deep": {"list": [1, 2.5, None]}},
        "provenance": {"quick": False},
    }
    return Result(**{**fields, **changes})


def counting(value):
    """Work that says how often it was done."""
    calls = []

    def work():
        calls.append(1)
        return value

    return work, calls


def test_a_part_is_done_once(tmp_path):
    work, calls = counting({"nll": [0.1, 2]})
    first = Setting(tmp_path).once("sarcos-0", work)
    assert Setting(tmp_path).once("sarcos-0", work) == first == {"nll": [0.1, 2]}
    assert len(calls) == 1


def test_a_part_reads_the_same_when_it_is_new_and_when_it_is_resumed(tmp_path):
    def work():
        return {1: (2, 3)}  # what JSON holds is {"1": [2, 3]}

    assert Setting(tmp_path).once("a", work) == Setting(tmp_path).once("a", work) == {"1": [2, 3]}


@pytest.mark.parametrize("change", [{"quick": True}, {"key": "b"}, {"code": "other"}, {"versions": {}}])
def test_a_part_is_done_again_when_something_it_depends_on_differs(tmp_path, monkeypatch, change):
    work, calls = counting(1)
    Setting(tmp_path).once("a", work)
    key = change.pop("key", "a")
    if "code" in change:
        code = change.pop("code")
        monkeypatch.setattr(base, "source_digest", lambda: code)
    if "versions" in change:
        found = change.pop("versions")
        monkeypatch.setattr(base, "versions", lambda: found)
    Setting(tmp_path, **change).once(key, work)
    assert len(calls) == 2


def test_more_seeds_keep_the_parts_of_the_first(tmp_path):
    work, calls = counting(1)
    Setting(tmp_path, seeds=1).once("seed-0", work)
    Setting(tmp_path, seeds=3).once("seed-0", work)
    assert len(calls) == 1


def test_a_part_that_cannot_be_read_is_done_again(tmp_path):
    work, calls = counting(5)
    Setting(tmp_path).once("a", work)
    (file,) = (tmp_path / "parts").iterdir()
    for number, damage in enumerate((b"", b'{"nll": [1', b"NaN", b"\xff\xfe"), start=2):
        file.write_bytes(damage)
        assert Setting(tmp_path).once("a", work) == 5
        assert len(calls) == number, damage


def test_a_part_that_fails_leaves_nothing_and_its_error_stands_alone(tmp_path):
    def work():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory") as raised:
        Setting(tmp_path).once("a", work)
    assert raised.value.__context__ is None
    assert not (tmp_path / "parts").exists()


def test_no_seed_at_all_is_refused(tmp_path):
    for seeds in (0, -1):
        with pytest.raises(StudyError, match=f"seeds={seeds}"):
            Setting(tmp_path, seeds=seeds)


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(StudyError, match="no CUDA device"):
        Setting(tmp_path / "new", device="cuda")
    assert not (tmp_path / "new").exists()


def test_a_study_that_is_unknown_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match=", ".join(STUDIES)):
        run_study("astrology", tmp_path)


def test_a_result_is_read_as_it_was_written(tmp_path):
    result = a_result()
    assert result.write(tmp_path) == tmp_path / "result.json"
    assert read_result(tmp_path / "result.json") == result


def test_the_same_result_gives_the_same_bytes(tmp_path):
    one, two = (a_result().write(tmp_path / name).read_bytes() for name in "ab")
    assert one == two


FOREIGN = [
    "",
    "{",
    "[]",
    "null",
    "7",
    "{}",
    '{"tables": [], "figures": []}',
    '{"tables": [{"columns": []}], "figures": []}',
    '{"tables": ["x"], "figures": []}',
    '{"tables": {}, "figures": 3}',
    "[" * 100_000,
]


def test_a_damaged_or_foreign_file_is_named(tmp_path):
    file = tmp_path / "result.json"
    taken = []
    for text in FOREIGN:
        file.write_text(text)
        try:
            read_result(file)
        except StudyError as error:
            if "result.json is not the result of a study" in str(error):
                continue
        taken.append(text[:40])
    assert taken == []


def test_half_a_file_is_named_wherever_it_ends(tmp_path):
    file = a_result().write(tmp_path)
    whole = file.read_bytes()
    for end in range(0, len(whole) - 2, 7):
        file.write_bytes(whole[:end])
        with pytest.raises(StudyError, match=r"result\.json"):
            read_result(file)


WRONG = [
    (["title"], 3),
    (["study"], None),
    (["protocol"], "one text"),
    (["findings"], [1]),
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


def test_a_field_of_the_wrong_kind_is_refused(tmp_path):
    file = a_result().write(tmp_path)
    whole = file.read_text()
    taken = []
    for path, value in WRONG:
        found = json.loads(whole)
        inner = found
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        file.write_text(json.dumps(found))
        try:
            read_result(file)
        except StudyError as error:
            if "result.json" in str(error):
                continue
        taken.append((path, value))
    assert taken == []


def test_what_is_not_a_number_is_not_written(tmp_path):
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            write_json(tmp_path / "a.json", {"nll": number})
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = write_text(tmp_path / "page.html", "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_others_may_read_what_is_written_as_far_as_the_user_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        file = write_text(tmp_path / "a.txt", "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def texts(value) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def test_the_provenance_says_how_to_do_it_again_and_nothing_of_the_machine(tmp_path):
    found = provenance(Setting(tmp_path, seeds=2, quick=True), "toy", splits={"random": 0.8})
    assert found["command"] == "trustgp study toy --seeds 2 --quick"
    assert found["seeds"] == [0, 1]
    assert found["quick"] is True
    assert found["device"] == "CPU"
    assert found["versions"]["trustgp"] == trustgp.__version__
    assert found["versions"]["python"] == platform.python_version()
    assert found["splits"] == {"random": 0.8}
    assert json.loads(json.dumps(found)) == found
    for text in texts(found):
        assert "/" not in text
        assert "\\" not in text
    assert platform.node() not in texts(found)


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout with a package in it, which stands for ours."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here.")
    package = tmp_path / "src"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git(tmp_path, "init")
    monkeypatch.setattr(base, "SOURCE", package)
    monkeypatch.setattr(base, "LIBRARY", package)
    return tmp_path


def test_the_commit_ends_in_a_plus_where_the_source_differs_from_it(checkout):
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "one")
    clean = base.commit()
    assert clean is not None
    assert len(clean) == 12
    (checkout / "notes.txt").write_text("outside the package")
    assert base.commit() == clean
    (checkout / "src" / "new.py").write_text("")
    assert base.commit() == f"{clean}+"


def test_a_copy_inside_somebody_elses_checkout_has_no_commit(checkout, monkeypatch):
    (checkout / ".gitignore").write_text("src\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "theirs")
    monkeypatch.delenv("TRUSTGP_COMMIT", raising=False)
    assert base.commit() is None


def test_a_copy_may_be_told_its_commit(checkout, monkeypatch):
    monkeypatch.setenv("TRUSTGP_COMMIT", "0123456789ab")
    assert base.commit() == "0123456789ab"


def test_no_git_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("TRUSTGP_COMMIT", raising=False)
    assert base.commit() is None


def test_the_digest_changes_with_the_source(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "SOURCE", tmp_path)
    digests = set()
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", ""), ("c.py", "")):
        (tmp_path / name).write_text(text)
        digests.add(base.source_digest.__wrapped__())
    assert len(digests) == 4
