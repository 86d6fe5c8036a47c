"""The contract of an executor, kept by workers in other processes."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from trustgp.data.user_warnings import add_note
from trustgp.executors import Ray, Threads, nearby


def test_every_task_is_run_once_in_another_process_on_one_blas_thread(ray_workers):
    def work(task):
        return task**2, os.getpid(), torch.get_num_threads()

    results = dict(ray_workers.run(work, [3, 1, 4, 1, 5]))
    assert [results[position][0] for position in range(5)] == [9, 1, 16, 1, 25]
    assert os.getpid() not in {process for _, process, _ in results.values()}
    assert {threads for *_, threads in results.values()} == {1}


def test_short_work_stays_on_threads_of_this_process(ray_workers):
    assert list(ray_workers.run(lambda task: task, [])) == []
    assert list(ray_workers.run(lambda task: os.getpid(), [7])) == [(0, os.getpid())]
    assert isinstance(nearby(ray_workers), Threads)
    assert nearby(Threads(3)) == Threads(3)
    assert ray_workers.workers == 2


def test_large_tensors_arrive_whole_and_results_are_the_callers_own(ray_workers):
    data = torch.arange(60_000).reshape(300, 200)
    tasks = [torch.tensor([1, 5]), torch.tensor([299])]
    for position, (chosen, total) in ray_workers.run(lambda index: (data[index], data.sum()), tasks):
        assert torch.equal(chosen, data[tasks[position]])
        assert torch.equal(total, data.sum())
        chosen += 1  # may be written to


def test_errors_keep_their_type_and_notes_or_their_text_and_the_executor_works_on(ray_workers):
    class Stubborn(Exception):  # cannot be pickled
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def work(task):
        error = Stubborn("this", "that") if task else KeyError("a mistake")
        add_note(error, "a note")
        raise error

    for task, kind, match in ((0, KeyError, "a mistake"), (1, RuntimeError, "Stubborn: this and that")):
        with pytest.raises(kind, match=match) as caught:
            list(ray_workers.run(work, [task, task]))
        assert caught.value.__notes__ == ["a note"]
    with pytest.raises(TypeError, match=r"cannot be sent.*Threads\(\)"):
        list(ray_workers.run(partial(print, (number for number in range(3))), range(2)))
    assert dict(ray_workers.run(lambda task: task, range(3))) == {0: 0, 1: 1, 2: 2}


def test_a_missing_ray_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"trustgp\[ray\]"):
        list(Ray().run(str, range(2)))


def test_impossible_numbers_are_refused():
    for name, value in (("workers", 0), ("retries", -1), ("gpus", -0.5), ("gpus", 1.5)):
        with pytest.raises(ValueError, match=f"{name}={value}"):
            Ray(**{name: value})


def test_a_cluster_is_not_started_in_another_thread(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match=r"call ray.init\(\) there"):
        pool.submit(lambda: Ray().workers).result()
