"""The distributed study, small: every executor that is there, on a few rows of the simulated arm."""

from __future__ import annotations

import time
from importlib.util import find_spec

import pytest

from trustgp.executors import Threads
from trustgp_experiments.studies import run_study
from trustgp_experiments.studies.distributed import study as distributed
from trustgp_experiments.studies.distributed.study import KINDS, Stopwatch, settings, started


def test_a_stopwatch_takes_the_time_of_the_last_run_with_a_task_for_each_expert():
    watch = Stopwatch(Threads(1))
    assert dict(watch.run(time.sleep, [0.0] * 3)) == {0: None, 1: None, 2: None}
    list(watch.run(time.sleep, [0.05] * 3))
    list(watch.run(time.sleep, [0.0]))
    assert [tasks for tasks, _ in watch.runs] == [3, 3, 1]
    assert watch.experts_seconds(3) == watch.runs[1][1] >= 0.15


def test_workers_are_doubled_up_to_the_cores_and_streams_on_a_gpu():
    assert [count for kind, count in settings("cpu", 8) if kind == "threads"] == [1, 2, 4, 8]
    assert [count for kind, count in settings("cpu", 1) if kind == "threads"] == [1, 2]
    assert settings("cuda", 8) == [("threads", 1), ("threads", 2), ("threads", 4)]


def test_an_executor_is_up_before_it_is_timed():
    executor, seconds = started("threads", 2)
    assert executor == Threads(2)
    assert seconds > 0


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Its folder and its result, without Ray, which takes long to start."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("pinocchio")
    out = tmp_path_factory.mktemp("distributed")
    chosen = [("threads", 1), ("threads", 2), ("ray", 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "settings", lambda device, most: chosen)
        patch.setitem(KINDS, "ray", Threads)
        return out, run_study("distributed", out, quick=True, seeds=1)


def test_every_executor_is_timed_and_gives_the_same_model(quick):
    (run,) = quick[1].numbers["seeds"]
    assert [(entry["executor"], entry["workers"]) for entry in run["times"]] == [
        ("threads", 1),
        ("threads", 2),
        ("ray", 2),
    ]
    assert all(len(entry["seconds"]) == distributed.QUICK[3] for entry in run["times"])
    assert all(second > 0 for entry in run["times"] for second in entry["seconds"])
    assert run["difference"] == 0.0
    assert "to the bit" in quick[1].findings[-1]


def test_speeds_are_ratios_within_a_repeat():
    entry = {"executor": "threads", "workers": 1, "seconds": [4.0, 8.0], "start": 0.1}
    other = {"executor": "ray", "workers": 2, "seconds": [2.0, 4.0], "start": 3.0}
    _, row = distributed.TABLE.table(distributed.times_grid([{"times": [entry, other]}])).rows
    assert row == ["ray", 2, [3.0, pytest.approx(2**0.5)], [2.0, 0.0], [1.0, 0.0], [3.0, 0.0]]


def test_the_result_says_what_it_was_made_from(quick):
    out, result = quick
    assert (out / "distributed" / result.figures[0].file).stat().st_size > 5_000
    assert result.provenance["data"] == "arm_slow"
    assert [row[:2] for row in result.tables[0].rows] == [["threads", 1], ["threads", 2], ["ray", 2]]
    assert find_spec("ray") is None or "ray" in {kind for kind, _ in settings("cpu", 2)}
