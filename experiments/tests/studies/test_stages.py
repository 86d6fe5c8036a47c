"""Seconds and bytes of the stages of a fit, from its log."""

import logging
import time

import pytest

import trustgp
from trustgp.executors.progress import LOGGER, reporting
from trustgp_experiments.core import stage_timer
from trustgp_experiments.core.stage_timer import Peak, stages, status_bytes


def test_every_second_of_a_fit_belongs_to_a_stage(case):
    start = time.perf_counter()
    with stages("cpu") as ledger:
        begun = time.perf_counter()
        trustgp.fit(case.network, (case.inputs, case.targets), num_experts=3, witness=None, progress=False)
        ended = time.perf_counter()
    order = "preparing", "planning", "making the features", "linearising"
    order += "dividing the rows", "solving the experts", "calibrating"
    assert tuple(ledger.seconds) == order
    assert all(seconds >= 0 for seconds in ledger.seconds.values())
    assert ended - begun <= ledger.total <= time.perf_counter() - start


def test_a_stage_lasts_until_the_next_and_adds_up_when_it_is_repeated(monkeypatch):
    ticks = iter((0.0, 1.0, 3.0, 7.0, 15.0))
    monkeypatch.setattr(stage_timer, "now", lambda _: next(ticks))
    with stages("cpu") as ledger, reporting(enabled=False) as report:
        for name in ("one", "two", "one", "one"):
            report.begin(name)
    assert ledger.seconds == {"preparing": 1.0, "one": 2.0 + 8.0, "two": 4.0}
    assert list(ledger.seconds) == ["preparing", "one", "two"]


def test_the_log_is_as_before_also_when_the_fit_fails():
    before = LOGGER.level, list(LOGGER.handlers)

    def fail():
        assert LOGGER.level == logging.DEBUG
        raise ValueError("nothing")

    with pytest.raises(ValueError, match="nothing"), stages("cpu"):
        fail()
    assert (LOGGER.level, LOGGER.handlers) == before


def test_a_peak_excludes_what_was_allocated_before_and_counts_what_is_freed_again(monkeypatch):
    """On a made process: a real allocator may keep what was freed, and a system may drop idle pages."""
    sizes = {"VmHWM": 250}
    monkeypatch.setattr(stage_timer, "status_bytes", sizes.__getitem__)
    with stages("cpu") as ledger, reporting(enabled=False) as report:
        report.begin("much")
        sizes["VmHWM"] = 450  # 200 allocated, and freed again
        report.begin("little")
    assert ledger.peak == {"cpu": 200}
    peak = Peak("cpu")
    assert peak.before == {"cpu": 450}
    sizes["VmHWM"] = 400
    assert peak.bytes() == {"cpu": 0}  # never negative


@pytest.mark.skipif(status_bytes("VmHWM") is None, reason="only Linux reports a process's peak")
def test_the_sizes_of_this_process_are_read():
    peak = Peak("cpu")
    assert peak.before["cpu"] > 0
    assert peak.bytes()["cpu"] >= 0
