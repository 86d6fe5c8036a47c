"""What Processes and Ray share: the contract of an executor, kept by workers in other processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from trustgp.executors import Processes, Ray, Threads, nearby
from trustgp.executors.processes import _mapped, _write


def test_every_task_is_run_once_elsewhere_and_carries_its_position(distant):
    results = dict(distant.run(lambda task: (task**2, os.getpid()), [3, 1, 4, 1, 5]))
    assert {position: square for position, (square, _) in results.items()} == {0: 9, 1: 1, 2: 16, 3: 1, 4: 25}
    assert os.getpid() not in {process for _, process in results.values()}


def test_no_tasks_give_no_results_and_a_single_one_is_run_here(distant):
    assert list(distant.run(lambda task: task, [])) == []
    assert list(distant.run(lambda task: os.getpid(), [7])) == [(0, os.getpid())]


def test_each_worker_has_a_single_blas_thread(distant):
    found = [threads for _, threads in distant.run(lambda _: torch.get_num_threads(), range(4))]
    assert found == [1] * 4


def test_results_come_as_they_are_ready(distant):
    results = distant.run(lambda seconds: time.sleep(seconds), [2.0, 0.0])
    assert [position for position, _ in results] == [1, 0]


def test_large_tensors_arrive_whole_and_results_are_the_callers_own(distant):
    data = torch.arange(60_000).reshape(300, 200)

    def rows(index):
        return data[index], data.sum()

    tasks = [torch.tensor([1, 5]), torch.tensor([299])]
    for position, (chosen, total) in distant.run(rows, tasks):
        assert torch.equal(chosen, data[tasks[position]])
        assert torch.equal(total, data.sum())
        chosen += 1  # may be written to


def test_an_error_keeps_its_type_and_its_notes_and_the_executor_works_on(distant):
    def work(task):
        if task == 1:
            error = KeyError("a mistake")
            error.add_note("in task 1")
            raise error
        return task

    with pytest.raises(KeyError, match="a mistake") as caught:
        list(distant.run(work, range(8)))
    assert caught.value.__notes__ == ["in task 1"]
    assert dict(distant.run(lambda task: task, range(3))) == {0: 0, 1: 1, 2: 2}


def test_an_error_that_cannot_travel_comes_in_words(distant):
    class Stubborn(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def work(task):
        raise Stubborn("this", "that")

    with pytest.raises(RuntimeError, match="Stubborn: this and that"):
        list(distant.run(work, range(2)))


def test_a_function_that_cannot_travel_is_refused_with_what_to_do(distant):
    with pytest.raises(TypeError, match=r"cannot be sent.*Threads\(\)"):
        list(distant.run(partial(print, (number for number in range(3))), range(2)))


def test_what_is_small_stays_on_threads_of_this_process(distant):
    assert isinstance(nearby(distant), Threads)
    assert nearby(Threads(3)) == Threads(3)
    assert distant.workers == 2


def test_a_missing_ray_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"trustgp\[ray\]"):
        list(Ray().run(str, range(2)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Processes(0), "count=0"),
        (lambda: Processes(2, retries=-1), "retries=-1"),
        (lambda: Ray(workers=0), "workers=0"),
        (lambda: Ray(gpus=-0.5), "gpus=-0.5"),
        (lambda: Ray(gpus=1.5), "gpus=1.5"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path):
    parts = [memoryview(b"function"), memoryview(b"data")]
    path = tmp_path / "shared"
    assert [bytes(part) for part in _mapped(str(path), _write(parts, path))] == [b"function", b"data"]
    with pytest.raises(OSError, match=r"12 bytes.*TMPDIR") as caught:
        _write(parts, Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC


def test_a_cluster_outlives_the_thread_that_first_asked_for_it():
    """The system ends Ray's processes with the thread that started them, and Ray this process with them."""
    pytest.importorskip("ray")
    code = """
import threading, time
from trustgp.executors import Ray

def work():
    assert dict(Ray(workers=2).run(abs, [-1, -2])) == {0: 1, 1: 2}

thread = threading.Thread(target=work)
thread.start()
thread.join()
time.sleep(2)
work()
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "alive", done.stderr
