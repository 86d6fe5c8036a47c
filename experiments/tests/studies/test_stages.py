"""Stages of a fit, timed and weighed from its log."""

import logging
import time

import pytest

import trustgp
from trustgp.executors.progress import LOGGER, reporting
from trustgp_experiments.core import stage_timer as memory
from trustgp_experiments.core.stage_timer import Ledger, Peak, stages, status_bytes


def test_every_second_of_a_fit_belongs_to_a_stage(case):
    start = time.perf_counter()
    with stages("cpu") as ledger:
        begun = time.perf_counter()
        trustgp.fit(case.network, (case.inputs, case.targets), num_experts=3, witness=None, progress=False)
        ended = time.perf_counter()
    assert list(ledger.seconds) == [
        "preparing",
        "planning",
        "making the features",
        "linearising",
        "dividing the rows",
        "solving the experts",
        "calibrating",
    ]
    assert all(seconds >= 0 for seconds in ledger.seconds.values())
    assert ended - begun <= ledger.total <= time.perf_counter() - start
    assert sum(ledger.shares.values()) == pytest.approx(1)


def test_a_stage_lasts_until_the_next_begins_and_adds_up_when_it_comes_again(monkeypatch):
    ticks = iter((0.0, 1.0, 3.0, 7.0, 15.0))
    monkeypatch.setattr(memory, "now", lambda _: next(ticks))
    with stages("cpu") as ledger, reporting(enabled=False) as report:
        for name in ("one", "two", "one", "one"):
            report.begin(name)
    assert ledger.seconds == {"preparing": 1.0, "one": 2.0 + 8.0, "two": 4.0}
    assert list(ledger.seconds) == ["preparing", "one", "two"]


def test_the_log_is_as_it_was_afterwards_also_when_the_fit_fails():
    before = LOGGER.level, list(LOGGER.handlers)
    with pytest.raises(ValueError, match="nothing"), stages("cpu"):
        _fail_at_debug()
    assert (LOGGER.level, LOGGER.handlers) == before


def _fail_at_debug():
    assert LOGGER.level == logging.DEBUG
    raise ValueError("nothing")


@pytest.fixture
def marks(monkeypatch):
    """A process whose high-water mark is what the test says; a reset takes it down to what is held.

    A real one says too little here: an allocator may keep what was freed (torch's on AArch64 does), and a
    system may take idle pages away.
    """
    found = {"VmHWM": 100, "VmRSS": 100}
    monkeypatch.setattr(memory, "status_bytes", lambda name: found[name])
    monkeypatch.setattr(Peak, "_reset", lambda _: found.update(VmHWM=found["VmRSS"]))
    return found


def test_memory_that_is_given_back_still_counts_for_its_stage(marks):
    with stages("cpu") as ledger, reporting(enabled=False) as report:
        report.begin("much")
        marks.update(VmHWM=300, VmRSS=100)  # 200 taken and given back
        report.begin("little")
        marks.update(VmHWM=130, VmRSS=130)
    assert ledger.peaks["much"]["cpu"] == 200
    assert ledger.peaks["little"]["cpu"] == 30
    assert ledger.peak("cpu") == 200


def test_a_peak_is_beside_what_was_held_before(marks):
    marks.update(VmHWM=900, VmRSS=250)
    peak = Peak("cpu")
    assert peak.held == {"cpu": 250}
    marks.update(VmHWM=350, VmRSS=350)
    assert peak.bytes() == {"cpu": 100}
    marks.update(VmRSS=200)
    assert peak.lap() == {"cpu": 100}
    assert peak.bytes() == {"cpu": 0}  # never below nothing


@pytest.mark.skipif(status_bytes("VmHWM") is None, reason="only Linux tells a process's peak")
def test_what_the_system_tells_is_read():
    found = Peak("cpu")
    assert found.held["cpu"] > 0
    assert found.bytes()["cpu"] >= 0


def test_nothing_is_claimed_of_a_place_that_was_not_watched():
    assert Ledger({"one": 1.0}, {"one": {}}).peak("cuda") is None
