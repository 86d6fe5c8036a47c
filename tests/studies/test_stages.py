"""Stages of a fit, timed and weighed from its log."""

import logging
import time

import pytest
import torch

import trustgp
from trustgp.progress import LOGGER, reporting
from trustgp.studies.peaks import Peak, status_bytes
from trustgp.studies.stages import Ledger, _Clock, stages

needs_linux = pytest.mark.skipif(status_bytes("VmHWM") is None, reason="only Linux tells a process's peak")


def test_every_second_of_a_fit_belongs_to_a_stage(case):
    start = time.perf_counter()
    with stages("cpu") as ledger:
        begun = time.perf_counter()
        trustgp.fit(case.network, (case.inputs, case.targets), num_experts=3, witness=None, progress=False)
        ended = time.perf_counter()
    assert list(ledger.seconds) == [
        "preparing",
        "running the network",
        "planning",
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
    monkeypatch.setattr(_Clock, "_now", lambda _: next(ticks))
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


@needs_linux
def test_memory_that_is_given_back_still_counts_for_its_stage():
    size = 200 * 2**20
    with stages("cpu") as ledger, reporting(enabled=False) as report:
        report.begin("much")
        held = torch.ones(size // 4)
        del held
        report.begin("little")
    assert ledger.peaks["much"]["cpu"] > 0.9 * size
    assert ledger.peaks["little"]["cpu"] < 0.5 * size
    assert ledger.peak("cpu") == ledger.peaks["much"]["cpu"]


@needs_linux
def test_a_peak_is_beside_what_was_held_before():
    held = torch.ones(50 * 2**20)
    peak = Peak("cpu")
    more = torch.ones(25 * 2**20)
    assert 0.9 * 100 * 2**20 < peak.bytes()["cpu"] < 1.5 * 100 * 2**20
    assert peak.held["cpu"] > 4 * len(held) > 4 * len(more)


def test_nothing_is_claimed_of_a_place_that_was_not_watched():
    assert Ledger({"one": 1.0}, {"one": {}}).peak("cuda") is None
