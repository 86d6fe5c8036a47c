"""Promise 14: a worker is killed or raises, a node is gone: the same model, or an error, and no hang; and the
contract of workers in other processes, here since a cluster takes ten seconds to start."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from reliability.helpers import mlp, quiet_fit, rows

import trustgp
from trustgp.data.user_warnings import add_note
from trustgp.executors import Executor, Ray, Threads, WorkerLostError, nearby

EXPERTS = 8
VICTIM = 2  # an expert
RETRIES = 1


class Begun(NamedTuple):
    """A task of an expert in a process on a node: begun, and perhaps done."""

    expert: int
    process: int
    node: str
    done: bool


def begun(folder: Path) -> list[Begun]:
    """What the marks of `watched` say."""
    tasks = []
    for mark in folder.glob("*_*"):
        expert, process, node, *_ = mark.name.split("_")
        if not mark.name.endswith("done"):
            done = mark.with_name(mark.name + "_done").exists()
            tasks.append(Begun(int(expert), int(process), node, done))
    return tasks


def watched(function: Callable, folder: Path, seconds: float, deadly: int | None, stuck: str) -> Callable:
    """The function, slowed down, with marks when a task begins and ends; one expert kills its worker.

    Nothing that is begun on the node `stuck` ends by itself.
    """

    def work(task):  # a closure travels whole: workers need not find this file
        ray = sys.modules.get("ray")
        node = ray.get_runtime_context().get_node_id() if ray else "here"
        mark = folder / f"{task.number}_{os.getpid()}_{node}_{time.monotonic_ns()}"
        mark.touch()
        if task.number == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600 if node == stuck else seconds)
        result = function(task)
        mark.with_name(mark.name + "_done").touch()
        return result

    return work


class Watched:
    """An executor whose experts leave marks, and to which something happens after one has come back.

    The `accident` is given the tasks in flight, one at least. The expert
    `deadly` kills its worker, always; tasks on the node `stuck` never end: they are in flight when it goes.
    """

    def __init__(self, executor, folder, *, accident=None, deadly=None, stuck="none") -> None:
        self.executor, self.folder = executor, folder
        self.accident, self.deadly, self.stuck, self.happened = accident, deadly, stuck, False
        self.nearby, self.workers = nearby(executor), executor.workers

    def run(self, function, tasks):
        if not isinstance(function, partial):  # not the experts' stage
            yield from self.executor.run(function, tasks)
            return
        seconds = 0.3 if self.accident else 0.0
        function = watched(function, self.folder, seconds, self.deadly, self.stuck)
        results = self.executor.run(function, tasks)
        for pair in results:
            if self.accident and not self.happened:
                self.happened = True
                self.accident(self.in_flight())
            yield pair

    def in_flight(self) -> list[Begun]:
        return soon(lambda: [one for one in begun(self.folder) if not one.done])


def soon(look: Callable[[], list[Begun]]) -> list[Begun]:
    """What there is to see, as soon as there is."""
    deadline = time.monotonic() + 60
    while not (tasks := look()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)
    return tasks


def fit(executor: Executor, folder: Path) -> bytes:
    """The file of a model of a small network, never trained: its predictions do not matter here."""
    options = {"num_experts": EXPERTS, "executor": executor, "witness": None}
    quiet_fit(mlp(3, 8, 2), rows(240, inputs=3), **options).save(folder / "model")
    return (folder / "model").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    """The model that is fitted on threads."""
    return fit(trustgp.Threads(2), tmp_path_factory.mktemp("whole"))


@pytest.fixture
def marks(tmp_path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_a_worker_killed_in_the_middle_changes_nothing(ray_workers, whole, marks, tmp_path):
    """The bytes are those of threads; what the killed worker was doing is restarted elsewhere."""
    watching = Watched(ray_workers, marks, accident=lambda flying: os.kill(flying[0].process, signal.SIGKILL))
    assert fit(watching, tmp_path) == whole
    assert watching.happened
    started = begun(marks)
    assert len(started) > EXPERTS
    assert {one.expert for one in started if one.done} == set(range(EXPERTS))
    assert os.getpid() not in {one.process for one in started}


@pytest.mark.nightly
def test_a_removed_node_changes_nothing(two_nodes, whole, marks, tmp_path):
    gone, lost = two_nodes.second.node_id, []

    def remove(_):
        lost.extend(soon(lambda: [one for one in begun(marks) if one.node == gone and not one.done]))
        two_nodes.replace_second()

    list(Ray().run(lambda _: time.sleep(0.5), range(4)))  # both nodes have a worker now
    assert fit(Watched(Ray(), marks, accident=remove, stuck=gone), tmp_path) == whole
    assert {one.expert for one in lost} <= {one.expert for one in begun(marks) if one.node != gone}
    assert lost


@pytest.mark.nightly
@pytest.mark.usefixtures("two_nodes")
def test_an_expert_that_kills_every_worker_ends_in_an_error_that_names_it(marks):
    with pytest.raises(WorkerLostError, match=f"retries={RETRIES}") as caught:
        fit(Watched(Ray(workers=2, retries=RETRIES), marks, deadly=VICTIM), marks)
    assert VICTIM in caught.value.positions
    (note,) = caught.value.__notes__
    assert str(VICTIM) in re.findall(r"\d+", note)
    assert len([one for one in begun(marks) if one.expert == VICTIM]) == 1 + RETRIES


def test_threads_name_the_expert_too(monkeypatch, tmp_path):
    def fail(problem, task):
        raise KeyError("a mistake")

    monkeypatch.setattr("trustgp.fitting.solve.solve_expert", fail)
    with pytest.raises(KeyError, match="a mistake") as caught:
        fit(trustgp.Threads(1), tmp_path)
    (note,) = caught.value.__notes__  # of whichever failure was seen first: all eight may have failed by then
    assert re.search(r"in expert \d+,", note)


# workers in other processes


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
    ray = pytest.importorskip("ray", reason='ray is not installed: pip install "trustgp[ray]"')

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match=r"call ray.init\(\) there"):
        pool.submit(lambda: Ray().workers).result()
