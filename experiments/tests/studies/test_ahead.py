"""Parts of a study in processes of their own."""

import os

import pytest
from study_parts import drawn

from trustgp_experiments.core.grid import keep_part, work_ahead
from trustgp_experiments.core.result import Setting


def broken(setting: Setting, number: int) -> None:
    raise RuntimeError(f"part {number} broke")


def toy(setting: Setting, seed: int):
    return keep_part(setting, drawn, ("toy",), seed)


TASKS = [(drawn, ("toy",), 0), (drawn, ("toy",), 1)]


def files(setting: Setting) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in (setting.out / "parts").glob("*.json")}


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    """A setting whose parts two other processes have done."""
    setting = Setting(tmp_path_factory.mktemp("there"), quick=True, jobs=2)
    work_ahead(setting, keep_part, TASKS)
    return setting


def test_parts_are_done_elsewhere_and_found_here(ahead):
    done = files(ahead)
    assert len(done) == 2
    assert toy(ahead, 1) != toy(ahead, 0)
    assert files(ahead) == done  # read, not done again


def test_what_another_process_finds_is_what_is_found_here(ahead, tmp_path):
    assert toy(ahead, 0) == toy(Setting(tmp_path, quick=True), 0)


def test_with_one_job_nothing_is_done_ahead(tmp_path):
    work_ahead(Setting(tmp_path), broken, [(1,), (2,)])
    assert not list(tmp_path.iterdir())


def test_what_breaks_in_a_part_breaks_the_study(tmp_path):
    tasks = [(drawn, ("nothing",), 0), (drawn, ("nothing",), 1)]
    with pytest.raises(KeyError, match="nothing"):
        work_ahead(Setting(tmp_path, quick=True, jobs=2), keep_part, tasks)
    assert os.listdir(tmp_path) == []
