import gc
import threading
import time
import weakref

import pytest
import torch

from trustgp.executors import Threads


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_task_is_run_once_and_carries_its_position(count):
    results = dict(Threads(count).run(lambda task: task**2, [3, 1, 4, 1, 5]))
    assert results == {0: 9, 1: 1, 2: 16, 3: 1, 4: 25}
    assert list(Threads(count).run(lambda task: task, [])) == []


def test_no_reference_to_a_result_is_kept():
    results = Threads(1).run(lambda task: torch.ones(task), [1, 2, 3])
    seen = []
    for _, result in results:
        assert all(reference() is None for reference in seen)
        seen.append(weakref.ref(result))
        del result, _
        gc.collect()
    assert len(seen) == 3


def test_each_worker_has_a_single_blas_thread_and_the_caller_keeps_its_own():
    before = torch.get_num_threads()

    def late(_):
        time.sleep(0.05)  # the caller gives its number of threads back meanwhile
        return torch.get_num_threads()

    try:
        torch.set_num_threads(2)
        assert [result for _, result in Threads(2).run(late, range(4))] == [1] * 4
        assert torch.get_num_threads() == 2
        later = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [2]
    finally:
        torch.set_num_threads(before)


def test_an_error_in_a_task_is_raised_and_the_rest_is_dropped():
    begun = []

    def work(task):
        begun.append(task)
        if task == 1:
            raise KeyError("task 1")
        time.sleep(0.02)
        return task

    with pytest.raises(KeyError, match="task 1"):
        list(Threads(1).run(work, range(50)))
    assert len(begun) < 50


def test_a_caller_that_stops_early_leaves_no_threads_running():
    before = threading.active_count()
    results = Threads(2).run(lambda task: task, range(20))
    next(results)
    results.close()
    assert threading.active_count() == before


def test_workers_are_the_cores_by_default_and_at_least_one():
    assert Threads().workers >= 1
    assert Threads(3).workers == 3
    with pytest.raises(ValueError, match="count=0"):
        Threads(0)
