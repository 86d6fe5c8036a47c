"""Parts of a study in processes of their own."""

import os

import pytest

from trustgp_experiments.core.grid import keep_part
from trustgp_experiments.core.parallel import work_ahead
from trustgp_experiments.core.result import Setting
from trustgp_experiments.studies.bound.study import one_seed


def broken(setting: Setting, number: int) -> None:
    raise RuntimeError(f"part {number} broke")


def toy(setting: Setting, seed: int):
    return keep_part(setting, one_seed, ("toy",), seed)


TASKS = [(one_seed, ("toy",), 0), (one_seed, ("toy",), 1)]


def files(setting: Setting) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in (setting.out / "parts").glob("*.json")}


def test_parts_are_done_elsewhere_and_found_here(tmp_path):
    setting = Setting(tmp_path, quick=True, jobs=2)
    work_ahead(setting, keep_part, TASKS)
    done = files(setting)
    assert len(done) == 2
    assert toy(setting, 1) != toy(setting, 0)
    assert files(setting) == done  # read, not done again


def test_what_another_process_finds_is_what_is_found_here(tmp_path):
    there, here = Setting(tmp_path / "there", quick=True, jobs=2), Setting(tmp_path / "here", quick=True)
    work_ahead(there, keep_part, TASKS)
    assert toy(there, 0) == toy(here, 0)


def test_with_one_job_nothing_is_done_ahead(tmp_path):
    work_ahead(Setting(tmp_path), broken, [(1,), (2,)])
    assert not list(tmp_path.iterdir())


def test_what_breaks_in_a_part_breaks_the_study(tmp_path):
    tasks = [(one_seed, ("nothing",), 0), (one_seed, ("nothing",), 1)]
    with pytest.raises(KeyError, match="nothing"):
        work_ahead(Setting(tmp_path, quick=True, jobs=2), keep_part, tasks)
    assert os.listdir(tmp_path) == []
