"""Several tasks in flight on a GPU: what is asked of CUDA, and, where there is a GPU, what comes of it."""

import threading
from contextlib import contextmanager

import pytest
import torch

from trustgp.executors import Threads
from trustgp.executors.base import numbered_stream

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Stream:
    """Notes what is asked of a CUDA stream."""

    device = torch.device("cuda:0")

    def __init__(self, log, name="caller"):
        self.log, self.name = log, name

    def record_event(self):
        self.log.append((self.name, "record"))
        return "event"

    def wait_event(self, event):
        self.log.append((self.name, "wait", event))

    def synchronize(self):
        self.log.append((self.name, "synchronise"))


@pytest.fixture
def log(monkeypatch):
    """What is asked of CUDA, as if there were a device in use."""
    calls = []

    @contextmanager
    def stream(one):
        calls.append((one.name, "enter"))
        yield
        calls.append((one.name, "leave"))

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(calls))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(calls, threading.get_ident()))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    numbered_stream.cache_clear()
    yield calls
    numbered_stream.cache_clear()


def test_the_next_run_has_the_same_streams(log, monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or Stream(log, len(made)))
    barrier = threading.Barrier(2)
    for _ in range(3):
        dict(Threads(2).run(lambda task: barrier.wait(timeout=30), range(2)))
    assert len(made) == 2


def test_each_thread_has_a_stream_that_waits_for_the_caller_and_is_done_before_the_result(log):
    barrier = threading.Barrier(2)

    def work(task):
        barrier.wait(timeout=30)  # both threads are at work
        log.append((threading.get_ident(), "work"))
        return task

    assert dict(Threads(2).run(work, range(6))) == {i: i for i in range(6)}
    assert log[0] == ("caller", "record")
    names = {name for name, *_ in log} - {"caller"}
    assert len(names) == 2
    for name in names:
        steps = [step[1:] for step in log if step[0] == name]
        assert steps[0] == ("wait", "event")
        assert steps[1:] == [("enter",), ("work",), ("leave",), ("synchronise",)] * 3


def test_one_thread_stays_on_the_callers_stream(log):
    assert dict(Threads(1).run(lambda task: task, range(3))) == {0: 0, 1: 1, 2: 2}
    assert log == []


@needs_cuda
def test_results_of_several_streams_are_whole_and_their_memory_is_not_taken_too_early():
    data = torch.randn(400, 400, device="cuda", dtype=torch.float64)

    def work(number):
        product = data
        for _ in range(10):  # keeps the stream busy when the task's own code is done
            product = product @ data / 20
        return product * number, torch.cuda.current_stream().cuda_stream

    product = data
    for _ in range(10):
        product = product @ data / 20
    total, streams = torch.zeros_like(data), set()
    for _, (result, stream) in Threads(4).run(work, [1.0] * 40):
        for _ in range(20):
            total += result / 20  # asked of the caller's stream; then the memory is given back
        streams.add(stream)
        del result
    torch.testing.assert_close(total, 40 * product, rtol=1e-10, atol=1e-10)
    assert torch.cuda.current_stream().cuda_stream not in streams
