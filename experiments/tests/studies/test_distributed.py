"""The distributed study: its stopwatch and its settings, and a small run on threads."""

import time

from trustgp.executors import Threads
from trustgp_experiments.studies.distributed.study import QUICK, Stopwatch, settings, started


def test_a_stopwatch_measures_the_last_run_with_a_task_for_each_expert():
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
    executor, seconds = started("threads", 2)
    assert executor == Threads(2)
    assert seconds > 0


def test_every_executor_is_timed_and_gives_the_same_model(small_run):
    result = small_run("distributed")[1]
    (run,) = result.numbers["seeds"]
    started_with = [(entry["executor"], entry["workers"]) for entry in run["times"]]
    assert started_with == [("threads", 1), ("threads", 2)]
    assert all(len(entry["seconds"]) == QUICK[3] for entry in run["times"])
    assert all(second > 0 for entry in run["times"] for second in entry["seconds"])
    assert run["difference"] == 0.0
    assert "to the bit" in result.findings[-1]
